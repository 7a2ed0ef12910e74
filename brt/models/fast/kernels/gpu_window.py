"""The computation of a grid step of windowed self-attention on a GPU: the mathematics of tiles.

`gpu_launch` makes kernels of these functions. Nothing here depends on the compiler of the kernels
but `pl.program_id` and slices of references, so that another one can be put under it.

A *frame* is a tile of Q queries with the W + Q keys that its queries see. The keys of a segment
stand behind the W cached keys: frame g has the keys g * Q ... g * Q + W + Q - 1. Scores are base-2
logarithms: a GPU has an instruction for 2^x.

Axes as in `brt.models`, and Q queries of a tile    X keys of a tile    F keys of a frame    G frames
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
"""Numbers of 16 bits, of which each weight gets one."""


class Tiles(NamedTuple):
    """Static sizes of a kernel.

    window: W. frame: queries of a frame. queries, keys: of a tile in the loop of this kernel.
    unit: whether queries and keys get unit length; otherwise queries are divided by sqrt(K).
    rate: of dropout.
    """

    window: int
    frame: int
    queries: int
    keys: int
    unit: bool
    rate: float

    @property
    def kept_factor(self) -> float:
        return 1 / (1 - self.rate)


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

    Multiplications and shifts by turns, as in the last step of MurmurHash3, with the second seed
    between them: 11 integer operations. Threefry, which interpreted TPU kernels draw with, needs
    over 100.
    """
    x = counter ^ first
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) + second
    x = x * np.uint32(0x735A2D97)
    return x ^ (x >> np.uint32(15))


