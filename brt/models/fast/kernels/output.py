"""Output projections of a layer's attentions, added to its inputs, as a Pallas TPU kernel.

Plain counterpart: `plain_outputs` (tests/models/test_attention_kernels.py). XLA makes a pass for
each product, for their sum and for the sums of squares of a metric
(docs/benchmarks/tpu_compiler.md has the counts). Gradients of the matrices are XLA's, and so is the
only product of a layer without states, which is as fast.

Axes as in `parts`, and I tiles of tokens
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from brt.models.fast.kernels.parts import (
    COMPILER,
    Heads,
    dot,
    interpreted,
    on_each_device,
    upcast,
)
from brt.models.fast.kernels.projection import PARTS, ROWS, tile_of
from brt.models.layers.precision import at_least_float32


def plain_outputs(
    x_BTD: jax.Array, attended: Sequence[jax.Array], matrices: Sequence[jax.Array]
) -> list[jax.Array]:
    """Returns x + the sum of the products of each attended_BTA and its matrix_AD, (B, T, D), and
    the sum of squares of each product.
    """
    pairs = zip(attended, matrices, strict=True)
    products = [jnp.einsum("BTA,AD->BTD", y_BTA, m_AD) for y_BTA, m_AD in pairs]
    squares = [jnp.sum(jnp.square(at_least_float32(y_BTD))) for y_BTD in products]
    return [x_BTD + functools.reduce(jnp.add, products), *squares]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def outputs(
    heads: Heads, x_BTD: jax.Array, attended: list[jax.Array], matrices: list[jax.Array]
) -> list[jax.Array]:
    """Returns `plain_outputs`, by the kernel; no gradient passes through the sums of squares."""
    return _forward(heads, x_BTD, attended, matrices)[0]


def _forward(heads, x_BTD, attended, matrices):
    call = functools.partial(_forward_call, heads)
    results = "BTD", *["BI1D"] * len(matrices)
    run = on_each_device(heads, call, ("BTD", "BTA", "AD"), results)
    y_BTD, *squares = run(x_BTD, list(attended), list(matrices))
    return [y_BTD, *map(jnp.sum, squares)], (list(attended), list(matrices))


def _backward(heads, saved, gradients):
    attended, matrices = saved
    dy_BTD = gradients[0]
    call = functools.partial(_backward_call, heads)
    run = on_each_device(heads, call, ("BTD", "AD"), ["BTA"] * len(matrices))
    dattended = run(dy_BTD, matrices)
    dmatrices = [jnp.einsum("BTA,BTD->AD", y_BTA, dy_BTD) for y_BTA in attended]
    return dy_BTD, list(dattended), dmatrices


outputs.defvjp(_forward, _backward)


def _rows(tile, columns):
    return pl.BlockSpec((1, tile, columns), lambda p, b, i: (b, i, 0))


def _part(tile, columns):
    return pl.BlockSpec((1, tile, columns // PARTS), lambda p, b, i: (b, i, p))


def _forward_call(heads, x, attended, matrices):
    (B, T, D), N, A = x.shape, len(matrices), matrices[0].shape[0]
    R = tile_of(T, ROWS)
    matrix = pl.BlockSpec((A, D // PARTS), lambda p, b, i: (0, p), pipeline_mode=pl.Buffered(1))
    squares = pl.BlockSpec((1, 1, 1, D // PARTS), lambda p, b, i: (b, i, 0, p))
    squares_BI1D = jax.ShapeDtypeStruct((B, T // R, 1, D), upcast(x.dtype))
    return pl.pallas_call(
        functools.partial(_forward_kernel, N),
        grid=(PARTS, B, T // R),
        in_specs=[_part(R, D), *[_rows(R, A)] * N, *[matrix] * N],
        out_specs=[_part(R, D), *[squares] * N],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), *[squares_BI1D] * N],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="outputs_forward",
    )(x, *attended, *matrices)


def _forward_kernel(number, x, *refs):
    attended, matrices = refs[:number], refs[number : 2 * number]
    y, *squares = refs[2 * number :]
    products = []
    for each, matrix, sums in zip(attended, matrices, squares):
        product = dot(each[0], matrix[...], (1, 0)).astype(y.dtype)
        sums[0, 0] = jnp.sum(jnp.square(at_least_float32(product)), axis=0, keepdims=True)
        products.append(product)
    y[0] = x[0] + functools.reduce(jnp.add, products)


def _backward_call(heads, dy, matrices):
    (B, T, D), N, A = dy.shape, len(matrices), matrices[0].shape[0]
    R = tile_of(T, ROWS)
    matrix = pl.BlockSpec((A // PARTS, D), lambda p, b, i: (p, 0), pipeline_mode=pl.Buffered(1))
    return pl.pallas_call(
        _backward_kernel,
        grid=(PARTS, B, T // R),
        in_specs=[_rows(R, D), *[matrix] * N],
        out_specs=[_part(R, A)] * N,
        out_shape=[jax.ShapeDtypeStruct((B, T, A), dy.dtype)] * N,
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="outputs_backward",
    )(dy, *matrices)


def _backward_kernel(dy, *refs):
    half = len(refs) // 2
    for matrix, dattended in zip(refs[:half], refs[half:]):
        dattended[0] = dot(dy[0], matrix[...], (1, 1)).astype(dattended.dtype)
