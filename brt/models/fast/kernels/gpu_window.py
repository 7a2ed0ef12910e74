"""The computation of a grid step of windowed self-attention on a GPU: the mathematics of tiles.

`gpu_launch` makes kernels of these functions. Nothing here depends on the compiler of the kernels
but `pl.program_id` and slices of references, so that another one can be put under it.

A *frame* is a tile of Q queries with the W + Q keys that its queries see. The keys of a segment
stand behind the W cached keys: frame g has the keys g * Q ... g * Q + W + Q - 1. Scores are base-2
logarithms: a GPU has an instruction for 2^x.

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


def kept_weights(tiles: Tiles, seeds: Any, query: Any, key: "Range") -> jax.Array:
    """Returns which weights are kept.

    query: positions in the block of W, and key: in the pair of blocks, of 2W, as in
    `ops.window_table`; int32 that broadcast. Keys j and j + 8 share a number of 32 bits, because a
    thread has both, whether keys are rows or columns of the scores.
    """
    of_key = key.start // 2 + (key.step >> 4) * 8 + (key.step & 7)
    bits = random_bits((query * tiles.window + of_key).astype(jnp.uint32), seeds[0], seeds[1])
    half = jnp.where((key.step & 8) == 0, bits & np.uint32(HALF - 1), bits >> np.uint32(16))
    return half < np.uint32(round((1 - tiles.rate) * HALF))


# Tiles.


class Range(NamedTuple):
    """Positions start + step of a tile, a multiple of 16 and 0, 1, 2, ... along an axis.

    They stay apart, so that the compiler finds equal numbers in the registers of a thread.
    """

    start: int | jax.Array
    step: jax.Array

    def after(self, start: int | jax.Array) -> Any:
        return (self.start - start) + self.step


def _iota(shape, axis):
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


class Positions(NamedTuple):
    """Queries and keys of a tile of scores.

    query: in the segment. key: in the cached block and the segment.
    """

    query: Range
    key: Range

    def bias(self, tiles: Tiles, bias: Any) -> jax.Array:
        """Returns the bias of each score; bias: of `padded_bias`."""
        nearest = self.query.start - self.key.start + (tiles.window + tiles.frame - 1)
        return bias[nearest + (self.query.step - self.key.step)]

    def kept(self, tiles: Tiles, seeds: Any) -> jax.Array:
        block = self.query.start // tiles.window * tiles.window
        key = self.key._replace(start=self.key.start - block)
        return kept_weights(tiles, seeds, self.query.after(block), key)


def forward(tiles, q, k, v, cached_k, cached_v, scale, bias, *rest):
    """Computes the queries of a frame.

    Inputs: q (Q, K); k and v (T, K); cached_k and cached_v (W, K); scale (); bias (W + 2Q,); seeds
    (2,) if there is dropout. Keys have unit length already.
    Outputs: y (Q, K); log_sum (Q,), the logarithm of the sum of exponentials; and factor (Q,), the
    product of the factors of q in the scores.
    """
    *seeds, y, log_sum, factor = rest
    Q, X = tiles.frame, tiles.keys
    start = pl.program_id(0) * Q
    x = at_least_float32(q[...])
    of_query, scale = query_factor(tiles, x), jnp.abs(scale[...])
    unit = (x * of_query).astype(q.dtype)
    factor[...] = of_query[:, 0] * scale
    query = Range(start, _iota((Q, 1), 0))

    def attend(i, keys, values, carry):
        highest, total, products = carry
        at = Positions(query, Range(start + i * X, _iota((1, X), 1)))
        scores = dot(unit, keys, (1, 1)) * (scale * LOG2_E) + at.bias(tiles, bias)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - higher[:, None])
        shrunk = jnp.exp2(highest - higher)
        total = total * shrunk + jnp.sum(weights, axis=1)
        if seeds:
            weights = jnp.where(at.kept(tiles, seeds[0]), weights, 0.0)
        products = products * shrunk[:, None] + dot(weights.astype(v.dtype), values, (1, 0))
        return higher, total, products

    kind = upcast(q.dtype)
    carry = jnp.full(Q, -jnp.inf, kind), jnp.zeros(Q, kind), jnp.zeros(x.shape, kind)
    carry = _for_keys_of_frame(tiles, start, ((cached_k, cached_v), (k, v)), attend, carry)
    highest, total, products = carry
    y[...] = (products * (tiles.kept_factor / total)[:, None]).astype(y.dtype)
    log_sum[...] = highest + jnp.log2(total)


def _for_keys_of_frame(tiles, start, arrays, body, carry):
    """Folds `body(i, *tiles, carry)` over the keys of the frame that begins at `start`, X a time.

    arrays: some of the cached block, and as many of the segment. Each has a loop, because a load
    from one or the other would not overlap with products.
    """
    X, W = tiles.keys, tiles.window
    every = (W + tiles.frame) // X
    bounds = 0, jnp.clip((W - start) // X, 0, every), every
    for part, own in enumerate(arrays):

        def step(i, carry, own=own, offset=part * W):
            rows = pl.ds(start + i * X - offset, X)
            return body(i, *(x[rows, :] for x in own), carry)

        carry = jax.lax.fori_loop(bounds[part], bounds[part + 1], step, carry)
    return carry


def backward_of_keys(tiles, is_cache, q, raw_k, k, v, bias, log_sum, factor, mean, dy, *rest):
    """Computes the gradients of a tile of keys and values, and those of their scores.

    Inputs: q, dy (T, K); raw_k, k, v (X, K), of which k has unit length; bias (W + 2Q,); log_sum
    and factor as of `forward`; mean (T,), the sum over keys of each weight times its gradient;
    seeds (2,) if there is dropout; of a segment the scores' gradients for the cached keys.
    Outputs: dk, dv (X, K); dscores (G, F, Q), the keys of each frame by its queries.
    """
    *seeds, dk, dv, dscores = rest if is_cache else (*rest[:-4], *rest[-3:])
    Q, X, W, frame = tiles.queries, tiles.keys, tiles.window, tiles.frame
    first, tokens = pl.program_id(0) * X + (0 if is_cache else W), q.shape[0]
    keys, values, key = k[...], v[...], Range(first, _iota((X, 1), 0))

    def store(start, of_scores):
        number = start // frame
        in_frame = pl.ds(first - number * frame, X), pl.ds(start - number * frame, Q)
        dscores[(number, *in_frame)] = of_scores.astype(dscores.dtype)

    def tile(i, carry):
        dkeys, dvalues = carry
        start = i * Q
        rows = pl.ds(start, Q)
        queries, gradient, own_factor = q[rows, :], dy[rows, :], factor[rows][None, :]
        at = Positions(Range(start, _iota((1, Q), 1)), key)
        scores = dot(keys, queries, (1, 1)) * (own_factor * LOG2_E) + at.bias(tiles, bias)
        weights = jnp.exp2(scores - log_sum[rows][None, :])
        dweights, kept = dot(values, gradient, (1, 1)), weights
        if seeds:
            mask = at.kept(tiles, seeds[0])
            dweights = jnp.where(mask, dweights * tiles.kept_factor, 0.0)
            kept = jnp.where(mask, weights, 0.0)
        dvalues = dvalues + dot(kept.astype(v.dtype), gradient, (1, 0))
        of_scores = weights * (dweights - mean[rows][None, :])
        store(start, of_scores)
        dkeys = dkeys + dot((of_scores * own_factor).astype(k.dtype), queries, (1, 0))
        return dkeys, dvalues

    # Queries of the same frames that see none of the keys: zeros.
    def no_tile(i, _):
        store(i * Q, jnp.zeros((X, Q), upcast(k.dtype)))

    seen = jnp.maximum(first - W, 0), jnp.minimum(first + X, tokens)
    low, high = seen[0] // Q, pl.cdiv(seen[1], Q)
    jax.lax.fori_loop(seen[0] // frame * (frame // Q), low, no_tile, None)
    jax.lax.fori_loop(high, pl.cdiv(seen[1], frame) * (frame // Q), no_tile, None)
    zeros = jnp.zeros(k.shape, upcast(k.dtype))
    dkeys, dvalues = jax.lax.fori_loop(low, high, tile, (zeros, zeros))
    if tiles.unit and not is_cache:
        x = at_least_float32(raw_k[...])
        dkeys = unit_gradient(x, inverse_length(x), dkeys)
    dk[...], dv[...] = dkeys.astype(dk.dtype), (dvalues * tiles.kept_factor).astype(dv.dtype)


def backward_of_queries(tiles, q, k, cached_k, scale, dscores, dq, dscale):
    """Computes the gradients of the queries of a frame, and their part of the scale's.

    Inputs: q (Q, K), k (T, K), cached_k (W, K), scale (), dscores (F, Q). Outputs: dq (Q, K),
    dscale ().
    """
    X = tiles.keys

    def add(i, keys, dqueries):
        return dqueries + dot(dscores[pl.ds(i * X, X), :], keys, (0, 0))

    x = at_least_float32(q[...])
    dqueries, start = jnp.zeros(x.shape, x.dtype), pl.program_id(0) * tiles.frame
    dqueries = _for_keys_of_frame(tiles, start, ((cached_k,), (k,)), add, dqueries)
    factor = query_factor(tiles, x)
    dscale[...] = jnp.sum(dqueries * x * factor)
    dqueries = dqueries * jnp.abs(scale[...])
    x_gradient = unit_gradient(x, factor, dqueries) if tiles.unit else dqueries * factor
    dq[...] = x_gradient.astype(dq.dtype)
