"""The contract of a layer of a backbone, and of what memories add to it.

A memory acts on a layer from outside, by `Reads`: vectors among the layer's inputs for keys and
values only, and a term that is added to the output of its attention. Letters as in
`brt.pretrained`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros

from brt.models.axis_rules import constrain
from brt.models.layers.attention import attend
from brt.models.layers.dropout import independent_dropout
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.layers.precision import at_least_float32
from brt.models.layers.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.settings import Settings

HIDDEN = -1e30
"""Attention bias of a key that a query does not see."""
STD = 0.02
"""Standard deviation of matrices as they are drawn."""


class LayerKeys(NamedTuple):
    """Keys and values of vectors in one layer, (B, J, G, K). Rotary keys are not rotated yet."""

    keys_BJGK: jax.Array
    values_BJGK: jax.Array


class Extra(NamedTuple):
    """Vectors among a layer's inputs for keys and values only; they have no position.

    vectors_BMD: (B, M, D), before the layer's first norm. present_BM: bool, those that are there.
    """

    vectors_BMD: jax.Array
    present_BM: jax.Array


class Seen(NamedTuple):
    """What the queries of a layer may attend to.

    keys: `LayerKeys` of J vectors. positions_BJ: int32, their positions. table_BQJ: float, the
        attention bias: 0, or `HIDDEN`; axes of batch and queries may be 1.
    """

    keys: LayerKeys
    positions_BJ: jax.Array
    table_BQJ: jax.Array


class Heads(NamedTuple):
    """Queries (B, T, H, K) of a layer, keys and values (B, T, G, K), and what they are made of.

    normed_BTD: the layer's inputs as its matrices are multiplied with them.
    """

    queries_BTHK: jax.Array
    keys: LayerKeys
    normed_BTD: jax.Array


class Reads:
    """What memories add to the layers of a window; this one adds nothing."""

    def extras(self, layer: int) -> Sequence[Extra]:
        """Returns vectors for the keys and values of a layer, counted from 0."""
        return ()

    def extra_keys(self, layer: int) -> LayerKeys | None:
        """Returns keys and values of the layer's extra vectors, if they are computed already."""
        return None

    def attended(self, layer: int, heads: Heads, attended_BTHK: jax.Array) -> jax.Array:
        """Returns the result of a layer's attention with what memories add to its heads."""
        return attended_BTHK

    def added(self, layer: int, heads: Heads) -> tuple[jax.Array | None, Any]:
        """Returns what is added to the output of a layer's attention, (B, T, D), or None.

        Also returns arrays that the caller of the window gets back, in any nesting.
        """
        return None, ()


NOTHING = Reads()


class Norm(LayerNorm):
    """`LayerNorm` with its own epsilon."""

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float):
        super().__init__(rngs, width)
        self.epsilon = epsilon


class RootNorm(nnx.Module):
    """x / rms(x) * scale, with its own epsilon; the product in the type of x.

    upcast: the product in float32 instead.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float, upcast: bool = False):
        self.scale_D = parameter(rngs, ones, width)
        self.epsilon = epsilon
        self.upcast = upcast

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        """(..., D) of any float type; the same shape and type."""
        x = at_least_float32(x_BTD)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        if self.upcast:
            return (x * self.scale_D[...]).astype(x_BTD.dtype)
        return x.astype(x_BTD.dtype) * self.scale_D[...].astype(x_BTD.dtype)


def linear(x_BTD: jax.Array, matrix_DA: nnx.Param, bias_A: nnx.Param | None = None) -> jax.Array:
    """Returns x matrix + bias, in the type of x."""
    y_BTA = x_BTD @ matrix_DA[...].astype(x_BTD.dtype)
    return y_BTA if bias_A is None else y_BTA + bias_A[...].astype(x_BTD.dtype)


def split_heads(x_BTA: jax.Array, num_heads: int) -> jax.Array:
    """Returns (..., A) as heads, (..., H, K)."""
    return x_BTA.reshape(*x_BTA.shape[:-1], num_heads, -1)


def join_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns heads (..., H, K) concatenated, (..., A)."""
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)


def plus(x_BTD: jax.Array, added_BTD: jax.Array | None) -> jax.Array:
    """Returns the sum, or x where nothing is added."""
    return x_BTD if added_BTD is None else x_BTD + added_BTD


