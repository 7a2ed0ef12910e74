"""Loops whose weights' gradients are computed after them, against `jax.lax.scan`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import quick_jit

from brt.models.fast.kernels.product_sum import fits, kernel_product_sum, plain_product_sum
from brt.models.fast.loop_weights import cast_before, in_loop, product, scan

G, B, S, D, A = 5, 2, 3, 4, 6


def drawn(dtype):
    rng = np.random.default_rng(0)
    weights = {
        "in_DA": rng.normal(size=(D, A)) / 2,
        "gate": {"matrix_XAD": rng.normal(size=(2, A, D)) / 2, "bias_D": rng.normal(size=D)},
        "unused_D": np.ones(D),
    }
    return weights, rng.normal(size=(B, S, D)).astype(dtype), rng.normal(size=(G, B, S, D))


def turn(weights, states_BSD, x_BSD):
    h_BSA = jnp.tanh(product("BSD,DA->BSA", x_BSD + states_BSD, weights["in_DA"]))
    gate = weights["gate"]
    z_BSD = product("XBSA,XAD->BSD", (h_BSA, h_BSA**2), gate["matrix_XAD"])
    states_BSD = states_BSD + jnp.tanh(z_BSD + in_loop(gate["bias_D"]).astype(z_BSD.dtype))
    return states_BSD, {"h": h_BSA}


def plain(turn, weights, carry, xs):
    return jax.lax.scan(lambda carry, x: turn(weights, carry, x), carry, xs)


def values(scan, dtype):
    weights, carry, xs = drawn(dtype)

    def total(weights, carry, xs):
        cast = jax.tree.map(lambda x: cast_before(x, dtype), weights)
        carry, ys = scan(turn, cast, carry, xs.astype(dtype))
        return jnp.sum(carry.astype("float32") ** 2) + jnp.sum(jnp.sin(ys["h"])), (carry, ys)

    with_gradients = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)
    return quick_jit(with_gradients)(weights, carry, xs)


@pytest.mark.parametrize("options", [{}, {"remat": True}, {"unroll": 2}, {"unroll": G}], ids=str)
def test_outputs_and_gradients_are_those_of_the_plain_loop(options):
    with jax.enable_x64(True):
        found = values(functools.partial(scan, **options), "float64")
        expected = values(plain, "float64")
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_in_bfloat16_gradients_of_weights_are_summed_in_the_weights_own_type():
    found, exact = values(scan, "bfloat16"), values(plain, "float32")
    gradients, expected = found[1][0], exact[1][0]
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, rtol=0.1, atol=0.1)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), gradients)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (gradients, narrow))))


def test_gradients_of_what_is_multiplied_are_not_added_up_in_the_loop():
    """In bfloat16 256 + 1 = 256: a sum of 512 ones, one after another, ends there."""

    def turn(weights, carry, x):
        return carry, product("BD,DA->BA", x, weights["multiplied"]) + in_loop(weights["added"])

    def total(weights, scan):
        _, ys = scan(turn, weights, 0.0, jnp.ones((512, 1, 1), jnp.bfloat16))
        return jnp.sum(ys.astype("float32"))

    weights = {name: jnp.ones((1, 1), jnp.bfloat16) for name in ("multiplied", "added")}
    gradients = quick_jit(jax.grad(total), static_argnums=1)
    assert gradients(weights, plain) == {"multiplied": 256, "added": 256}
    assert gradients(weights, scan) == {"multiplied": 512, "added": 256}


def test_weights_are_multiplied_once_in_a_turn():
    def twice(weights, x, _):
        return product("BD,DE->BE", product("BD,DE->BE", x, weights), weights), None

    with pytest.raises(ValueError, match="twice"):
        jax.grad(lambda x: scan(twice, jnp.eye(3), x, jnp.arange(4))[0].sum())(jnp.ones((2, 3)))


def test_the_kernel_sums_products_as_the_plain_form_does():
    """Two grid steps along each axis."""
    rng = np.random.default_rng(0)
    xs, ys = (
        [jnp.asarray(rng.normal(size=(512, 1024)), jnp.bfloat16) for _ in range(8)] for _ in "xy"
    )
    assert fits(xs, ys, (1, 2)) and not fits(xs, ys, (4, 1))
    assert not fits([jnp.concatenate(xs)], [jnp.concatenate(ys)], (1, 1))  # one pair, a plain loop
    found = kernel_product_sum(xs, ys, interpret=True)
    expected = plain_product_sum("RM,RN->MN", list(zip(xs, ys)), jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
