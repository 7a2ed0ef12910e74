"""The computation of a grid step of attention on a GPU: the mathematics of tiles.

`gpu_attention` makes kernels of these functions, which depend on its compiler only by
`pl.program_id` and slices of references.

A *frame* is a tile of Q queries with the F keys that its queries see. There are two layouts:

* Windows: the keys of a segment follow the W cached keys. Frame g has the F = W + Q keys from gQ,
  with a bias that hides those that a query does not see.
* States: each block of W queries has S keys, all of which its frames see, F = S, without a bias.

Scores are base-2 logarithms: a GPU has an instruction for 2^x.

Axes as in `brt.models`, and Q queries of a tile    X keys of a tile    F keys of a frame
G frames
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from brt.models.fast.kernels.parts import dot, upcast
from brt.models.ops import EPSILON, at_least_float32

LOG2_E = math.log2(math.e)
HALF = 2**16
"""Number of values of the 16 random bits of each weight."""


class Tiles(NamedTuple):
    """Static sizes of a kernel.

    window: W, the queries of a block. frame: queries of a frame. queries, keys: of a tile in this
    kernel's loop. unit: whether queries and keys get unit length; otherwise queries are divided by
    sqrt(K). rate: of dropout. states: S; 0: the layout of windows.
    """

    window: int
    frame: int
    queries: int
    keys: int
    unit: bool
    rate: float
    states: int = 0

    @property
    def kept_factor(self) -> float:
        return 1 / (1 - self.rate)

    @property
    def frame_keys(self) -> int:
        """F."""
        return self.states or self.window + self.frame

    def first_key(self, query: int | jax.Array) -> int | jax.Array:
        """Returns the first key of the frame that begins at a query."""
        return query // self.window * self.states if self.states else query

    def seeing(self, key: int | jax.Array, tokens: int) -> tuple[Any, Any]:
        """Returns the bounds, up to `tokens`, of the queries that see the X keys from `key`."""
        if self.states:
            start = key // self.states * self.window
            return start, start + self.window
        return jnp.maximum(key - self.window, 0), jnp.minimum(key + self.keys, tokens)


def query_factor(tiles: Tiles, x_QK: jax.Array) -> jax.Array:
    """Returns 1 / length of each query, or 1 / sqrt(K), (Q, 1)."""
    return inverse_length(x_QK) if tiles.unit else jnp.full_like(x_QK[:, :1], len(x_QK[0]) ** -0.5)


def inverse_length(x_XK: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(jnp.sum(x_XK * x_XK, axis=1, keepdims=True) + EPSILON)


def unit_gradient(x_XK: jax.Array, factor_X1: jax.Array, dunit_XK: jax.Array) -> jax.Array:
    """Returns the gradient of x from that of x * factor, its unit vector."""
    unit_XK = x_XK * factor_X1
    return factor_X1 * (dunit_XK - unit_XK * jnp.sum(dunit_XK * unit_XK, axis=1, keepdims=True))


# Dropout.


def random_bits(counter: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns 32 bits for each counter and two seeds, all uint32.

    As in the last step of MurmurHash3, with the second seed added between multiplications: 11
    integer operations. Threefry, as in interpreted TPU kernels, needs over 100.
    """
    x = counter ^ first
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) + second
    x = x * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def kept_weights(tiles: Tiles, seeds: Any, query: Any, key: "Range") -> jax.Array:
    """Returns which weights are kept.

    query: positions in the block of W, and key: in the pair of blocks, of 2W, as in
    `ops.window_table`, or in the block of S; int32 that broadcast. Keys j and j + 8 share 32 bits,
    because a thread has both.
    """
    of_key = key.start // 2 + (key.step >> 4) * 8 + (key.step & 7)
    numbers = tiles.states // 2 or tiles.window
    bits = random_bits((query * numbers + of_key).astype(jnp.uint32), seeds[0], seeds[1])
    half = jnp.where((key.step & 8) == 0, bits & np.uint32(HALF - 1), bits >> np.uint32(16))
    return half < np.uint32(round((1 - tiles.rate) * HALF))


# Tiles.


