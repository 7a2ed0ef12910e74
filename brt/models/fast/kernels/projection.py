"""Norm, dropout and projections of a layer's inputs as a Pallas TPU kernel, forward and backward.

Plain counterpart: `plain_projections` (tests/models/test_attention_kernels.py). XLA makes a pass
for the norm and one for each product, and reads and writes the sum of the products' gradients
(docs/benchmarks/tpu_compiler.md has the counts). Gradients of the matrices are XLA's.

Axes as in `parts`, and P tokens after which the dropout mask repeats    I tiles of tokens
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels.parts import (
    COMPILER,
    LANES,
    Heads,
    dot,
    interpreted,
    on_each_device,
    summed_over_batch,
    upcast,
)
from brt.models.fast.norms import rms_backward, rms_forward, rms_normed
from brt.models.layers.dropout import dropped
from brt.models.layers.precision import at_least_float32

ROWS = 256
"""Tokens of a tile."""
ROWS_BACKWARD = 128
"""With all matrices and the norm's gradient in VMEM."""
PARTS = 2
"""Of the columns of each matrix, forward: a core of a chip needs only its own."""
MOST = 10 * 2**20
"""Bytes of all matrices and of two tiles of their products that fit into 16 MiB of VMEM."""
WIDEST = 1024
"""Features of the inputs that fit."""


def misfit(heads: Heads, tokens: int, width: int, matrices: int, dtype: DTypeLike) -> str | None:
    """Returns why the kernel cannot compute these projections, or None."""
    columns = heads.num_heads * heads.head_size
    unit = PARTS * (1 if heads.interpret else LANES)
    if tokens % ROWS and not heads.interpret:
        return f"{tokens} tokens are not a multiple of {ROWS}"
    if width % unit or columns % unit:
        return f"width = {width} or {columns} columns are not a multiple of {unit}"
    if width > WIDEST:
        return f"width = {width} is more than {WIDEST}"
    size = matrices * (width + 2 * ROWS_BACKWARD) * columns * jnp.dtype(dtype).itemsize
    return f"{size:,} bytes of matrices and tiles are more than {MOST:,}" if size > MOST else None


