"""Windowed self-attention as a Pallas TPU kernel.

Plain counterpart: `brt.models.ops.window_attention` (tests/models/fast/test_attention_kernels.py).

Between the projections, (B, T, A), everything stays in the chip's vector memory (VMEM): unit
lengths, the learned scale, softmax, dropout. A grid step, in `window_bodies`, is one chunk of
queries of the heads that share 128 lanes; the W keys before it stay in VMEM from earlier grid
steps.

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

from brt.models.fast.kernels import window_bodies
from brt.models.fast.kernels.parts import (
    COMPILER,
    Dropout,
    Heads,
    TileDropout,
    interpreted,
    lane_scale,
    on_each_device,
    summed_over_batch,
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
        functools.partial(window_bodies.forward, heads, dropout),
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
        functools.partial(window_bodies.backward, heads, dropout),
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
