"""A sum of products of pairs of matrices, the gradient of a weight, as a Pallas TPU kernel.

Plain counterpart: `plain_product_sum` (tests/models/test_loop_weights.py). XLA adds one product
after another, and reads and writes the sum each time: of eight pairs of bfloat16, (512, 1024) and
(512, 1024), it takes 68 k cycles on a TPU v4. The kernel has 36 k bundles of instructions.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from brt.models.axis_rules import RULES
from brt.models.fast.kernels.parts import F32, dot, on_tpu

COLUMNS = 512
"""Of each matrix in a grid step."""
ROWS = 2048
"""Of all pairs in a grid step: in bfloat16 two buffers of them fit into 16 MiB of VMEM."""
COMPILER = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def product_sum(equation: str, pairs: Sequence[tuple[Any, Any]], dtype: DTypeLike) -> jax.Array:
    """Returns `plain_product_sum`, of several pairs on a TPU by the kernel if it fits.

    Only loops with attention in kernels are unrolled and have several: the plain form has none.
    """
    x_axes, y_axes, axes = equation.replace("->", ",").split(",")
    is_product = x_axes[:-1] == y_axes[:-1] and axes == x_axes[-1] + y_axes[-1]
    if not (on_tpu() and is_product and dtype == F32):
        return plain_product_sum(equation, pairs, dtype)
    xs, ys = ([x.reshape(-1, x.shape[-1]) for x in side] for side in zip(*pairs))
    mesh = jax.sharding.get_abstract_mesh()
    x_axis, y_axis = (None if RULES.get(axis) != "model" else "model" for axis in axes)
    parts = [1 if mesh.empty or not axis else mesh.shape[axis] for axis in (x_axis, y_axis)]
    if not fits(xs, ys, parts):
        return plain_product_sum(equation, pairs, dtype)
    if mesh.empty:
        return kernel_product_sum(xs, ys)
    specs = PartitionSpec(None, x_axis), PartitionSpec(None, y_axis)
    out_specs = PartitionSpec(x_axis, y_axis)
    run = jax.shard_map(kernel_product_sum, in_specs=specs, out_specs=out_specs, check_vma=False)
    return run(xs, ys)


def plain_product_sum(equation, pairs, dtype):
    """Returns the sum of the einsums of all pairs, of `dtype`."""
    einsum = functools.partial(jnp.einsum, equation, preferred_element_type=dtype)
    return functools.reduce(operator.add, (einsum(*pair) for pair in pairs))


def fits(xs: Sequence[jax.Array], ys: Sequence[jax.Array], parts: Sequence[int]) -> bool:
    """Returns whether the kernel gains with these matrices, divided into parts along columns."""
    columns = (x.shape[1] / n for x, n in zip((xs[0], ys[0]), parts))
    in_bfloat16 = {x.dtype for x in (*xs, *ys)} == {jnp.dtype("bfloat16")}
    rows = len(xs[0]) % (ROWS // len(xs)) == 0
    return len(xs) > 1 and in_bfloat16 and rows and not any(size % COLUMNS for size in columns)


def kernel_product_sum(
    xs: Sequence[jax.Array], ys: Sequence[jax.Array], interpret: bool = False
) -> jax.Array:
    """Returns the float32 sum of the products of all x, transposed, and y."""
    rows = ROWS // len(xs)
    sizes = xs[0].shape[1], ys[0].shape[1]
    x_spec = pl.BlockSpec((rows, COLUMNS), lambda i, j, r: (r, i))
    y_spec = pl.BlockSpec((rows, COLUMNS), lambda i, j, r: (r, j))
    return pl.pallas_call(
        _kernel,
        grid=(*(size // COLUMNS for size in sizes), len(xs[0]) // rows),
        in_specs=[*[x_spec] * len(xs), *[y_spec] * len(ys)],
        out_specs=pl.BlockSpec((COLUMNS, COLUMNS), lambda i, j, r: (i, j)),
        out_shape=jax.ShapeDtypeStruct(sizes, F32),
        compiler_params=COMPILER,
        interpret=interpret,
        name="product_sum",
    )(*xs, *ys)


def _kernel(*refs):
    *inputs, total = refs
    half = len(inputs) // 2

    @pl.when(pl.program_id(2) == 0)
    def _():
        total[...] = jnp.zeros_like(total)

    products = (dot(x[...], y[...], (0, 0)) for x, y in zip(inputs[:half], inputs[half:]))
    total[...] += functools.reduce(operator.add, products)