class Range(NamedTuple):
    """Positions start + step of a tile: a multiple of 16, and 0, 1, 2, ... along an axis.

    They are separate, so that the compiler recognises equal numbers in a thread's registers.
    """

    start: int | jax.Array
    step: jax.Array

    def after(self, start: int | jax.Array) -> Any:
        return (self.start - start) + self.step


def _iota(shape, axis):
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


class Positions(NamedTuple):
    """Queries and keys of a tile of scores.

    query: in the segment. key: in the cached block and the segment, or in the states of all blocks.
    """

    query: Range
    key: Range

    def bias(self, tiles: Tiles, bias: Any) -> jax.Array:
        """Returns the bias of each score; bias: of `padded_bias`."""
        nearest = self.query.start - self.key.start + (tiles.window + tiles.frame - 1)
        return bias[nearest + (self.query.step - self.key.step)]

    def kept(self, tiles: Tiles, seeds: Any) -> jax.Array:
        block = self.query.start // tiles.window
        first_key = block * (tiles.states or tiles.window)
        key = self.key._replace(start=self.key.start - first_key)
        return kept_weights(tiles, seeds, self.query.after(block * tiles.window), key)


def forward(tiles, q, parts, scale, bias, seeds, y, log_sum, factor):
    """Computes the queries of a frame.

    Inputs: q (Q, K); parts, pairs of unit-length keys and values: of the cached block (W, K) and
    the segment (T, K), or of the states of all blocks; scale (); bias (W + 2Q,) or None; seeds
    (2,), or None without dropout.
    Outputs: y (Q, K); log_sum (Q,), the log-sum-exp; and factor (Q,), the product of the factors of
    q in the scores.
    """
    Q, X = tiles.frame, tiles.keys
    start = pl.program_id(0) * Q
    x = at_least_float32(q[...])
    of_query, scale = query_factor(tiles, x), jnp.abs(scale[...])
    unit = (x * of_query).astype(q.dtype)
    factor[...] = of_query[:, 0] * scale
    query, first = Range(start, _iota((Q, 1), 0)), tiles.first_key(start)

    def attend(i, keys, values, carry):
        highest, total, products = carry
        at = Positions(query, Range(first + i * X, _iota((1, X), 1)))
        scores = dot(unit, keys, (1, 1)) * (scale * LOG2_E)
        if bias is not None:
            scores = scores + at.bias(tiles, bias)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - higher[:, None])
        shrunk = jnp.exp2(highest - higher)
        total = total * shrunk + jnp.sum(weights, axis=1)
        if seeds is not None:
            weights = jnp.where(at.kept(tiles, seeds), weights, 0.0)
        products = products * shrunk[:, None] + dot(weights.astype(values.dtype), values, (1, 0))
        return higher, total, products

    kind = upcast(q.dtype)
    carry = jnp.full(Q, -jnp.inf, kind), jnp.zeros(Q, kind), jnp.zeros(x.shape, kind)
    highest, total, products = _for_keys_of_frame(tiles, first, parts, attend, carry)
    y[...] = (products * (tiles.kept_factor / total)[:, None]).astype(y.dtype)
    log_sum[...] = highest + jnp.log2(total)


