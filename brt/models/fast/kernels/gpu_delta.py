"""The delta rule as Pallas Triton kernels for NVIDIA GPUs.

Plain counterpart: `brt.models.block_recurrent.gated_delta.delta_rule` (compared in interpret mode).
`delta_tiles` has the mathematics.

Each pass has two kernels. One computes everything that does not depend on the matrix S, for all
blocks of tokens at the same time; the other goes from block to block with a part of S, the values
of a few channels, which are independent of the others. Without atomic operations, gradients are the
same bit for bit in every run. The backward pass reads S before each block, in the activations'
type.

Axes as in `delta_tiles`.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.fast.kernels import delta_tiles, gpu_launch
from brt.models.fast.kernels.delta_tiles import Exact
from brt.models.fast.kernels.gpu_launch import Launch, Layout, call
from brt.models.fast.kernels.parts import Heads, on_each_device, upcast, with_zeros


class Launches(NamedTuple):
    """Launches of the kernels; `queries`: tokens W of a block; `keys`: channels of a part."""

    prepare: Launch
    blocks: Launch
    gradients: Launch


_BFLOAT16 = Launches(Launch(32, 16, 8, 1), Launch(32, 32, 4, 2), Launch(32, 16, 8, 1))
_WIDE = _BFLOAT16._replace(blocks=Launch(32, 32, 8, 1))
_FLOAT32 = Launches(*[Launch(16, 16, 8, 1)] * 3)


def launches(head_size: int, dtype: DTypeLike) -> Launches:
    """Returns sizes as `gpu_launch.launches`."""
    if dtype != jnp.bfloat16:
        return _FLOAT32
    return _BFLOAT16 if head_size <= 128 else _WIDE


def misfit(heads: Heads, tokens: int, dtype: DTypeLike) -> str | None:
    if dtype not in (jnp.bfloat16, jnp.float32):
        return f"activations are {jnp.dtype(dtype)}, not bfloat16 or float32"
    if tokens < gpu_launch.FEWEST:
        return f"{tokens} tokens are fewer than {gpu_launch.FEWEST}"
    return gpu_launch.misfit(heads)


def delta_rule(
    heads: Heads, dtype: DTypeLike, matrix_BHKV: jax.Array, inputs: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the results of `gated_delta.delta_rule` with decays of channels, in their types.

    dtype: of the activations, and of the operands of products.
    """
    q_BTHK, k_BTHK, v_BTHV, *decay_step = inputs
    T, K, kind = q_BTHK.shape[1], q_BTHK.shape[3], upcast(dtype)
    found = launches(K, dtype)
    arrays = *(x.astype(dtype) for x in (q_BTHK, k_BTHK, v_BTHV)), *decay_step
    arrays = tuple(with_zeros(x, -T % found.blocks.queries) for x in arrays)
    matrix_BHKV, read_BTHV = _rule(heads, found, matrix_BHKV, *arrays)
    return matrix_BHKV, read_BTHV[:, :T].astype(kind)


# G: tokens of all blocks, or blocks.
_MATRIX, _TOKENS = "BHKV", "BGHK"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rule(heads, found, matrix, q, k, v, log, step):
    return _forward(heads, found, matrix, q, k, v, log, step)[0]


_INPUTS = *[_TOKENS] * 4, "BGH"


def _forward(heads, found, matrix, *inputs):
    # w, u, decayed queries and keys, scores, inverse, kept, stored, before.
    saved = *[_TOKENS] * 4, *["BHG"] * 3, _TOKENS, "BHG"
    axes = _MATRIX, *_INPUTS
    call_kernels = functools.partial(_forward_call, heads, found)
    run = on_each_device(heads, call_kernels, axes, (_MATRIX, _TOKENS, *saved))
    after, read, *saved = run(matrix, *inputs)
    return (after, read), (*inputs, *saved)


def _backward(heads, found, saved, gradients):
    run = functools.partial(_backward_call, heads, found)
    axes = *_INPUTS, *[_TOKENS] * 4, *["BHG"] * 3, _TOKENS, "BHG", _MATRIX, _TOKENS
    return on_each_device(heads, run, axes, (_MATRIX, *_INPUTS))(*saved, *gradients)


