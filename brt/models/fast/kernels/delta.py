"""The delta rule as Pallas TPU kernels, one for each pass.

Plain counterpart: `brt.models.block_recurrent.gated_delta.delta_rule`. `delta_tiles` has the
mathematics. A grid step is a block of tokens of one head. The head's matrix S stays in VMEM from
block to block, and in the backward pass its gradient. The forward pass stores S before each block,
in the activations' type, and the block's stored values; the rest is recomputed.

Compiled for v4 (8 heads of 128, T = 4,096, bfloat16) both passes have 256 grid steps, of 3,963 and
8,645 bundles of instructions: 1.61 M for each of the two cores. Bundles do not show waiting for
memory; no TPU has run it.

Axes as in `delta_tiles`, and G blocks of W = 128 tokens
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels import delta_tiles
from brt.models.fast.kernels.parts import (
    COMPILER,
    LANES,
    Heads,
    interpreted,
    on_each_device,
    upcast,
    with_zeros,
)
from brt.models.ops import joined_heads

W = LANES
"""Tokens of a block: a row of steps in a register, and a product in a matrix unit."""
FEWEST = 16
"""Fewer tokens run as the plain rule: most of a block would be zeros."""


def misfit(heads: Heads, tokens: int, dtype: DTypeLike) -> str | None:
    if dtype not in (jnp.bfloat16, jnp.float32):
        return f"activations are {jnp.dtype(dtype)}, not bfloat16 or float32"
    if tokens < FEWEST:
        return f"{tokens} tokens are fewer than {FEWEST}"
    if heads.head_size % LANES and not heads.interpret:
        return f"head_size = {heads.head_size} is not a multiple of {LANES}"
    if heads.head_size > LANES and dtype == jnp.float32 and not heads.interpret:
        return f"heads of {heads.head_size} in float32 do not fit into VMEM"
    return heads.misfit()


def delta_rule(
    heads: Heads, dtype: DTypeLike, matrix_BHKV: jax.Array, inputs: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Returns the results of `gated_delta.delta_rule` with decays of channels, in their types.

    V = K. dtype: of the activations, and of the operands of products.
    """
    *of_heads, log_BTHK, step_BTH = (with_zeros(x, -x.shape[1] % W) for x in inputs)
    arrays_BTA = map(joined_heads, (*(x.astype(dtype) for x in of_heads), log_BTHK))
    step_BH1T = jnp.swapaxes(step_BTH, 1, 2)[:, :, None]
    matrix_BHKV, read_BTA = _rule(heads, matrix_BHKV, *arrays_BTA, step_BH1T)
    shape = inputs[2].shape
    read_BTHV = read_BTA[:, : shape[1]].reshape(shape)
    return matrix_BHKV, read_BTHV.astype(upcast(dtype))


_MATRIX, _TOKENS, _MATRICES = "BHKV", "BTA", "BHGKV"
_INPUTS = *[_TOKENS] * 4, "BHXT"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rule(heads, matrix, q, k, v, log, step):
    return _forward(heads, matrix, q, k, v, log, step)[0]


def _forward(heads, matrix, *inputs):
    run = functools.partial(_forward_call, heads)
    axes = *_INPUTS, _MATRIX
    outputs = _MATRIX, _TOKENS, _TOKENS, _MATRICES
    after, read, *saved = on_each_device(heads, run, axes, outputs)(*inputs, matrix)
    return (after, read), (*inputs, *saved)


def _backward(heads, saved, gradients):
    run = functools.partial(_backward_call, heads)
    axes = *_INPUTS, _TOKENS, _MATRICES, _MATRIX, _TOKENS
    return on_each_device(heads, run, axes, (_MATRIX, *_INPUTS))(*saved, *gradients)


_rule.defvjp(_forward, _backward)


def _forward_call(heads, *arrays):
    q, _, v, *_, matrix = arrays
    before = jax.ShapeDtypeStruct((*matrix.shape[:2], q.shape[1] // W, *matrix.shape[2:]), q.dtype)
    return _call(heads, _forward_kernel, arrays, (matrix, v, v, before), "delta_forward")


def _backward_call(heads, *arrays):
    *inputs, _, _, dafter, _ = arrays
    outputs = dafter, *inputs
    return _call(heads, _backward_kernel, arrays, outputs, "delta_backward", is_reversed=True)


def _call(
    heads: Heads,
    kernel: Callable[..., None],
    inputs: Sequence[jax.Array],
    outputs: Sequence[Any],
    name: str,
    is_reversed: bool = False,
) -> tuple[jax.Array, ...]:
    """Runs a kernel with blocks of `inputs`, q, k, v, log, step, ..., and with `_scratch`."""
    K, q = heads.head_size, inputs[0]
    B, T, A = q.shape
    G, exact = T // W, delta_tiles.Exact(q.dtype == jnp.bfloat16, on_tpu=True)

    def spec(x):
        def of(size, index):
            def index_of(h, b, g):
                return index(h, b, G - 1 - g if is_reversed else g)

            return pl.BlockSpec(size, index_of)

        if x.ndim == 3:
            return of((None, W, K), lambda h, b, g: (b, g, h))
        if x.ndim == 5:
            return of((None, None, 1, K, K), lambda h, b, g: (b, h, g, 0, 0))
        if x.shape[2] == 1:
            return of((None, None, 1, W), lambda h, b, g: (b, h, 0, g))
        return of((None, None, K, K), lambda h, b, g: (b, h, 0, 0))

    return pl.pallas_call(
        functools.partial(kernel, exact),
        grid=(A // K, B, G),
        in_specs=[*map(spec, inputs)],
        out_specs=[*map(spec, outputs)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        scratch_shapes=_scratch(K, q.dtype),
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name=name,
    )(*inputs)


def _scratch(K, dtype):
    """Returns w, u, decayed queries and keys, scores, inverse, kept, dstored, dmatrices."""
    sizes = *[(W, K)] * 4, (1, W, W), (W, W), (1, 1, K), (W, K), (1, K, K)
    return [pltpu.VMEM(x, upcast(dtype) if x == (1, 1, K) else dtype) for x in sizes]


def _start(exact, inputs, sums, first, scratch):
    """Prepares a block; before the first, sets the values that stay in VMEM."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        sums[...] = first[...]

    *decayed, scores, inverse, kept, _, _ = scratch
    arrays = *inputs, *decayed, scores.at[0], inverse, kept.at[0]
    delta_tiles.prepare(exact, sums.shape[0], *arrays)


def _forward_kernel(exact, *refs):
    inputs, (matrix, after, read, stored, before), scratch = refs[:5], refs[5:10], refs[10:]
    _start(exact, inputs, after, matrix, scratch)
    *decayed, scores, _, kept, _, _ = scratch
    arrays = after, *decayed, scores, kept, after, read, stored, before
    delta_tiles.forward(W, *arrays)


def _backward_kernel(exact, *refs):
    inputs, (stored, before, dafter, dread, dmatrix) = refs[:5], refs[5:10]
    outputs, scratch = refs[10:15], refs[15:]
    _start(exact, inputs, dmatrix, dafter, scratch)
    w, u, decayed_q, decayed_k, scores, inverse, kept, dstored, dmatrices = scratch
    of_loop = w, decayed_q, decayed_k, scores, kept, dread, dmatrix, dstored, dmatrices
    delta_tiles.backward(W, dmatrix, *of_loop)
    arrays = *inputs, inverse, w, u, stored, dstored, dread
    arrays = *arrays, before.at[0], dmatrices.at[0], *outputs
    delta_tiles.gradients(exact, dmatrix.shape[0], *arrays)
