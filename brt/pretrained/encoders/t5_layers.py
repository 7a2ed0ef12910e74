"""Layers of T5."""

from typing import Any

import jax
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike

from brt.models.axis_rules import constrain
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.positions_t5 import t5_buckets
from brt.models.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import (
    BackboneLayer,
    Heads,
    LayerKeys,
    RootNorm,
    Seen,
    attend_to,
    join_heads,
    linear,
    split_heads,
)

NETWORKS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}
"""Kinds of MLPs: activation, and whether a second matrix multiplies its result."""


def two_sided_buckets(key_minus_query: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns an encoder's buckets of distances: half of them for keys after the query."""
    distance = np.asarray(key_minus_query)
    half = buckets // 2
    return t5_buckets(np.abs(distance), half, longest) + half * (distance > 0).astype(np.int32)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, sizes: Sizes):
        D, A, K = sizes.width, sizes.attention_size, sizes.head_size
        self.num_heads = sizes.num_heads
        self.queries_DA = parameter(rngs, normal((D * K) ** -0.5), D, A)
        self.keys_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.values_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.output_AD = parameter(rngs, normal(A**-0.5), A, D)

    def queries(self, x_BTD: jax.Array) -> jax.Array:
        return split_heads(linear(x_BTD, self.queries_DA), self.num_heads)

    def keys(self, x_BTD: jax.Array) -> LayerKeys:
        keys_BTHK = split_heads(linear(x_BTD, self.keys_DA), self.num_heads)
        values_BTHK = split_heads(linear(x_BTD, self.values_DA), self.num_heads)
        return LayerKeys(keys_BTHK, values_BTHK)

    def output(self, attended_BTHK: jax.Array) -> jax.Array:
        return linear(join_heads(attended_BTHK), self.output_AD)


class T5Layer(BackboneLayer):
    score_scale = 1.0

    def __init__(self, rngs: nnx.Rngs, settings: Any):
        sizes = settings.sizes()
        D, F = sizes.width, sizes.feed_forward_size
        self.sizes = sizes
        self.network = settings.network
        self.attention_norm = RootNorm(rngs, D, settings.epsilon, upcast=True)
        self.attention = Attention(rngs, sizes)
        self.feed_forward_norm = RootNorm(rngs, D, settings.epsilon, upcast=True)
        self.hidden_DF = parameter(rngs, normal(D**-0.5), D, F)
        if NETWORKS[self.network][1]:
            self.factor_DF = parameter(rngs, normal(D**-0.5), D, F)
        self.output_FD = parameter(rngs, normal(F**-0.5), F, D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        x_BTD = self.attention_norm(x_BTD)
        return Heads(self.attention.queries(x_BTD), self.attention.keys(x_BTD), x_BTD)

    def attention_bias(self, queries_BTHK: jax.Array, seen: Seen, shared: Any) -> jax.Array:
        return seen.bias_BQJ[:, None] + shared

    def project_output(self, attended_BTHK: jax.Array) -> jax.Array:
        return self.attention.output(attended_BTHK)

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        activation, gated = NETWORKS[self.network]
        x_BTD = self.feed_forward_norm(x_BTD)
        h_BTF = ACTIVATIONS[activation](linear(x_BTD, self.hidden_DF))
        if gated:
            h_BTF = h_BTF * linear(x_BTD, self.factor_DF)
        return linear(h_BTF, self.output_FD)


class T5DecoderLayer(T5Layer):
    def __init__(self, rngs: nnx.Rngs, settings: Any):
        super().__init__(rngs, settings)
        self.cross_norm = RootNorm(rngs, self.sizes.width, settings.epsilon, upcast=True)
        self.cross = Attention(rngs, self.sizes)

    def __call__(
        self, x_BTD: jax.Array, bias: jax.Array, encoded_BJD: jax.Array, hidden_B11J: jax.Array
    ) -> jax.Array:
        """Returns the layer's outputs, (B, T, D).

        bias: attention bias among its inputs. hidden_B11J: of the encoder's outputs.
        """
        heads = self.heads(x_BTD)
        x_BTD = x_BTD + self.project_output(attend_to(heads.queries_BTHK, heads.keys, bias, 1.0))
        queries_BTHK = self.cross.queries(self.cross_norm(x_BTD))
        keys = self.cross.keys(encoded_BJD)
        x_BTD = x_BTD + self.cross.output(attend_to(queries_BTHK, keys, hidden_B11J, 1.0))
        with jax.named_scope("feed_forward"):
            return constrain(x_BTD + self.mlp(x_BTD), "BTD")