_rule.defvjp(_forward, _backward)


def _forward_call(heads, found, matrix, q, k, v, log, step):
    (B, T, H, K), V, W, kind = q.shape, v.shape[3], found.blocks.queries, upcast(q.dtype)
    G, layout = T // W, Layout(H)
    tile = functools.partial(layout.tile, size=W)
    square = layout.each(jax.ShapeDtypeStruct((B, H, G, W, W), q.dtype))
    kept = layout.each(jax.ShapeDtypeStruct((B, H, G, K), kind))
    outputs = tile(q), tile(v), tile(q), tile(q), square, square, kept
    inputs = tuple(map(tile, (q, k, v, log, step)))
    exact, part = Exact(q.dtype == jnp.bfloat16), math.gcd(found.prepare.keys, K, V)
    body = functools.partial(delta_tiles.prepare, exact, part)
    flops, grid = 2 * B * T * H * W * _prepared(W, K, V), (G, B * H)
    saved = call(body, found.prepare, heads, grid, inputs, outputs, "delta_prepare", flops)
    w, u, decayed_q, decayed_k, scores, _, kept = saved

    part = math.gcd(found.blocks.keys, K, V)
    given = (
        layout.matrices(matrix, part),
        layout.every(w),
        layout.values(u, part),
        *map(layout.every, (decayed_q, decayed_k)),
        *map(layout.of_batch, (scores, kept)),
    )
    like_v = layout.values(v, part)
    before = layout.matrices(jax.ShapeDtypeStruct((B, H, G, K, V), q.dtype), part)
    results = layout.matrices(matrix, part), like_v, like_v, before
    body = functools.partial(delta_tiles.forward, W)
    flops, grid = 2 * B * T * H * V * (3 * K + W), (V // part, B * H)
    called = call(body, found.blocks, heads, grid, given, results, "delta_forward", flops)
    after, read, stored, before = called
    return after, read, *saved, stored, before


def _backward_call(heads, found, q, k, v, log, step, *rest):
    w, u, decayed_q, decayed_k, scores, inverse, kept, stored, before, dafter, dread = rest
    (B, T, H, K), V = q.shape, v.shape[3]
    W, G, layout = found.blocks.queries, kept.shape[2], Layout(H)
    part = math.gcd(found.blocks.keys, K, V)
    inputs = (
        layout.matrices(dafter, part),
        *map(layout.every, (w, decayed_q, decayed_k)),
        *map(layout.of_batch, (scores, kept)),
        layout.values(dread, part),
    )
    outputs = (
        layout.matrices(dafter, part),
        layout.values(v, part),
        layout.matrices(before, part),
    )
    body = functools.partial(delta_tiles.backward, W)
    flops, grid = 2 * B * T * H * V * (3 * K + W), (V // part, B * H)
    called = call(body, found.blocks, heads, grid, inputs, outputs, "delta_backward", flops)
    dmatrix, dstored, dmatrices = called

    tile = functools.partial(layout.tile, size=W)
    given = (
        *map(tile, (q, k, v, log, step)),
        layout.each(inverse),
        *map(tile, (w, u, stored, dstored, dread)),
        *map(layout.each, (before, dmatrices)),
    )
    results = [*map(tile, (q, k, v, log, step))]
    exact, part = Exact(q.dtype == jnp.bfloat16), math.gcd(found.gradients.keys, K, V)
    body = functools.partial(delta_tiles.gradients, exact, part)
    flops, grid = 2 * B * T * H * _of_gradients(W, K, V), (G, B * H)
    called = call(body, found.gradients, heads, grid, given, results, "delta_gradients", flops)
    return dmatrix, *called


EXACT = 3
"""Products for one of `Exact`."""


def _prepared(W, K, V):
    """Returns multiplications for a token and a token of its block."""
    levels = W.bit_length() - 1
    return (levels + 1) * 4 * K + EXACT * 2 * W * (levels - 1) + K + V


def _of_gradients(W, K, V):
    """Returns multiplications for a token."""
    levels = W.bit_length() - 1
    return 4 * K * V + W * (3 * V + 11 * K + levels * 10 * K)