Drop = Callable[[jax.Array], jax.Array]
"""Dropout with its key, or the identity."""


def unchanged(x_BTD: jax.Array) -> jax.Array:
    """Returns x: the `Drop` without dropout."""
    return x_BTD


def drops(key: jax.Array | None, rate: float) -> Drop:
    """Returns dropout that uses another key at each call; `unchanged` without a key."""
    if key is None:
        return unchanged
    count = iter(range(1000))

    def drop(x_BTD):
        return independent_dropout(x_BTD, rate, jax.random.fold_in(key, next(count)))

    return drop


class BackboneLayer(nnx.Module):
    """One layer of a backbone: the base of all.

    `project_heads` and `written` use the parameters queries_DA, keys_DA, values_DA and output_AD,
    and the biases queries_bias_A, keys_bias_A, values_bias_A and output_bias_D of layers that have
    them. A layer with other parameters overrides what uses these.

    Attributes:
        sizes: D, H, K, F.
        score_scale: factor of the scores.
        parallel: whether the MLP has the layer's inputs, and not the residual after attention.
    """

    sizes: Sizes
    score_scale: float
    parallel: bool = False
    output_AD: nnx.Param

    def heads(self, x_BTD: jax.Array) -> Heads:
        """Returns queries, keys and values of the layer's inputs, (B, T, D)."""
        raise NotImplementedError

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop = unchanged,
    ) -> jax.Array:
        """Returns the layer's outputs, (B, T, D).

        Args:
            x_BTD: its inputs.
            heads: of `heads(x_BTD)`.
            attended_BTHK: the result of attention.
            added_BTD: added to the output of the attention, before its residual.
            drop: dropout of what enters the residual stream.
        """
        y_BTD = drop(self.written(attended_BTHK, added_BTD))
        after_BTD = constrain(self.after_attention(x_BTD + y_BTD), "BTD")
        return self.add_mlp(after_BTD, x_BTD if self.parallel else after_BTD, drop)

    def add_mlp(self, x_BTD: jax.Array, inputs_BTD: jax.Array, drop: Drop = unchanged) -> jax.Array:
        """Returns x with the output of the MLP, (B, T, D)."""
        with jax.named_scope("feed_forward"):
            y_BTD = drop(self.mlp(inputs_BTD))
            return constrain(self.after_mlp(x_BTD + y_BTD), "BTD")

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the output of the MLP with the norm before it, (B, T, D)."""
        raise NotImplementedError

    def after_attention(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the residual stream after the norm that follows attention, if there is one."""
        return x_BTD

    def after_mlp(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the residual stream after the norm that follows the MLP, if there is one."""
        return x_BTD

    def project(self, x_BTD: jax.Array, part: str) -> jax.Array:
        """Returns heads (..., H, K) of (..., D): `part` is "queries", "keys" or "values"."""
        matrix_DA = getattr(self, f"{part}_DA")
        bias_A = getattr(self, f"{part}_bias_A", None)
        return split_heads(linear(x_BTD, matrix_DA, bias_A), self.sizes.num_heads)

    def project_heads(self, x_BTD: jax.Array) -> Heads:
        """Returns queries, keys and values of (B, T, D) as the matrices are multiplied with it."""
        keys = LayerKeys(self.project(x_BTD, "keys"), self.project(x_BTD, "values"))
        return Heads(self.project(x_BTD, "queries"), keys, x_BTD)

    def written(self, attended_BTHK: jax.Array, added_BTD: jax.Array | None) -> jax.Array:
        """Returns the output of the attention, (B, T, D), with what memories add."""
        bias_D = getattr(self, "output_bias_D", None)
        return plus(linear(join_heads(attended_BTHK), self.output_AD, bias_D), added_BTD)

    def attend(
        self,
        queries_BTHK: jax.Array,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None = None,
        shared: Any = None,
    ) -> jax.Array:
        """Returns the result of attention of queries at these positions, (B, T, H, K).

        Args:
            keep_HTJ: multiplies the weights (dropout), or None.
            shared: of the backbone's `shared`.
        """
        queries_BTHK, keys = self.placed(queries_BTHK, positions_BT, seen)
        return self.attend_with(queries_BTHK, keys, seen.table_BQJ[:, None], keep_HTJ)

    def attend_with(
        self,
        queries_BTHK: jax.Array,
        keys: LayerKeys,
        bias_BHTJ: jax.Array,
        keep_HTJ: jax.Array | None,
    ) -> jax.Array:
        """Returns the result of attention with an attention bias, (B, T, H, K)."""
        H = queries_BTHK.shape[2]
        each = H // keys.keys_BJGK.shape[2]
        k_BJHK, v_BJHK = (jnp.repeat(x, each, axis=2) if each > 1 else x for x in keys)
        scale_H = jnp.full(H, self.score_scale, at_least_float32(queries_BTHK).dtype)
        return attend(queries_BTHK, k_BJHK, v_BJHK, scale_H, bias_BHTJ, keep_HTJ)

    def placed(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        """Returns queries and keys with their positions applied: rotated, for one."""
        return queries_BTHK, seen.keys


class DenseLayer(BackboneLayer):
    """A layer with two LayerNorms and biases in all matrices, as of GPT-2, GPT-NeoX and BERT.

    Args:
        settings: of its family, with an activation.
        output_std: of the matrices that write into the residual stream.
        attention_biases: whether attention has biases.
    """

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
        self.sizes = sizes
        self.score_scale = attention_scale(sizes.head_size)
        self.activation = family.activation
        attention_bias = bias if attention_biases else (lambda size: None)
        self.attention_norm = Norm(rngs, D, family.epsilon)
        self.queries_DA = matrix(D, A)
        self.queries_bias_A = attention_bias(A)
        self.keys_DA = matrix(D, A)
        self.keys_bias_A = attention_bias(A)
        self.values_DA = matrix(D, A)
        self.values_bias_A = attention_bias(A)
        self.output_AD = writes(A, D)
        self.output_bias_D = attention_bias(D)
        self.feed_forward_norm = Norm(rngs, D, family.epsilon)
        self.hidden_DF = matrix(D, F)
        self.hidden_bias_F = bias(F)
        self.output_FD = writes(F, D)
        self.feed_forward_bias_D = bias(D)

    def heads(self, x_BTD: jax.Array) -> Heads:
        return self.project_heads(self.attention_norm(x_BTD))

    def mlp(self, x_BTD: jax.Array) -> jax.Array:
        return self.dense(self.feed_forward_norm(x_BTD))

    def dense(self, x_BTD: jax.Array) -> jax.Array:
        """Returns activation(x W + b) W + b, (B, T, D)."""
        h_BTF = linear(x_BTD, self.hidden_DF, self.hidden_bias_F)
        h_BTF = ACTIVATIONS[self.activation](h_BTF)
        return linear(h_BTF, self.output_FD, self.feed_forward_bias_D)


def with_extras(layer: BackboneLayer, seen: Seen, number: int, reads: Reads) -> Seen:
    """Returns what a layer's queries see, with the extra vectors of memories in front."""
    extras = reads.extras(number)
    if not extras:
        return seen
    known = reads.extra_keys(number)
    if known is None:
        known = extra_keys(layer, extras)
    present_BM = jnp.concatenate([extra.present_BM for extra in extras], axis=1)
    table_BQJ = seen.table_BQJ
    hidden_B1M = jnp.where(present_BM, 0.0, HIDDEN).astype(table_BQJ.dtype)[:, None]
    rows = max(len(table_BQJ), len(present_BM))
    tables = (
        jnp.broadcast_to(table, (rows, table_BQJ.shape[1], table.shape[2]))
        for table in (hidden_B1M, table_BQJ)
    )
    nowhere_BM = jnp.zeros(present_BM.shape, seen.positions_BJ.dtype)
    pairs = zip(known, seen.keys, strict=True)
    return Seen(
        LayerKeys(*(jnp.concatenate(pair, axis=1) for pair in pairs)),
        jnp.concatenate([nowhere_BM, seen.positions_BJ], axis=1),
        jnp.concatenate(list(tables), axis=2),
    )


def extra_keys(layer: BackboneLayer, extras: Sequence[Extra]) -> LayerKeys:
    """Returns keys and values of extra vectors in a layer, (B, M, G, K)."""
    vectors_BMD = jnp.concatenate([extra.vectors_BMD for extra in extras], axis=1)
    return layer.heads(vectors_BMD).keys


def attention_scale(head_size: int) -> float:
    """Returns 1 / sqrt(K)."""
    return 1 / math.sqrt(head_size)