def plain_projections(
    x_BTD: jax.Array,
    scale_D: jax.Array,
    mask_PD: jax.Array | None,
    matrices: Sequence[jax.Array],
) -> list[jax.Array]:
    """Returns the normalised x, with dropout, and its products with each matrix, (B, T, A)."""
    normed_BTD = dropped(rms_normed(x_BTD, scale_D), mask_PD)
    return [normed_BTD, *(jnp.einsum("BTD,DA->BTA", normed_BTD, m_DA) for m_DA in matrices)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def projections(
    heads: Heads,
    x_BTD: jax.Array,
    scale_D: jax.Array,
    mask_PD: jax.Array | None,
    matrices: list[jax.Array],
) -> list[jax.Array]:
    """Returns `plain_projections`, by the kernel; no gradient passes through the normalised x."""
    return _forward(heads, x_BTD, scale_D, mask_PD, matrices)[0]


_INPUTS = "BTD", "D", "PD", "DA"


def _forward(heads, x_BTD, scale_D, mask_PD, matrices):
    outputs = ["BTD", *["BTA"] * len(matrices)]
    run = on_each_device(heads, functools.partial(_forward_call, heads), _INPUTS, outputs)
    normed_BTD, *products = run(x_BTD, scale_D, mask_PD, list(matrices))
    saved = x_BTD, scale_D, mask_PD, list(matrices), normed_BTD
    return [normed_BTD, *products], saved


def _backward(heads, saved, gradients):
    *inputs, normed_BTD = saved
    _, *gradients = gradients
    call = functools.partial(_backward_call, heads)
    run = on_each_device(heads, call, (*_INPUTS, "BTA"), ("BTD", "D"))
    dx_BTD, dscale_D = run(*inputs, gradients)
    dmatrices = [jnp.einsum("BTD,BTA->DA", normed_BTD, dy_BTA) for dy_BTA in gradients]
    return dx_BTD, dscale_D, None, dmatrices


projections.defvjp(_forward, _backward)


def _forward_call(heads, x, scale_D, mask_PD, matrices):
    B, T, D = x.shape
    A, R = matrices[0].shape[1], tile_of(T, ROWS)
    masks = [] if mask_PD is None else [mask_PD]
    once = pl.Buffered(1)

    def part(rows, columns):
        return pl.BlockSpec((1, rows, columns // PARTS), lambda p, b, i: (b, i, p))

    return pl.pallas_call(
        functools.partial(_forward_kernel, len(matrices)),
        grid=(PARTS, B, T // R),
        in_specs=[
            pl.BlockSpec((1, R, D), lambda p, b, i: (b, i, 0)),
            pl.BlockSpec((1, D), lambda p, b, i: (0, 0)),
            *[
                pl.BlockSpec((D, A // PARTS), lambda p, b, i: (0, p), pipeline_mode=once)
                for _ in matrices
            ],
            *[pl.BlockSpec(x.shape, lambda p, b, i: (0, 0), pipeline_mode=once) for x in masks],
        ],
        out_specs=[part(R, D), *[part(R, A)] * len(matrices)],
        out_shape=[
            jax.ShapeDtypeStruct((B, T, columns), x.dtype) for columns in (D, *[A] * len(matrices))
        ],
        scratch_shapes=[pltpu.VMEM((R, D), x.dtype)],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="projections_forward",
    )(x, scale_D[None], *matrices, *masks)


def tile_of(tokens: int, rows: int) -> int:
    return rows if tokens % rows == 0 else tokens  # interpreted


def _masked(x, masks):
    """Returns the rows of a tile with dropout."""
    for mask in masks:
        x = (x.reshape(-1, *mask.shape) * mask[...]).reshape(x.shape)
    return x


def _forward_kernel(number, x, scale, *refs):
    *masks, normed_part = refs[number : -number - 1]
    matrices, products, scratch = refs[:number], refs[-number - 1 : -1], refs[-1]
    normed = rms_forward(x[0], scale[...])[0]
    scratch[...] = _masked(normed, masks)
    columns = normed_part.shape[-1]
    start = pl.multiple_of(pl.program_id(0) * columns, columns)
    normed_part[0] = scratch[:, pl.ds(start, columns)]
    for matrix, product in zip(matrices, products):
        product[0] = dot(scratch[...], matrix[...], (1, 0)).astype(product.dtype)


def _backward_call(heads, x, scale_D, mask_PD, matrices, gradients):
    B, T, D = x.shape
    A, R = matrices[0].shape[1], tile_of(T, ROWS_BACKWARD)
    masks = [] if mask_PD is None else [mask_PD]
    once = pl.Buffered(1)

    def rows(columns):
        return pl.BlockSpec((1, R, columns), lambda b, i: (b, i, 0))

    def whole(*shape):
        return pl.BlockSpec(shape, lambda b, i: (0, 0), pipeline_mode=once)

    dx, dscale_BI1D = pl.pallas_call(
        functools.partial(_backward_kernel, len(matrices)),
        grid=(B, T // R),
        in_specs=[
            rows(D),
            whole(1, D),
            *[rows(A)] * len(matrices),
            *[whole(D, A)] * len(matrices),
            *[whole(*x.shape) for x in masks],
        ],
        out_specs=[rows(D), pl.BlockSpec((1, 1, 1, D), lambda b, i: (b, i, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((B, T // R, 1, D), upcast(x.dtype)),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpreted(heads),
        name="projections_backward",
    )(x, scale_D[None], *gradients, *matrices, *masks)
    (dscale_D,) = summed_over_batch(heads, dscale_BI1D.sum(axis=(0, 1, 2)))
    return dx, dscale_D.astype(scale_D.dtype)


def _backward_kernel(number, x, scale, *refs):
    gradients, matrices = refs[:number], refs[number : 2 * number]
    *masks, dx, dscale = refs[2 * number :]
    products = (dot(dy[0], matrix[...], (1, 1)) for dy, matrix in zip(gradients, matrices))
    dnormed = functools.reduce(jnp.add, products)
    dnormed = _masked(dnormed.astype(x.dtype), masks)
    saved = rms_forward(x[0], scale[...])[1]
    added, dscale_D = rms_backward(saved, at_least_float32(dnormed))
    dx[0], dscale[0, 0] = added.astype(dx.dtype), dscale_D[None]
