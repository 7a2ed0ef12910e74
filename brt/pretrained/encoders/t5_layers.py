"""Layers of T5: of the encoder, and of the decoder.

Source: Raffel et al. 2020, arXiv:1910.10683.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike

from brt.models.layers.attention import attend
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.positions_t5 import t5_buckets
from brt.models.layers.precision import at_least_float32
from brt.models.layers.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import (
    BackboneLayer,
    Heads,
    LayerKeys,
    RootNorm,
    Seen,
    join_heads,
    linear,
    plus,
    split_heads,
)

NETWORKS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True), "gated-silu": ("silu", True)}
"""Kinds of MLPs: activation, and whether a second matrix is multiplied in."""


def two_sided_buckets(key_minus_query: ArrayLike, buckets: int, longest: int) -> np.ndarray:
    """Returns the bucket of each distance of an encoder: one half of them each way.

    Args:
        key_minus_query: positions between them, integers of any shape.
        buckets: their number, even.
        longest: distance from which the last of a side is used.
    """
    distance = np.asarray(key_minus_query)
    half = buckets // 2
    return t5_buckets(np.abs(distance), half, longest) + half * (distance > 0).astype(np.int32)


class Attention(nnx.Module):
    """Attention without biases and without a scale."""

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes):
        D, A, K = sizes.width, sizes.attention_size, sizes.head_size
        self.num_heads = sizes.num_heads
        self.queries_DA = parameter(rngs, normal((D * K) ** -0.5), D, A)
        self.keys_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.values_DA = parameter(rngs, normal(D**-0.5), D, A)
        self.output_AD = parameter(rngs, normal(A**-0.5), A, D)

    def queries(self, x_BTD: jax.Array) -> jax.Array:
        """Returns (B, T, H, K)."""
        return split_heads(linear(x_BTD, self.queries_DA), self.num_heads)

    def keys(self, x_BTD: jax.Array) -> LayerKeys:
        """Returns keys and values, (B, T, H, K)."""
        keys_BTHK = split_heads(linear(x_BTD, self.keys_DA), self.num_heads)
        values_BTHK = split_heads(linear(x_BTD, self.values_DA), self.num_heads)
        return LayerKeys(keys_BTHK, values_BTHK)

    def output(self, attended_BTHK: jax.Array) -> jax.Array:
        """Returns (B, T, D)."""
        return linear(join_heads(attended_BTHK), self.output_AD)

    def attend(
        self, queries_BTHK: jax.Array, keys: LayerKeys, bias: jax.Array, keep: jax.Array | None
    ) -> jax.Array:
        """Returns the result of attention, (B, T, H, K).

        Args:
            bias: added to the scores, (B, H, T, J) or axes of 1.
            keep: multiplies the weights, or None.
        """
        scale_H = jnp.ones(self.num_heads, at_least_float32(queries_BTHK).dtype)
        return attend(queries_BTHK, keys.keys_BJGK, keys.values_BJGK, scale_H, bias, keep)


class T5Layer(BackboneLayer):
    """One layer of the encoder: norm, attention, residual, norm, MLP, residual.

    settings: `T5Settings`.
    """

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

    def attend(
        self,
        queries_BTHK: jax.Array,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None = None,
        shared: Any = None,
    ) -> jax.Array:
        bias = seen.table_BQJ[:, None] + shared
        return self.attention.attend(queries_BTHK, seen.keys, bias, keep_HTJ)

    def written(self, attended_BTHK: jax.Array, added_BTD: jax.Array | None) -> jax.Array:
        return plus(self.attention.output(attended_BTHK), added_BTD)

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        activation, gated = NETWORKS[self.network]
        x_BTD = self.feed_forward_norm(x_BTD)
        h_BTF = ACTIVATIONS[activation](linear(x_BTD, self.hidden_DF))
        if gated:
            h_BTF = h_BTF * linear(x_BTD, self.factor_DF)
        return linear(h_BTF, self.output_FD)


class T5DecoderLayer(T5Layer):
    """One layer of the decoder: `T5Layer` with attention to the encoder before the MLP."""

    def __init__(self, rngs: nnx.Rngs, settings: Any):
        super().__init__(rngs, settings)
        self.cross_norm = RootNorm(rngs, self.sizes.width, settings.epsilon, upcast=True)
        self.cross = Attention(rngs, self.sizes)

    def __call__(
        self, x_BTD: jax.Array, bias: jax.Array, encoded_BJD: jax.Array, hidden_B11J: jax.Array
    ) -> jax.Array:
        """Returns the layer's outputs, (B, T, D).

        Args:
            x_BTD: its inputs.
            bias: attention bias among them.
            encoded_BJD: outputs of the encoder.
            hidden_B11J: attention bias of these.
        """
        heads = self.heads(x_BTD)
        attended = self.attention.attend(heads.queries_BTHK, heads.keys, bias, None)
        x_BTD = x_BTD + self.attention.output(attended)
        queries = self.cross.queries(self.cross_norm(x_BTD))
        attended = self.cross.attend(queries, self.cross.keys(encoded_BJD), hidden_B11J, None)
        x_BTD = x_BTD + self.cross.output(attended)
        return self.add_mlp(x_BTD, x_BTD)
