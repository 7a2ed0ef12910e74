"""The contract of a layer of a body, and of what memories bring into it.

What a memory adds to a layer comes in from outside, as `Reads`: vectors that stand among a layer's
inputs for keys and values only, and an addition to what its attention puts out. Letters as in
`brt.pretrained`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layers.attention import attend
from brt.models.layers.dropout import independent_dropout
from brt.models.layers.norms import LayerNorm, wide
from brt.models.layers.sizes import Sizes

HIDDEN = -1e30
"""Added to the score of a key that a query does not see: its weight is 0."""


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

    keys: `LayerKeys` of J vectors. positions_BJ: int32, their positions. table_BQJ: float, added to
        the scores: 0, or `HIDDEN`; axes of rows and queries may be 1.
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

        And arrays that the reader of the window gets back, in any nesting.
        """
        return None, ()


NOTHING = Reads()


class Norm(LayerNorm):
    """`LayerNorm` with an epsilon of its own."""

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float):
        super().__init__(rngs, width)
        self.epsilon = epsilon


def linear(x_BTD: jax.Array, matrix_DA: nnx.Param, bias_A: nnx.Param | None = None) -> jax.Array:
    """Returns x matrix + bias, in the type of x."""
    y_BTA = x_BTD @ matrix_DA[...].astype(x_BTD.dtype)
    return y_BTA if bias_A is None else y_BTA + bias_A[...].astype(x_BTD.dtype)


def split_heads(x_BTA: jax.Array, num_heads: int) -> jax.Array:
    """Returns (..., A) cut into heads, (..., H, K)."""
    return x_BTA.reshape(*x_BTA.shape[:-1], num_heads, -1)


def join_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns heads (..., H, K) side by side, (..., A)."""
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)


def plus(x_BTD: jax.Array, added_BTD: jax.Array | None) -> jax.Array:
    """Returns the sum, or x where nothing is added."""
    return x_BTD if added_BTD is None else x_BTD + added_BTD


Drop = Callable[[jax.Array], jax.Array]
"""Dropout with its key, or the identity."""


def unchanged(x_BTD: jax.Array) -> jax.Array:
    """Returns x: the `Drop` that drops nothing."""
    return x_BTD


def drops(key: jax.Array | None, rate: float) -> Drop:
    """Returns dropout that takes another key each time it is called; without a key `unchanged`."""
    if key is None:
        return unchanged
    count = iter(range(1000))

    def drop(x_BTD):
        return independent_dropout(x_BTD, rate, jax.random.fold_in(key, next(count)))

    return drop


class BackboneLayer(nnx.Module):
    """One layer of a body: the base of all.

    `project_heads` and `written` read the parameters queries_DA, keys_DA, values_DA and output_AD,
    and the biases queries_bias_A, keys_bias_A, values_bias_A and output_bias_D where a layer has
    them. A layer with others computes these parts itself.

    Attributes:
        sizes: D, H, K, F.
        score_scale: factor of the scores.
    """

    sizes: Sizes
    score_scale: float
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
            attended_BTHK: what attention read.
            added_BTD: added to the output of the attention, before its residual.
            drop: dropout of what enters the residual stream.
        """
        raise NotImplementedError

    def project(self, x_BTD: jax.Array, part: str) -> jax.Array:
        """Returns heads (..., H, K) of (..., D), by the matrix and the bias of a part."""
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
    ) -> jax.Array:
        """Returns what queries at these positions read of what they see, (B, T, H, K).

        keep_HTJ: multiplies the weights (dropout), or None.
        """
        queries_BTHK, keys = self.placed(queries_BTHK, positions_BT, seen)
        H = queries_BTHK.shape[2]
        each = H // keys.keys_BJGK.shape[2]
        k_BJHK, v_BJHK = (jnp.repeat(x, each, axis=2) if each > 1 else x for x in keys)
        scale_H = jnp.full(H, self.score_scale, wide(queries_BTHK).dtype)
        table_BHTJ = seen.table_BQJ[:, None]
        return attend(queries_BTHK, k_BJHK, v_BJHK, scale_H, table_BHTJ, keep_HTJ)

    def placed(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        """Returns queries and keys with their positions in them: rotated, for one."""
        return queries_BTHK, seen.keys


def with_extras(layer: BackboneLayer, seen: Seen, number: int, reads: Reads) -> Seen:
    """Returns what a layer's queries see with the extra vectors of memories in front."""
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