def kept_weights(tiles: Tiles, seeds: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """Returns which weights are kept.

    query: positions in the block of W, and key: in the pair of blocks, of 2W, as in
    `ops.window_table`; int32 that broadcast. Two neighbouring keys share a number of 32 bits.
    """
    counter = (query * tiles.window + (key >> 1)).astype(jnp.uint32)
    bits = random_bits(counter, seeds[0], seeds[1])
    half = (bits >> ((key & 1) << 4).astype(jnp.uint32)) & np.uint32(HALF - 1)
    return half < np.uint32(round((1 - tiles.rate) * HALF))


# Tiles.


def _iota(shape, axis):
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


class Positions(NamedTuple):
    """Queries and keys of a tile of scores, int32 that broadcast.

    query: position in the segment. key: in the cached block and the segment. block: the first
    position of the queries' block.
    """

    query: jax.Array
    key: jax.Array
    block: jax.Array

    def bias(self, tiles: Tiles, bias: Any) -> jax.Array:
        """Returns the bias of each score; bias: of `padded_bias`."""
        return bias[self.query - self.key + (tiles.window + tiles.frame - 1)]

    def kept(self, tiles: Tiles, seeds: Any) -> jax.Array:
        return kept_weights(tiles, seeds, self.query - self.block, self.key - self.block)


def forward(tiles, q, k, v, cached_k, cached_v, k_factor, scale, bias, *rest):
    """Computes the queries of a frame.

    Inputs: q (Q, K); k and v (T, K); cached_k and cached_v (W, K); k_factor (T,), which multiplies
    the scores of k; scale (); bias (W + 2Q,); seeds (2,) if there is dropout.
    Outputs: y (Q, K), log_sum (Q,), the logarithm of the sum of exponentials, and factor (Q,), the
    product of the factors of q in the scores.
    """
    *seeds, y, log_sum, factor = rest
    Q, X, W = tiles.frame, tiles.keys, tiles.window
    start = pl.program_id(0) * Q
    x = at_least_float32(q[...])
    of_query = query_factor(tiles, x)
    unit = (x * of_query).astype(q.dtype)
    scale = jnp.abs(scale[...])
    factor[...] = of_query[:, 0] * scale
    query, block = start + _iota((Q, 1), 0), start // W * W

    def attend(first, keys, values, k_factor, carry):
        highest, total, products = carry
        at = Positions(query, first + _iota((1, X), 1), block)
        scores = dot(unit, keys, (1, 1)) * (scale * LOG2_E * k_factor)
        scores = scores + at.bias(tiles, bias)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - higher[:, None])
        shrunk = jnp.exp2(highest - higher)
        total = total * shrunk + jnp.sum(weights, axis=1)
        if seeds:
            weights = jnp.where(at.kept(tiles, seeds[0]), weights, 0.0)
        products = products * shrunk[:, None] + dot(weights.astype(v.dtype), values, (1, 0))
        return higher, total, products

    def of_cache(i, carry):
        first = start + i * X
        rows = pl.ds(first, X)
        return attend(first, cached_k[rows, :], cached_v[rows, :], 1.0, carry)

    def of_segment(i, carry):
        first = start + i * X
        rows = pl.ds(first - W, X)
        return attend(first, k[rows, :], v[rows, :], k_factor[rows][None, :], carry)

    kind = upcast(q.dtype)
    carry = jnp.full(Q, -jnp.inf, kind), jnp.zeros(Q, kind), jnp.zeros(x.shape, kind)
    cached, every = jnp.clip((W - start) // X, 0, (W + Q) // X), (W + Q) // X
    carry = jax.lax.fori_loop(0, cached, of_cache, carry)
    highest, total, products = jax.lax.fori_loop(cached, every, of_segment, carry)
    y[...] = (products * (tiles.kept_factor / total)[:, None]).astype(y.dtype)
    log_sum[...] = highest + jnp.log2(total)


def backward_of_keys(tiles, q, k, v, cached_k, cached_v, scale, bias, *rest):
    """Computes the gradients of a tile of keys and values, and those of their scores.

    Inputs as of `forward`, but all queries, (T, K); and log_sum, factor, mean (T,), the sum over
    keys of each weight times its gradient; dy (T, K).
    Outputs: dk and dv (T, K), dcached_k and dcached_v (W, K), unit_k (T, K), keys of unit length,
    and dscores (G, F, Q), the keys of each frame by its queries.
    """
    *seeds, log_sum, factor, mean, dy, dk, dv, dcached_k, dcached_v, unit_k, dscores = rest
    Q, X, W, frame = tiles.queries, tiles.keys, tiles.window, tiles.frame
    first, tokens = pl.program_id(0) * X, q.shape[0]
    is_cached = first < W
    cached, own = pl.ds(jnp.minimum(first, W - X), X), pl.ds(jnp.maximum(first - W, 0), X)
    key = first + _iota((X, 1), 0)

    def chosen(cached_x, x):
        return jnp.where(is_cached, cached_x[cached, :], x[own, :])

    x, values = at_least_float32(chosen(cached_k, k)), chosen(cached_v, v)
    k_factor = jnp.ones_like(x[:, :1])
    if tiles.unit:
        k_factor = jnp.where(is_cached, k_factor, inverse_length(x))
    unit = (x * k_factor).astype(k.dtype)

    def tile(i, carry):
        dkeys, dvalues = carry
        start = i * Q
        rows = pl.ds(start, Q)
        queries, gradient, own_factor = q[rows, :], dy[rows, :], factor[rows][None, :]
        at = Positions(start + _iota((1, Q), 1), key, start // W * W)
        scores = dot(unit, queries, (1, 1)) * (own_factor * LOG2_E) + at.bias(tiles, bias)
        weights = jnp.exp2(scores - log_sum[rows][None, :])
        dweights, kept = dot(values, gradient, (1, 1)), weights
        if seeds:
            mask = at.kept(tiles, seeds[0])
            dweights = jnp.where(mask, dweights * tiles.kept_factor, 0.0)
            kept = jnp.where(mask, weights, 0.0)
        dvalues = dvalues + dot(kept.astype(v.dtype), gradient, (1, 0))
        of_scores = weights * (dweights - mean[rows][None, :])
        number = start // frame
        in_frame = pl.ds(first - number * frame, X), pl.ds(start - number * frame, Q)
        dscores[(number, *in_frame)] = of_scores.astype(dscores.dtype)
        dkeys = dkeys + dot((of_scores * own_factor).astype(k.dtype), queries, (1, 0))
        return dkeys, dvalues

    low, high = jnp.maximum(first - W, 0) // Q, jnp.minimum(first + X, tokens) // Q
    zeros = jnp.zeros(x.shape, x.dtype)
    dunit, dvalues = jax.lax.fori_loop(low, high, tile, (zeros, zeros))
    dvalues = dvalues * tiles.kept_factor
    dkeys = unit_gradient(x, k_factor, dunit) if tiles.unit else dunit

    @pl.when(is_cached)
    def _():
        dcached_k[cached, :] = dunit.astype(k.dtype)
        dcached_v[cached, :] = dvalues.astype(v.dtype)

    @pl.when(jnp.logical_not(is_cached))
    def _():
        unit_k[own, :] = unit
        dk[own, :] = dkeys.astype(k.dtype)
        dv[own, :] = dvalues.astype(v.dtype)


def backward_of_queries(tiles, q, unit_k, cached_k, scale, dscores, dq, dscale):
    """Computes the gradients of the queries of a frame, and their part of the scale's.

    Inputs: q (Q, K), unit_k (T, K), cached_k (W, K), scale (), dscores (F, Q). Outputs: dq (Q, K),
    dscale ().
    """
    Q, X, W = tiles.frame, tiles.keys, tiles.window
    start = pl.program_id(0) * Q

    def add(i, keys, dqueries):
        return dqueries + dot(dscores[pl.ds(i * X, X), :], keys, (0, 0))

    def of_cache(i, dqueries):
        return add(i, cached_k[pl.ds(start + i * X, X), :], dqueries)

    def of_segment(i, dqueries):
        return add(i, unit_k[pl.ds(start + i * X - W, X), :], dqueries)

    x = at_least_float32(q[...])
    cached, every = jnp.clip((W - start) // X, 0, (W + Q) // X), (W + Q) // X
    dqueries = jax.lax.fori_loop(0, cached, of_cache, jnp.zeros(x.shape, x.dtype))
    dqueries = jax.lax.fori_loop(cached, every, of_segment, dqueries)
    factor = query_factor(tiles, x)
    dscale[...] = jnp.sum(dqueries * x * factor)
    dqueries = dqueries * jnp.abs(scale[...])
    x_gradient = unit_gradient(x, factor, dqueries) if tiles.unit else dqueries * factor
    dq[...] = x_gradient.astype(dq.dtype)
