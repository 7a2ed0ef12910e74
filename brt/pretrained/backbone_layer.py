"""A layer of a backbone, and the additions of memories to it."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros

from brt.models.axis_rules import constrain
from brt.models.fast.attention import attend
from brt.models.fast.products import matmul
from brt.models.layers.dropout import independent_dropout
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.ops import at_least_float32
from brt.models.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.settings import Settings

HIDDEN = -1e30
STD = 0.02
Drop = Callable[[jax.Array], jax.Array]
"""Dropout of (B, T, D), before it is added to the residual stream."""


def attention_bias(visible: jax.typing.ArrayLike) -> jax.Array:
    return jnp.where(visible, 0.0, HIDDEN).astype(jnp.float32)


class LayerKeys(NamedTuple):
    """Keys and values in one layer, (B, J, G, K), before rotation."""

    keys_BJGK: jax.Array
    values_BJGK: jax.Array


class Extra(NamedTuple):
    """Keys and values of M vectors without a position, and which of them are present."""

    keys: LayerKeys
    present_BM: jax.Array


class Seen(NamedTuple):
    """The keys that the queries of a layer may attend to.

    positions_BJ: int32. bias_BQJ: the attention bias, 0 or `HIDDEN`; B and Q may be 1.
    """

    keys: LayerKeys
    positions_BJ: jax.Array
    bias_BQJ: jax.Array

    def with_extra(self, extra: Extra | None) -> "Seen":
        if extra is None:
            return self
        present_BM, bias_BQJ = extra.present_BM, self.bias_BQJ
        hidden_B1M = attention_bias(present_BM).astype(bias_BQJ.dtype)[:, None]
        rows = max(len(bias_BQJ), len(present_BM))
        biases = (
            jnp.broadcast_to(bias, (rows, bias_BQJ.shape[1], bias.shape[2]))
            for bias in (hidden_B1M, bias_BQJ)
        )
        nowhere_BM = jnp.zeros(present_BM.shape, self.positions_BJ.dtype)
        pairs = zip(extra.keys, self.keys, strict=True)
        return Seen(
            LayerKeys(*(jnp.concatenate(pair, axis=1) for pair in pairs)),
            jnp.concatenate([nowhere_BM, self.positions_BJ], axis=1),
            jnp.concatenate(list(biases), axis=2),
        )


class Heads(NamedTuple):
    queries_BTHK: jax.Array
    keys: LayerKeys
    normed_BTD: jax.Array


class Added(NamedTuple):
    """The result of a memory at one layer.

    attended_BTHK: attention with the memory's part. added_BTD: to add to its output, or None.
    metrics: scalars. taken: this layer's input of the memory's `update`, or ().
    """

    attended_BTHK: jax.Array
    added_BTD: jax.Array | None = None
    metrics: dict[str, jax.Array] = {}
    taken: Any = ()


class Reads:
    """The additions of memories to the layers of a window; by default none."""

    def extra(self, layer: int) -> Extra | None:
        return None

    def read(
        self, layer: int, heads: Heads, attended_BTHK: jax.Array
    ) -> tuple[jax.Array, jax.Array | None, Any]:
        """Returns attention with the memories' additions to its heads.

        Also (B, T, D) or None to add to the attention's output, and arrays for the caller.
        """
        return attended_BTHK, None, ()


NOTHING = Reads()


class RootNorm(nnx.Module):
    """x / rms(x) * scale.

    upcast: multiply by the scale in float32, and not in the type of x.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float, upcast: bool = False):
        self.scale_D = parameter(rngs, ones, width)
        self.epsilon = epsilon
        self.upcast = upcast

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x = at_least_float32(x_BTD)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        if self.upcast:
            return (x * self.scale_D[...]).astype(x_BTD.dtype)
        return x.astype(x_BTD.dtype) * self.scale_D[...].astype(x_BTD.dtype)


def linear(x_BTD: jax.Array, matrix_DA: nnx.Param, bias_A: nnx.Param | None = None) -> jax.Array:
    y_BTA = matmul(x_BTD, matrix_DA[...])
    return y_BTA if bias_A is None else y_BTA + bias_A[...].astype(x_BTD.dtype)


def split_heads(x_BTA: jax.Array, num_heads: int) -> jax.Array:
    return x_BTA.reshape(*x_BTA.shape[:-1], num_heads, -1)


def join_heads(x_BTHK: jax.Array) -> jax.Array:
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)


def repeat_keys(keys: LayerKeys, num_heads: int) -> LayerKeys:
    each = num_heads // keys.keys_BJGK.shape[2]
    return LayerKeys(*(jnp.repeat(x, each, axis=2) if each > 1 else x for x in keys))


def attend_to(
    queries_BTHK: jax.Array,
    keys: LayerKeys,
    bias_BHTJ: jax.Array,
    score_scale: float,
    keep_HTJ: jax.Array | None = None,
) -> jax.Array:
    H = queries_BTHK.shape[2]
    scale_H = jnp.full(H, score_scale, at_least_float32(queries_BTHK).dtype)
    return attend(queries_BTHK, *repeat_keys(keys, H), scale_H, bias_BHTJ, keep_HTJ)


