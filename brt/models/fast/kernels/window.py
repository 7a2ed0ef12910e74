"""Windowed self-attention as a Pallas TPU kernel; plain form: `plain_window_attention`.

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
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels import window_bodies
from brt.models.fast.kernels.parts import (
    COMPILER,
    Heads,
    TileDropout,
    drawn_factors,
    interpreted,
    kept_tiles,
    lane_scale,
    on_each_device,
    seed_numbers,
    summed_over_batch,
    upcast,
)
from brt.models.ops import at_least_float32, attention, scaled_down_heads, unit_heads
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


class Attended(NamedTuple):
    """The result; the last block's keys, normalised, and values; on demand, all keys,
    normalised.
    """

    y_BTA: jax.Array
    last_keys_BWA: jax.Array
    last_values_BWA: jax.Array
    keys_BTA: jax.Array | None = None


def plain_window_attention(
    heads: Heads,
    with_keys: bool,
    q_BTA: jax.Array,
    k_BTA: jax.Array,
    v_BTA: jax.Array,
    cached_k_BWA: jax.Array,
    cached_v_BWA: jax.Array,
    scale_H: jax.Array,
    bias_HQX: jax.Array,
    keep: jax.Array | TileDropout | None = None,
) -> Attended:
    """Returns windowed self-attention of a segment block by block.

    Args:
        with_keys: whether to return the keys of all tokens.
        q_BTA, k_BTA, v_BTA: projections, not normalised; T is a multiple of W.
        cached_k_BWA, cached_v_BWA: keys, normalised, and values of the block before.
        scale_H: factor of the scores, used through its absolute value.
        bias_HQX: bias of query i of a tile for key j of the W + Q that it sees, W + i - j tokens
            before it; large and negative for hidden keys.
        keep: factors of the weights (dropout) of a window of one tile, (H, W, X), or seeds for each
            tile; no gradient reaches them.
    """
    W, H, K = cached_k_BWA.shape[1], heads.num_heads, heads.head_size

    def split(x_BTA):
        return x_BTA.reshape(*x_BTA.shape[:2], H, K)

    q_BTHK, k_BTHK, v_BTHK = split(q_BTA), split(k_BTA), split(v_BTA)
    q_BTHK = unit_heads(q_BTHK) if heads.qk_norm else scaled_down_heads(q_BTHK)
    k_BTHK = unit_heads(k_BTHK) if heads.qk_norm else k_BTHK
    if isinstance(keep, TileDropout):
        keep = drawn_factors(keep, W // TILE + 1, by_keys=True)
    keys = jnp.concatenate([split(cached_k_BWA), k_BTHK], axis=1)
    values = jnp.concatenate([split(cached_v_BWA), v_BTHK], axis=1)
    tiles = []
    Q = tile_size(W)
    for start in range(0, q_BTA.shape[1], Q):
        seen = slice(start, start + W + Q)
        row = start % W
        factors = None if keep is None else keep[:, row : row + Q]
        parts = q_BTHK[:, start : start + Q], keys[:, seen], values[:, seen]
        tiles.append(attention(*parts, scale_H, bias_HQX, factors))
    last_keys, last_values = (x[:, -W:].reshape(cached_k_BWA.shape) for x in (keys, values))
    y_BTA = jnp.concatenate(tiles, axis=1).reshape(q_BTA.shape)
    keys_BTA = k_BTHK.reshape(k_BTA.shape) if with_keys else None
    return Attended(y_BTA, last_keys, last_values, keys_BTA)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def window_attention(
    heads: Heads,
    with_keys: bool,
    q_BTA: jax.Array,
    k_BTA: jax.Array,
    v_BTA: jax.Array,
    cached_k_BWA: jax.Array,
    cached_v_BWA: jax.Array,
    scale_H: jax.Array,
    bias: jax.Array,
    keep: jax.Array | TileDropout | None = None,
) -> Attended:
    """Returns `plain_window_attention`, by the kernel.

    bias: (H, Q, X), or one for each data shard, (P, H, Q, X), with separate gradients.
    """
    inputs = q_BTA, k_BTA, v_BTA, cached_k_BWA, cached_v_BWA, scale_H, bias, keep
    return _forward(heads, with_keys, *inputs)[0]


_INPUTS = ("BTA", "BTA", "BTA", "BWA", "BWA", "H")
_OUTPUTS = ("BTA", "BWA", "BWA")
_LOG_SUM = "BHTNC"


def _inputs(bias):
    return *_INPUTS, "HQX" if bias.ndim == 3 else "BHQX", "HWX"


def _outputs(with_keys):
    return (*_OUTPUTS, "BTA") if with_keys else _OUTPUTS


def _forward(heads, with_keys, *inputs):
    run = functools.partial(_forward_call, heads, with_keys)
    outputs = *_outputs(with_keys), _LOG_SUM
    *attended, log_sum = on_each_device(heads, run, _inputs(inputs[6]), outputs)(*inputs)
    attended = Attended(*attended)
    return attended, (*inputs, log_sum, attended.y_BTA)


def _backward(heads, with_keys, saved, gradients):
    run = functools.partial(_backward_call, heads)
    outputs = _outputs(with_keys)
    whole = _inputs(saved[6])
    inputs = *whole, _LOG_SUM, "BTA", *outputs
    given = *saved, *gradients[: len(outputs)]
    return *on_each_device(heads, run, inputs, whole[:7])(*given), None


def _forward_call(heads, with_keys, q, k, v, cached_k, cached_v, scale_H, bias, keep):
    L, W = heads.lanes, cached_k.shape[1]
    C = chunk_size(W)
    G, M = q.shape[1] // C, W // C
    chunk = pl.BlockSpec((1, C, L), lambda p, b, g: (b, g, p))
    last = pl.BlockSpec((1, C, L), lambda p, b, g: (b, jnp.maximum(g - G + M, 0), p))
    inputs = [q, k, v, cached_k, cached_v, *_tables(heads, scale_H, bias, q.dtype)]
    specs = [chunk, chunk, chunk, _IN_HBM, _IN_HBM, *_head_specs(heads, W)]
    dropout = _Dropout(heads, keep, W)
    P, N = heads.num_heads // heads.per_step, heads.per_step
    y, last_keys, *all_keys, log_sum = pl.pallas_call(
        functools.partial(window_bodies.forward, heads, dropout, with_keys),
        grid=(P, len(q), G),
        in_specs=[*specs, *dropout.specs],
        out_specs=[chunk, last, *[chunk] * with_keys, _log_sum_spec(N, C, lambda g: g)],
        out_shape=[
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (v, cached_k, *[k] * with_keys)),
            jax.ShapeDtypeStruct((len(q), P, G, N, C), upcast(q.dtype)),
        ],
        scratch_shapes=[pltpu.VMEM((W + C, L), k.dtype), pltpu.VMEM((W + C, L), v.dtype)],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="window_attention_forward",
    )(*inputs, *dropout.inputs)
    return y, last_keys, v[:, -W:], *all_keys, log_sum


def _backward_call(heads, q, k, v, cached_k, cached_v, scale_H, bias, keep, log_sum, y, *gradients):
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

    def last(p, b, g):
        return b, jnp.maximum(M - 1 - g, 0), p

    chunk, before, cached, in_last_block = (
        pl.BlockSpec((1, C, L), index) for index in (current, early, from_cache, last)
    )
    tables = _tables(heads, scale_H, bias, q.dtype)
    gradients, of_keys = gradients[:3], gradients[3:]
    inputs = [*tables, log_sum, q, k, y, *gradients, k, v, cached_k, cached_v, k, v, *of_keys]
    log_sum_spec = _log_sum_spec(heads.per_step, C, lambda g: G - 1 - g)
    specs = [*_head_specs(heads, W), log_sum_spec, *[chunk] * 4, in_last_block, in_last_block]
    specs += [before, before, cached, cached, _IN_HBM, _IN_HBM]
    specs += [chunk] * len(of_keys)
    dropout = _Dropout(heads, keep, W)
    dq, dk, dv, dcached_k, dcached_v, dscale_P1L, dbias_HXQ = pl.pallas_call(
        functools.partial(window_bodies.backward, heads, dropout, len(of_keys)),
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
    (dscale_H,) = summed_over_batch(heads, dscale_H)
    if bias.ndim == 3:
        (dbias_HXQ,) = summed_over_batch(heads, dbias_HXQ)
    dscale_H = dscale_H.astype(scale_H.dtype)
    dbias = _transposed(dbias_HXQ).astype(bias.dtype).reshape(bias.shape)
    return dq, dk, dv, dcached_k, dcached_v, dscale_H, dbias


window_attention.defvjp(_forward, _backward)

_IN_HBM = pl.BlockSpec(memory_space=pl.ANY)
"""For arrays that are copied once for each batch element."""


def _tables(heads, scale_H, bias, dtype):
    bias_HQX = bias.reshape(bias.shape[-3:])
    return lane_scale(heads, scale_H, dtype), _transposed(at_least_float32(bias_HQX))


def _head_specs(heads, W):
    N, Q = heads.per_step, tile_size(W)
    return (
        pl.BlockSpec((1, 1, heads.lanes), lambda p, b, g: (p, 0, 0)),
        pl.BlockSpec((N, W + Q, Q), lambda p, b, g: (p, 0, 0), pipeline_mode=pl.Buffered(1)),
    )


def _log_sum_spec(N, C, chunk_of_step):
    """Returns the blocks of the softmax's log-sum-exp, (B, P, G, N, C)."""
    return pl.BlockSpec((1, 1, 1, N, C), lambda p, b, g: (b, p, chunk_of_step(g), 0, 0))


