"""The computation of a grid step of windowed self-attention (`window`): one chunk of queries.

Scores are transposed: keys along the first axis. A number of each query (maximum, sum, log-sum-exp)
is then one vector register for 128 queries instead of 16. A block of Q keys and Q queries goes from
its scores to its gradients in registers, by the log-sum-exp of the forward pass.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from brt.models.fast.kernels.parts import (
    dot,
    head_masks,
    inverse_length,
    only,
    tile_size,
    unit_gradient,
)
from brt.models.ops import at_least_float32


def _lanes(heads, *caches_BWA):
    start = pl.multiple_of(pl.program_id(0) * heads.lanes, heads.lanes)
    return [x_BWA.at[pl.program_id(1), :, pl.ds(start, heads.lanes)] for x_BWA in caches_BWA]


def _move(reference, size, up):
    """Moves all rows up or down by `size`, in parts that do not overlap."""
    parts = range(reference.shape[0] // size - 1)
    for part in reversed(parts) if up else parts:
        low, high = pl.ds(part * size, size), pl.ds((part + 1) * size, size)
        if up:
            reference[high] = reference[low]
        else:
            reference[low] = reference[high]


def _for_each_tile(W, C, tile):
    """Calls `tile(number, rows, blocks)` for each tile of a chunk.

    rows: its queries. blocks: the keys they see, Q at a time, and their part of the bias.
    """
    Q = tile_size(W)
    for number in range(C // Q):
        seen = range(W // Q + 1)
        blocks = [(pl.ds((number + i) * Q, Q), pl.ds(i * Q, Q)) for i in seen]
        tile(number, pl.ds(number * Q, Q), blocks)


def _rows(reduce, x):
    return reduce(x.reshape(-1, 8, x.shape[1]), axis=0) if len(x) % 8 == 0 else x


def forward(heads, dropout, q, k, v, cached_k, cached_v, scale, bias, *rest):
    *keep, y, log_sum, keys, values = rest
    C, masks = q.shape[1], head_masks(heads)
    W = len(keys) - C
    caches = _lanes(heads, cached_k, cached_v)  # outside `when`, for interpreted kernels

    @pl.when(pl.program_id(2) == 0)
    def _():
        for cached, buffer in zip(caches, (keys, values)):
            pltpu.sync_copy(cached, buffer.at[pl.ds(0, W)])

    @pl.when(pl.program_id(2) > 0)
    def _():
        _move(keys, C, up=False)
        _move(values, C, up=False)

    x = at_least_float32(k[0])
    keys[W:], values[W:] = (x * inverse_length(heads, x)).astype(keys.dtype), v[0]
    Q, first_head = tile_size(W), pl.program_id(0) * heads.per_step
    first = pl.program_id(2) * (C // Q)

    def tile(number, rows, blocks):
        x = at_least_float32(q[0, rows])
        queries = x * inverse_length(heads, x) * scale[0]
        total = jnp.zeros_like(x)
        for head, mask in enumerate(masks):
            own = only(queries, mask).astype(q.dtype)
            scores = [dot(keys[seen], own, (1, 1)) + bias[head, part] for seen, part in blocks]
            highest = functools.reduce(jnp.maximum, (_rows(jnp.max, x) for x in scores))
            highest = jnp.max(highest, axis=0, keepdims=True)
            sums = products = jnp.zeros((), x.dtype)
            drawn = dropout.of_tile(
                keep, first_head + head, jax.lax.rem(first + number, jnp.int32(W // Q))
            )
            for i, (seen, _) in enumerate(blocks):
                weights = jnp.exp(scores[i] - highest)
                sums = sums + _rows(jnp.sum, weights)
                weights = drawn(Q, Q)(weights)
                products = products + dot(values[seen], weights.astype(v.dtype), (0, 0))
            sums = jnp.sum(sums, axis=0, keepdims=True)
            total = total + only((products * (dropout.factor / sums)).T, mask)
            log_sum[0, 0, 0, pl.ds(head, 1), rows] = highest + jnp.log(sums)
        y[0, rows] = total.astype(y.dtype)

    _for_each_tile(W, C, tile)


def backward(heads, dropout, scale, bias, log_sum, q, k, y, dy, *rest):
    early_k, early_v, cached_k, cached_v, all_k, all_v, *others = rest
    *keep, dq, dk, dv, dcached_k, dcached_v, dscale, dbias, keys, values, dkeys, dvalues = others
    C, masks = q.shape[1], head_masks(heads)
    W = len(keys) - C
    step, steps, chunks = pl.program_id(2), pl.num_programs(2), W // C
    dcaches = _lanes(heads, dcached_k, dcached_v)
    last_block = [x.at[steps * C - W : steps * C] for x in _lanes(heads, all_k, all_v)]

    @pl.when((pl.program_id(1) == 0) & (step == 0))
    def _():
        dscale[...], dbias[...] = jnp.zeros_like(dscale), jnp.zeros_like(dbias)

    def unit(k):
        x = at_least_float32(k)
        return (x * inverse_length(heads, x)).astype(keys.dtype)

    @pl.when(step == 0)
    def _():
        dkeys[...], dvalues[...] = jnp.zeros_like(dkeys), jnp.zeros_like(dvalues)
        for x, buffer in zip(last_block, (keys, values)):
            pltpu.sync_copy(x, buffer.at[C:])

        def normalise(part, _):
            rows = pl.ds(pl.multiple_of(part * C, C), C)
            keys[rows] = unit(keys[rows])

        jax.lax.fori_loop(1, chunks + 1, normalise, None)

    @pl.when(step > 0)
    def _():
        for buffer in (keys, values, dkeys, dvalues):
            _move(buffer, C, up=True)
        for sums in (dkeys, dvalues):
            sums[:C] = jnp.zeros_like(sums[:C])

    @pl.when(step < steps - chunks)
    def _():
        keys[:C], values[:C] = unit(early_k[0]), early_v[0]

    @pl.when(step >= steps - chunks)
    def _():
        keys[:C], values[:C] = cached_k[0], cached_v[0]

    Q, first_head = tile_size(W), pl.program_id(0) * heads.per_step
    first = (steps - 1 - step) * (C // Q)

    def tile(number, rows, blocks):
        x, gradient = at_least_float32(q[0, rows]), at_least_float32(dy[0, rows])
        factor = inverse_length(heads, x)
        unit = x * factor
        queries = unit * scale[0]
        along_y = (gradient * at_least_float32(y[0, rows])).T
        dqueries = jnp.zeros_like(x)
        for head, mask in enumerate(masks):
            own = only(queries, mask).astype(q.dtype)
            dy_own = only(gradient * dropout.factor, mask).astype(q.dtype)
            own_rows = slice(head * heads.head_size, (head + 1) * heads.head_size)
            mean = jnp.sum(along_y[own_rows], axis=0, keepdims=True)
            log_sum_1Q = log_sum[0, 0, 0, pl.ds(head, 1), rows]
            products = jnp.zeros((), x.dtype)
            drawn = dropout.of_tile(
                keep, first_head + head, jax.lax.rem(first + number, jnp.int32(W // Q))
            )
            for seen, part in blocks:
                dropped = drawn(Q, Q)
                scores = dot(keys[seen], own, (1, 1)) + bias[head, part]
                weights = jnp.exp(scores - log_sum_1Q)
                dweights = dropped(dot(values[seen], dy_own, (1, 1)))
                dvalues[seen] += dot(dropped(weights).astype(q.dtype), dy_own, (1, 0))
                dscores = weights * (dweights - mean)
                dbias[head, part] += dscores
                dscores = dscores.astype(q.dtype)
                dkeys[seen] += dot(dscores, own, (1, 0))
                products = products + dot(keys[seen], dscores, (0, 0))
            dqueries = dqueries + only(products.T, mask)
        dscale[0] += jnp.sum(dqueries * unit, axis=0, keepdims=True)
        dq[0, rows] = unit_gradient(heads, x, dqueries * scale[0], factor).astype(dq.dtype)

    _for_each_tile(W, C, tile)
    dunit = unit_gradient(heads, at_least_float32(k[0]), dkeys[W:])
    dk[0], dv[0] = dunit.astype(dk.dtype), dvalues[W:].astype(dv.dtype)

    @pl.when(step == steps - 1)
    def _():
        for sums, buffer, gradient in zip((dkeys, dvalues), (keys, values), dcaches):
            buffer[:W] = sums[:W].astype(buffer.dtype)
            pltpu.sync_copy(buffer.at[pl.ds(0, W)], gradient)