def drops(key: jax.Array | None, rate: float) -> Drop:
    """Returns dropout with another key at each call, or the identity."""
    count = itertools.count()

    def drop(x_BTD):
        if key is None:
            return x_BTD
        return independent_dropout(x_BTD, rate, jax.random.fold_in(key, next(count)))

    return drop


class BackboneLayer(nnx.Module):
    """The base of the layers of a backbone.

    score_scale: factor of the scores.
    parallel: whether the MLP has the layer's inputs, and not the residual after attention.
    """

    sizes: Sizes
    score_scale: float
    parallel: bool = False
    output_AD: nnx.Param
    output_bias_D: nnx.Param | None

    def heads(self, x_BTD: jax.Array) -> Heads:
        raise NotImplementedError

    def attend(
        self,
        queries_BTHK: jax.Array,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None = None,
        shared: Any = None,
    ) -> jax.Array:
        """Returns attention of queries at these positions, (B, T, H, K).

        shared: of the backbone's `shared`. keep_HTJ: multiplies the weights (dropout).
        """
        queries_BTHK, keys = self.with_positions(queries_BTHK, positions_BT, seen)
        bias_BHTJ = self.attention_bias(queries_BTHK, seen, shared)
        return attend_to(queries_BTHK, keys, bias_BHTJ, self.score_scale, keep_HTJ)

    def with_positions(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        """Returns queries and keys with their positions applied, such as rotated."""
        return queries_BTHK, seen.keys

    def attention_bias(self, queries_BTHK: jax.Array, seen: Seen, shared: Any) -> jax.Array:
        return seen.bias_BQJ[:, None]

    def finish(
        self,
        x_BTD: jax.Array,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop = lambda y_BTD: y_BTD,
    ) -> jax.Array:
        """Returns outputs, (B, T, D); `added_BTD` is added to the attention's output."""
        y_BTD = self.project_output(attended_BTHK)
        y_BTD = drop(y_BTD if added_BTD is None else y_BTD + added_BTD)
        after_BTD = constrain(self.after_attention(x_BTD + y_BTD), "BTD")
        with jax.named_scope("feed_forward"):
            y_BTD = drop(self.mlp(x_BTD if self.parallel else after_BTD))
            return constrain(self.after_mlp(after_BTD + y_BTD), "BTD")

    def project_output(self, attended_BTHK: jax.Array) -> jax.Array:
        return linear(join_heads(attended_BTHK), self.output_AD, self.output_bias_D)

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        raise NotImplementedError

    def after_attention(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD

    def after_mlp(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD


class DenseLayer(BackboneLayer):
    """A layer with two LayerNorms and biases, as in GPT-2, GPT-NeoX and BERT.

    output_std: of the matrices that write into the residual stream.
    """

    norm_first = True

    def __init__(
        self,
        rngs: nnx.Rngs,
        settings: Settings,
        output_std: float = STD,
        attention_biases: bool = True,
    ):
        family: Any = settings
        sizes = settings.sizes()
        D, A, F = sizes.width, sizes.attention_size, sizes.feed_forward_size
        matrix = functools.partial(parameter, rngs, normal(STD))
        writes = functools.partial(parameter, rngs, normal(output_std))
        bias = functools.partial(parameter, rngs, zeros)
        attention_bias = bias if attention_biases else (lambda size: None)
        self.sizes = sizes
        self.score_scale = 1 / math.sqrt(sizes.head_size)
        self.activation = family.activation
        self.attention_norm = LayerNorm(rngs, D, epsilon=family.epsilon)
        self.queries_DA = matrix(D, A)
        self.queries_bias_A = attention_bias(A)
        self.keys_DA = matrix(D, A)
        self.keys_bias_A = attention_bias(A)
        self.values_DA = matrix(D, A)
        self.values_bias_A = attention_bias(A)
        self.output_AD = writes(A, D)
        self.output_bias_D = attention_bias(D)
        self.feed_forward_norm = LayerNorm(rngs, D, epsilon=family.epsilon)
        self.hidden_DF = matrix(D, F)
        self.hidden_bias_F = bias(F)
        self.output_FD = writes(F, D)
        self.feed_forward_bias_D = bias(D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        x_BTD = self.attention_norm(x_BTD) if self.norm_first else x_BTD
        H = self.sizes.num_heads
        keys_BTHK = split_heads(linear(x_BTD, self.keys_DA, self.keys_bias_A), H)
        values_BTHK = split_heads(linear(x_BTD, self.values_DA, self.values_bias_A), H)
        queries_BTHK = split_heads(linear(x_BTD, self.queries_DA, self.queries_bias_A), H)
        return Heads(queries_BTHK, LayerKeys(keys_BTHK, values_BTHK), x_BTD)

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = self.feed_forward_norm(x_BTD) if self.norm_first else x_BTD
        h_BTF = ACTIVATIONS[self.activation](linear(x_BTD, self.hidden_DF, self.hidden_bias_F))
        return linear(h_BTF, self.output_FD, self.feed_forward_bias_D)

    def after_attention(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD if self.norm_first else self.attention_norm(x_BTD)

    def after_mlp(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD if self.norm_first else self.feed_forward_norm(x_BTD)