def _transposed(x_HQX):
    return jnp.swapaxes(x_HQX, 1, 2)


class _Dropout:
    """Dropout in a kernel: its inputs, and its factors of transposed weights."""

    def __init__(self, heads, keep, W):
        self.heads, self.tiles, self.rate = heads, W // tile_size(W), None
        self.inputs, self.specs = [], []
        if isinstance(keep, TileDropout):
            self.rate, self.inputs = keep.rate, [seed_numbers(keep)]
            self.specs = [pl.BlockSpec(memory_space=pltpu.SMEM)]
        elif keep is not None:
            blocks = at_least_float32(keep).reshape(*keep.shape[:2], -1, W)
            self.inputs = [jnp.moveaxis(blocks, 1, 3)]
            size = heads.per_step, *self.inputs[0].shape[1:]
            self.specs = [pl.BlockSpec(size, lambda p, b, g: (p, 0, 0, 0))]

    @property
    def factor(self):
        return 1.0 if self.rate is None else 1 / (1 - self.rate)

    def of_tile(self, inputs, head, tile):
        """Returns a function from a block's number to a function that drops the block's weights.

        It must be called for the blocks of keys in order. tile: number in the segment.
        """
        if not inputs:
            return lambda block: lambda weights: weights
        if self.rate is None:
            return lambda block: lambda weights: weights * inputs[0][head, block]
        number = pl.program_id(0) * self.heads.per_step + head
        number = number * self.tiles + jax.lax.rem(tile, self.tiles)
        kept = kept_tiles(self.heads, self.rate, inputs[0], number)

        def of_block(block):
            mask = kept(block)
            return lambda weights: jnp.where(mask, weights, 0.0)

        return of_block
