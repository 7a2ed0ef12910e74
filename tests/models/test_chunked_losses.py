"""Losses of a table of vectors, chunk by chunk, against those of all logits at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import quick_jit

from brt.models.fast.chunked_losses import chunked_losses
from brt.models.layers.losses import token_losses

B, T, V, D = 2, 7, 11, 5
DIVISOR = 1.7


def drawn(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    x_BTD, table_VD = rng.normal(size=(B, T, D)), rng.normal(size=(V, D))
    return x_BTD.astype(dtype), table_VD, rng.integers(0, V, (B, T)).astype(np.int32)


def plain(x_BTD, table_VD, targets_BT):
    return token_losses(jnp.einsum("BTD,VD->BTV", x_BTD, table_VD) / DIVISOR, targets_BT)


@pytest.mark.parametrize("chunk", [1, B * V, 3 * B * V, B * T * V], ids=str)
def test_chunks_change_neither_losses_nor_gradients(chunk):
    with jax.enable_x64(True):
        x_BTD, table_VD, targets_BT = drawn()
        weights_BT = np.random.default_rng(1).normal(size=(B, T))

        def value(of):
            def total(x_BTD, table_VD):
                nats_BT, correct_BT = of(x_BTD, table_VD, targets_BT)
                return jnp.sum(nats_BT * weights_BT), (nats_BT, correct_BT)

            return quick_jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))

        def chunked(*inputs):
            return chunked_losses(*inputs, DIVISOR, chunk)

        found = value(chunked)(x_BTD, table_VD)
        expected = value(plain)(x_BTD, table_VD)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_the_target_is_right_if_no_logit_exceeds_it():
    x_BTD = jnp.ones((1, 4, 2))
    table_VD = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])  # logits 1, 2, 2, 2
    nats_BT, correct_BT = chunked_losses(x_BTD, table_VD, jnp.array([[0, 1, 2, 3]]), 1.0, 4)
    assert correct_BT.tolist() == [[False, True, True, True]]
    np.testing.assert_allclose(nats_BT[0, 1:], np.log(3 + np.exp(-1.0)), rtol=1e-6)


# Seven chunks of one token, not four of two with padding; three, because seven are twice as many.
@pytest.mark.parametrize(("chunk", "C"), [(2 * B * V, 1), (3 * B * V, 3), (B * T * V, T)])
def test_no_array_of_more_logits_than_those_of_a_chunk_is_made(chunk, C):
    x_BTD, table_VD, targets_BT = drawn(dtype="float32")

    def total(x_BTD, table_VD):
        return chunked_losses(x_BTD, table_VD, targets_BT, DIVISOR, chunk)[0].sum()

    text = str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(x_BTD, np.float32(table_VD)))
    tokens = {int(size) for size in re.findall(rf"f32\[{B},(\d+),1,{V}\]", text)}
    assert tokens == {C}
    assert "argmax" not in text


def test_in_bfloat16_logits_are_wide_and_the_tables_gradient_is_added_up_wide():
    x_BTD, table_VD, targets_BT = drawn(3, "float32")
    x_BTD, table_VD = jnp.asarray(x_BTD, jnp.bfloat16), jnp.float32(table_VD)
    narrow_VD = table_VD.astype(jnp.bfloat16)

    def gradients(of):
        return jax.grad(lambda *inputs: of(*inputs, targets_BT)[0].sum(), argnums=(0, 1))

    found = gradients(lambda *inputs: chunked_losses(*inputs, DIVISOR, B * V))(x_BTD, table_VD)
    expected = gradients(plain)(jnp.float32(x_BTD), jnp.float32(narrow_VD))
    assert (found[0].dtype, found[1].dtype) == (jnp.bfloat16, jnp.float32)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.float32(a), b, rtol=0.02, atol=0.02)
