"""Products with joined axes, and the stored table, have the values and gradients of plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose
from tiny_models import equations_of

from brt.models import ops
from brt.models.block_recurrent.layer import Layer
from brt.models.fast import attention
from brt.models.fast.products import einsum
from brt.models.sizes import Sizes

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


@pytest.mark.parametrize("dropout", ["weights", "keys"])
def test_a_layer_joins_its_rows_and_stores_its_table(dropout):
    layer = Layer(nnx.Rngs(0), Sizes(8, 2, 4, 16, attention_dropout=dropout), window=4)
    graph, params = nnx.split(layer)

    def loss(params, x_BTD):
        layer = nnx.merge(graph, params)
        y_BTD, _, _ = layer(x_BTD, layer.init_cache(3, x_BTD.dtype))
        return jnp.sum(y_BTD**2)

    traced = jax.make_jaxpr(jax.grad(loss))(params, jnp.ones((3, 8, 8), jnp.float32))
    equations = [*equations_of(traced.jaxpr)]
    products = [eqn for eqn in equations if eqn.primitive.name == "dot_general"]
    of_matrices = [eqn for eqn in products if not eqn.params["dimension_numbers"][1][0]]
    assert len(of_matrices) == 3 * 6  # the results, and the gradients of rows and of matrices
    assert all(len(x.aval.shape) == 2 for eqn in of_matrices for x in eqn.invars)
    tables = [
        x.aval.shape for eqn in equations if eqn.primitive.name == "scan" for x in eqn.outvars
    ]
    assert (2, 4, 8) in tables  # heads, queries and keys


@pytest.mark.parametrize("window", [1, 2, 7, 32])
@pytest.mark.parametrize("heads", [1, 3])
def test_the_stored_table_is_the_plain_one(heads, window):
    rng = np.random.default_rng(window)
    weights = rng.normal(size=(heads, window, 2 * window))
    bias_HW = rng.normal(size=(heads, window))
    forms = attention.window_table, ops.window_table
    for found, expected in zip(*(value_and_gradients(form, weights, bias_HW) for form in forms)):
        assert_allclose(found, expected, rtol=1e-12)