def _for_keys_of_frame(tiles, first, parts, body, carry):
    """Folds `body(i, *tiles, carry)` over a frame's keys from `first`, X at a time.

    parts: arrays of the cached block and of the segment, or of the states. Each has a separate
    loop, because a conditional load would not overlap with products.
    """
    X, W = tiles.keys, tiles.window
    every = tiles.frame_keys // X
    inner = () if tiles.states else (jnp.clip((W - first) // X, 0, every),)
    bounds = 0, *inner, every
    for part, own in enumerate(parts):

        def step(i, carry, own=own, offset=part * W):
            rows = pl.ds(first + i * X - offset, X)
            return body(i, *(x[rows, :] for x in own), carry)

        carry = jax.lax.fori_loop(bounds[part], bounds[part + 1], step, carry)
    return carry


def backward_of_keys(
    tiles, offset, q, raw_k, k, v, bias, log_sum, factor, mean, dy, seeds, before, dk, dv, dscores
):
    """Computes the gradients of a tile of keys and values, and those of their scores.

    Inputs: q, dy (T, K); k, v (X, K), of which k has unit length; raw_k (X, K), if k was computed
    from it, or None; bias, log_sum, factor and seeds as in `forward`; mean (T,), the sum over keys
    of each weight times its gradient; before, the scores' gradients for keys before the `offset`,
    or None.
    Outputs: dk, dv (X, K); dscores (G, F, Q), the keys of each frame by its queries.
    """
    del before  # the same memory as dscores
    Q, X, frame = tiles.queries, tiles.keys, tiles.frame
    first = pl.program_id(0) * X + offset
    keys, values, key = k[...], v[...], Range(first, _iota((X, 1), 0))

    def store(start, of_scores):
        number = start // frame
        in_frame = (
            pl.ds(first - tiles.first_key(number * frame), X),
            pl.ds(start - number * frame, Q),
        )
        dscores[(number, *in_frame)] = of_scores.astype(dscores.dtype)

    def tile(i, carry):
        dkeys, dvalues = carry
        start = i * Q
        rows = pl.ds(start, Q)
        queries, gradient, own_factor = q[rows, :], dy[rows, :], factor[rows][None, :]
        at = Positions(Range(start, _iota((1, Q), 1)), key)
        scores = dot(keys, queries, (1, 1)) * (own_factor * LOG2_E)
        if bias is not None:
            scores = scores + at.bias(tiles, bias)
        weights = jnp.exp2(scores - log_sum[rows][None, :])
        dweights, kept = dot(values, gradient, (1, 1)), weights
        if seeds is not None:
            mask = at.kept(tiles, seeds)
            dweights = jnp.where(mask, dweights * tiles.kept_factor, 0.0)
            kept = jnp.where(mask, weights, 0.0)
        dvalues = dvalues + dot(kept.astype(v.dtype), gradient, (1, 0))
        of_scores = weights * (dweights - mean[rows][None, :])
        store(start, of_scores)
        dkeys = dkeys + dot((of_scores * own_factor).astype(k.dtype), queries, (1, 0))
        return dkeys, dvalues

    # Zeros for queries of the same frames that see no key of this tile.
    def no_tile(i, _):
        store(i * Q, jnp.zeros((X, Q), upcast(k.dtype)))

    seen = tiles.seeing(first, q.shape[0])
    low, high = seen[0] // Q, pl.cdiv(seen[1], Q)
    jax.lax.fori_loop(seen[0] // frame * (frame // Q), low, no_tile, None)
    jax.lax.fori_loop(high, pl.cdiv(seen[1], frame) * (frame // Q), no_tile, None)
    zeros = jnp.zeros(k.shape, upcast(k.dtype))
    dkeys, dvalues = jax.lax.fori_loop(low, high, tile, (zeros, zeros))
    if raw_k is not None:
        x = at_least_float32(raw_k[...])
        dkeys = unit_gradient(x, inverse_length(x), dkeys)
    dk[...], dv[...] = dkeys.astype(dk.dtype), (dvalues * tiles.kept_factor).astype(dv.dtype)


def backward_of_queries(tiles, q, parts, scale, dscores, dq, dscale):
    """Computes the gradients of the queries of a frame, and their part of the scale's.

    Inputs: q (Q, K); parts, keys as in `forward`; scale (); dscores (F, Q). Outputs: dq (Q, K),
    dscale ().
    """
    X = tiles.keys

    def add(i, keys, dqueries):
        return dqueries + dot(dscores[pl.ds(i * X, X), :], keys, (0, 0))

    x, first = at_least_float32(q[...]), tiles.first_key(pl.program_id(0) * tiles.frame)
    zeros = jnp.zeros(x.shape, x.dtype)
    dqueries = _for_keys_of_frame(tiles, first, parts, add, zeros)
    factor = query_factor(tiles, x)
    dscale[...] = jnp.sum(dqueries * x * factor)
    dqueries = dqueries * jnp.abs(scale[...])
    x_gradient = unit_gradient(x, factor, dqueries) if tiles.unit else dqueries * factor
    dq[...] = x_gradient.astype(dq.dtype)
