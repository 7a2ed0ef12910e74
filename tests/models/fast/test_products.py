"""Products with joined axes, and the stored table, have the values and gradients of plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from brt.models import ops
from brt.models.fast import attention
from brt.models.fast.products import JoinedMatrix, einsum

EQUATIONS = [
    "BTD,DF->BTF",  # rows
    "BTD,FD->BTF",
    "BHSK,HKE->BSE",  # H and K of the matrix are apart in the activations
    "BSD,XDHK->XBHSK",
    "BTHK,HKE->BTE",  # rows, and the summed axes
    "BCMY,BCD->MYD",
    "BGQK,BGJK->BGQJ",  # a batch
    "BTD,D->BT",
    "D,DF->F",  # nothing to join
]


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def value_and_gradients(form, weights, *arrays):
    def loss(*arrays):
        return jnp.sum(form(*arrays) * weights)

    arguments = tuple(range(len(arrays)))
    return [form(*arrays), *jax.grad(loss, arguments)(*map(jnp.asarray, arrays))]


@pytest.mark.parametrize("sizes", [{}, {"B": 1}, {"T": 0, "S": 0}])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_joined_axes_change_no_product(equation, sizes):
    rng = np.random.default_rng(0)
    lengths = {name: 2 + i % 3 for i, name in enumerate("BTDFHSKEXCMYGQJ")} | sizes
    terms, result = equation.split("->")
    arrays = [rng.normal(size=[lengths[name] for name in term]) for term in terms.split(",")]
    weights = rng.normal(size=[lengths[name] for name in result])
    forms = (lambda *x: einsum(equation, *x)), (lambda *x: jnp.einsum(equation, *x))
    for found, expected in zip(*(value_and_gradients(form, weights, *arrays) for form in forms)):
        assert found.shape == expected.shape
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_rows_are_one_axis_in_the_gradient_of_a_matrix():
    def loss(matrix, x_BTD):
        return jnp.sum(matrix("BTD,DF->BTF", x_BTD) ** 2)

    matrix = JoinedMatrix(jnp.ones((8, 16)), jnp.float32)
    program = jax.make_jaxpr(jax.grad(loss))(matrix, jnp.ones((3, 4, 8), jnp.float32))
    products = [eqn for eqn in program.eqns if eqn.primitive.name == "dot_general"]
    assert len(products) == 2
    assert all(len(x.aval.shape) == 2 for product in products for x in product.invars)


@pytest.mark.parametrize("window", [1, 2, 7, 32])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_stored_table_is_the_plain_one(heads, window):
    rng = np.random.default_rng(window)
    weights = rng.normal(size=(heads, window, 2 * window))
    bias_HW = rng.normal(size=(heads, window))
    forms = attention.window_table, ops.window_table
    for found, expected in zip(*(value_and_gradients(form, weights, bias_HW) for form in forms)):
        assert_allclose(found, expected, rtol=1e-12)
