"""Products in the form that XLA compiles well for one CPU; elsewhere they are as written.

Plain counterparts: `jnp.einsum` and `brt.models.ops.Matrix` (tests/models/fast/test_products.py).
With them and `attention.window_table` a step of `configs/benchmark/slide_7l.gin` takes 0.65 of the
time (docs/benchmarks/training.md).
"""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from brt.models.axis_rules import device
from brt.models.ops import Matrix, stacked


def on_one_cpu() -> bool:
    return device().platform == "cpu" and jax.sharding.get_abstract_mesh().size <= 1


def einsum(equation: str, *operands: jax.Array, **options: Any) -> jax.Array:
    """Returns `jnp.einsum`; axes that are neighbours wherever they occur are joined to one.

    The gradient of a matrix is a product over all axes of rows, for which XLA would first copy one
    operand, transposed, if they were several. Axes of length 1 are left out.
    """
    if not on_one_cpu():
        return jnp.einsum(equation, *operands, **options)
    inputs, result = equation.split("->")
    terms = [*inputs.split(","), result]
    sizes = {name: size for term, x in zip(terms, operands) for name, size in zip(term, x.shape)}
    shape = [sizes[name] for name in result]
    terms = ["".join(name for name in term if sizes[name] != 1) for term in terms]
    for a, b in [pair for term in terms for pair in pairwise(term)]:
        if all(a + b in term or not {a, b} & {*term} for term in terms):
            terms = [term.replace(a + b, b) for term in terms]
            sizes[b] *= sizes[a]
    joined = (x.reshape([sizes[name] for name in term]) for term, x in zip(terms, operands))
    equation = f"{','.join(terms[:-1])}->{terms[-1]}"
    return jnp.einsum(equation, *joined, **options).reshape(shape)


def matmul(x_BTD: jax.Array, matrix_DA: jax.Array) -> jax.Array:
    """Returns x W, (..., A), in the type of x; the axes of rows are joined."""
    matrix_DA = matrix_DA.astype(x_BTD.dtype)
    if not on_one_cpu():
        return x_BTD @ matrix_DA
    rows_RA = x_BTD.reshape(-1, x_BTD.shape[-1]) @ matrix_DA
    return rows_RA.reshape(*x_BTD.shape[:-1], matrix_DA.shape[-1])


@jax.tree_util.register_pytree_node_class
class JoinedMatrix(Matrix):
    """A `Matrix` whose products join the axes of rows."""

    def __call__(self, equation: str, *x: jax.Array) -> jax.Array:
        return einsum(equation, stacked(x), self.array.astype(self.dtype))
