"""Windowed self-attention as a Pallas TPU kernel.

Plain counterpart: `brt.models.ops.window_attention` (tests/models/fast/test_attention_kernels.py).

Between the projections, (B, T, A), everything stays in the chip's vector memory (VMEM): unit
lengths, the learned scale, softmax, dropout. A grid step is one chunk of queries of the heads that
share 128 lanes; the W keys before it stay in VMEM from earlier grid steps.

Scores are transposed: keys along the first axis. A number of each query (maximum, sum, log-sum-exp)
is then one vector register for 128 queries instead of 16. A block of Q keys and Q queries goes from
its scores to its gradients in registers, by the log-sum-exp of the forward pass.

Compiled for v4 (8 heads of 128, W = 512, T = 4,096, bfloat16, dropout) the forward pass has 64 grid
steps of 4,368 bundles of instructions, the backward pass 64 of 8,261: 0.40 M for each of the two
cores. Bundles do not show waiting for memory; no TPU has run it.

Axes as in `parts`, and C tokens of a chunk, a divisor of W    X = W + Q
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels.parts import (
    COMPILER,
    Dropout,
    Heads,
    TileDropout,
    dot,
    head_masks,
    interpreted,
    inverse_length,
    lane_scale,
    on_each_device,
    only,
    summed_over_batch,
    unit_gradient,
    upcast,
)
from brt.models.ops import at_least_float32, joined_heads, window_table
from brt.models.sizes import TILE, tile_size

ROWS = 16
"""Of a vector register of bfloat16."""
CHUNK = 256
"""Most tokens of a grid step, if the window is longer than two."""
MOST_BYTES, MOST_HEADS = 2**20, 2
"""Limits of a grid step, if a window is longer than a chunk: bytes of its keys once for each head,
and heads, that fit into 16 MiB of VMEM."""


def misfit(heads: Heads, window: int, dtype: DTypeLike) -> str | None:
    if window % TILE and (window > TILE or (window % ROWS and not heads.interpret)):
        return f"window = {window} is neither a multiple of {TILE} nor, below it, of {ROWS}"
    N, size = heads.per_step, jnp.dtype(dtype).itemsize
    is_large = window * heads.lanes * N * size > MOST_BYTES or N > MOST_HEADS
    if is_large and window > CHUNK and not heads.interpret:
        what = f"window = {window} with heads of {heads.head_size} in {jnp.dtype(dtype)}"
        return f"{what} does not fit into VMEM"
    return heads.misfit()


def chunk_size(window: int) -> int:
    """Returns C, the tokens of a grid step."""
    if window <= 2 * CHUNK:
        return window
    return next(size for size in range(CHUNK, 0, -TILE) if window % size == 0)


def attend_to_window(
    heads: Heads,
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    cached_k_BWHK: jax.Array,
    cached_v_BWHK: jax.Array,
    scale_H: jax.Array,
    bias_HW: jax.Array,
    keep: TileDropout | None = None,
) -> jax.Array:
    """Returns the `attended_BTHK` of `ops.window_attention`, whose `window` is cached_k, cached_v.

    Args:
        heads: `qk_norm`: queries and keys get unit length.
        bias_HW: of the distances 1 ... W.
        keep: dropout of the weights, with seeds for each tile of the window.
    """
    arrays = map(joined_heads, (q_BTHK, k_BTHK, v_BTHK, cached_k_BWHK, cached_v_BWHK))
    return _attend(heads, *arrays, scale_H, bias_HW, keep).reshape(q_BTHK.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(heads, *inputs):
    return _forward(heads, *inputs)[0]


_INPUTS = ("BTA", "BTA", "BTA", "BWA", "BWA", "H", "HW", "H")
_LOG_SUM = "BHTNC"


def _forward(heads, *inputs):
    run = functools.partial(_forward_call, heads)
    y, log_sum = on_each_device(heads, run, _INPUTS, ("BTA", _LOG_SUM))(*inputs)
    return y, (*inputs, log_sum, y)


def _backward(heads, saved, dy):
    run = functools.partial(_backward_call, heads)
    inputs = *_INPUTS, _LOG_SUM, "BTA", "BTA"
    return *on_each_device(heads, run, inputs, _INPUTS[:7])(*saved, dy), None


def _forward_call(heads, q, k, v, cached_k, cached_v, scale_H, bias_HW, keep):
    L, W = heads.lanes, cached_k.shape[1]
    C = chunk_size(W)
    G = q.shape[1] // C
    chunk = pl.BlockSpec((1, C, L), lambda p, b, g: (b, g, p))
    tables = lane_scale(heads, scale_H, q.dtype), _table(at_least_float32(bias_HW))
    inputs = [q, k, v, cached_k, cached_v, *tables]
    specs = [chunk, chunk, chunk, _IN_HBM, _IN_HBM, *_head_specs(heads, W)]
    dropout = Dropout(heads, keep)
    P, N = heads.num_heads // heads.per_step, heads.per_step
    return pl.pallas_call(
        functools.partial(_forward_kernel, heads, dropout),
        grid=(P, len(q), G),
        in_specs=[*specs, *dropout.specs],
        out_specs=[chunk, _log_sum_spec(N, C, lambda g: g)],
        out_shape=[
            jax.ShapeDtypeStruct(v.shape, v.dtype),
            jax.ShapeDtypeStruct((len(q), P, G, N, C), upcast(q.dtype)),
        ],
        scratch_shapes=[pltpu.VMEM((W + C, L), k.dtype), pltpu.VMEM((W + C, L), v.dtype)],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="window_attention_forward",
    )(*inputs, *dropout.inputs)


def _backward_call(heads, q, k, v, cached_k, cached_v, scale_H, bias_HW, keep, log_sum, y, dy):
    L, W = heads.lanes, cached_k.shape[1]
    C = chunk_size(W)
    G, M = q.shape[1] // C, W // C  # chunks of the segment and of the window

    # Chunks come in reverse, each with the keys and values of W tokens earlier.
    def current(p, b, g):
        return b, G - 1 - g, p

    def early(p, b, g):
        return b, jnp.maximum(G - 1 - M - g, 0), p

    def from_cache(p, b, g):
        return b, jnp.minimum(G - 1 - g, M - 1), p

    chunk, before, cached = (
        pl.BlockSpec((1, C, L), index) for index in (current, early, from_cache)
    )
    table_HXQ, of_table = jax.vjp(_table, at_least_float32(bias_HW))
    tables = lane_scale(heads, scale_H, q.dtype), table_HXQ
    inputs = [*tables, log_sum, q, k, y, dy, k, v, cached_k, cached_v, k, v]
    log_sum_spec = _log_sum_spec(heads.per_step, C, lambda g: G - 1 - g)
    specs = [*_head_specs(heads, W), log_sum_spec, *[chunk] * 4]
    specs += [before, before, cached, cached, _IN_HBM, _IN_HBM]
    dropout = Dropout(heads, keep)
    dq, dk, dv, dcached_k, dcached_v, dscale_P1L, dtable_HXQ = pl.pallas_call(
        functools.partial(_backward_kernel, heads, dropout),
        grid=(heads.num_heads // heads.per_step, len(q), G),
        in_specs=[*specs, *dropout.specs],
        out_specs=[chunk, chunk, chunk, _IN_HBM, _IN_HBM, *_head_specs(heads, W)],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v, cached_k, cached_v, *tables)
        ],
        scratch_shapes=[
            pltpu.VMEM((W + C, L), dtype)
            for dtype in (k.dtype, v.dtype, upcast(k.dtype), upcast(v.dtype))
        ],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="window_attention_backward",
    )(*inputs, *dropout.inputs)
    dscale_H = dscale_P1L.reshape(heads.num_heads, -1).sum(axis=1)
    dscale_H = dscale_H * jnp.sign(scale_H) * heads.factor
    dscale_H, dbias_HW = summed_over_batch(heads, dscale_H, *of_table(dtable_HXQ))
    dscale_H, dbias_HW = dscale_H.astype(scale_H.dtype), dbias_HW.astype(bias_HW.dtype)
    return dq, dk, dv, dcached_k, dcached_v, dscale_H, dbias_HW


_attend.defvjp(_forward, _backward)

_IN_HBM = pl.BlockSpec(memory_space=pl.ANY)
"""For arrays that are copied once for each batch element."""


def _table(bias_HW):
    """Returns the bias of a tile's queries and of the keys that they see, (H, X, Q)."""
    W = bias_HW.shape[1]
    return jnp.swapaxes(window_table(bias_HW, tile_size(W)), 1, 2)


def _head_specs(heads, W):
    N, Q = heads.per_step, tile_size(W)
    return (
        pl.BlockSpec((1, 1, heads.lanes), lambda p, b, g: (p, 0, 0)),
        pl.BlockSpec((N, W + Q, Q), lambda p, b, g: (p, 0, 0), pipeline_mode=pl.Buffered(1)),
    )


def _log_sum_spec(N, C, chunk_of_step):
    """Returns the blocks of the softmax's log-sum-exp, (B, P, G, N, C)."""
    return pl.BlockSpec((1, 1, 1, N, C), lambda p, b, g: (b, p, chunk_of_step(g), 0, 0))


# A grid step: one chunk of queries.


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


def _forward_kernel(heads, dropout, q, k, v, cached_k, cached_v, scale, bias, *rest):
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


def _backward_kernel(heads, dropout, scale, bias, log_sum, q, k, y, dy, *rest):
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
