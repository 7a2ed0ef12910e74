"""The loop over blocks, whose matrices are cast before it, against the plain one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import quick_jit

from brt.models import ops
from brt.models.fast.block_loop import scan_blocks
from brt.models.ops import Matrix

G, B, S, D, A = 5, 2, 3, 4, 6


def drawn(dtype):
    rng = np.random.default_rng(0)
    weights = {
        "in_XDA": rng.normal(size=(2, D, A)) / 4,
        "gate": {"matrix_XAD": rng.normal(size=(2, A, D)) / 2, "bias_D": rng.normal(size=D)},
        "unused_D": np.ones(D),
    }
    return weights, rng.normal(size=(B, S, D)).astype(dtype), rng.normal(size=(B, G, S, D))


def turn(weights, states_BSD, x_BSD):
    hidden_XBSA = jnp.tanh(weights["in_XDA"]("BSD,XDA->XBSA", x_BSD + states_BSD))
    (h_BSA, g_BSA), gate = jnp.unstack(hidden_XBSA), weights["gate"]
    z_BSD = gate["matrix_XAD"]("XBSA,XAD->BSD", h_BSA, g_BSA**2)
    states_BSD = states_BSD + jnp.tanh(z_BSD + gate["bias_D"].astype(z_BSD.dtype))
    return states_BSD, {"h": h_BSA}, {"mean": jnp.mean(h_BSA)}


def values(scan, dtype):
    weights, carry, blocks = drawn(dtype)

    def total(weights, carry, blocks):
        matrices = jax.tree.map(lambda x: Matrix(x, dtype) if x.ndim > 1 else x, weights)
        carry, outputs, metrics = scan(turn, matrices, carry, blocks.astype(dtype))
        loss = jnp.sum(carry.astype("float32") ** 2) + jnp.sum(jnp.sin(outputs["h"]))
        return loss, (carry, outputs, metrics)

    with_gradients = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)
    return quick_jit(with_gradients)(weights, carry, blocks)


@pytest.mark.parametrize("options", [{}, {"remat": True}, {"unroll": 2}], ids=str)
def test_outputs_and_gradients_are_those_of_the_plain_loop(options):
    with jax.enable_x64(True):
        found = values(functools.partial(scan_blocks, **options), "float64")
        expected = values(ops.scan_blocks, "float64")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_a_loop_that_recomputes_its_steps_is_not_unrolled():
    weights, carry, blocks = drawn("float32")
    weights = jax.tree.map(lambda x: Matrix(x, "float32") if x.ndim > 1 else x, weights)
    for remat, unroll in ((False, 2), (True, 1)):
        loop = functools.partial(scan_blocks, turn, remat=remat, unroll=2)
        (scan,) = [
            equation for equation in jax.make_jaxpr(loop)(weights, carry, blocks).eqns
            if equation.primitive.name == "scan"
        ]  # fmt: skip
        assert scan.params["unroll"] == unroll


def test_bfloat16_gradients_of_weights_are_summed_in_their_type():
    found, exact = values(scan_blocks, "bfloat16"), values(ops.scan_blocks, "float32")
    gradients, expected = found[1][0], exact[1][0]
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=0.1, atol=0.1)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), gradients)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (gradients, narrow))))
