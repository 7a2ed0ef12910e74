"""Losses of a table of vectors, chunk by chunk, against those of all logits at once."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import equations_of, quick_jit

from brt.models.fast import chunked_losses
from brt.models.layers.losses import token_losses

K, B, T, V, D = 3, 2, 7, 12, 5
DIVISOR = 1.7


def drawn(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    x_BTD, table_VD = rng.normal(size=(B, T, D)), rng.normal(size=(V, D))
    return x_BTD.astype(dtype), table_VD, rng.integers(0, V, (B, T)).astype(np.int32)


def plain(x_BTD, table_VD, targets_BT):
    return token_losses(jnp.einsum("...TD,VD->...TV", x_BTD, table_VD) / DIVISOR, targets_BT)


def total(of, *further):
    """The weighted nats of every segment, and what else `of` returns; with gradients."""

    def value(x_KBTD, table_VD):
        nats, correct = of(x_KBTD, table_VD, *further)
        return 2.5 * nats, (nats, correct)

    return quick_jit(jax.value_and_grad(value, argnums=(0, 1), has_aux=True))


def plain_sums(x_KBTD, table_VD, targets_KBT, weights_KBT):
    found = plain(x_KBTD, table_VD, targets_KBT)
    return tuple(jnp.sum(x_KBT * weights_KBT) for x_KBT in found)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("chunk", [1, B * V, 3 * B * V, K * B * T * V], ids=str)
def test_weighted_losses_and_their_gradients(chunk, parts, monkeypatch):
    monkeypatch.setattr(chunked_losses, "model_parts", lambda _: parts)
    with jax.enable_x64(True):
        segments = [drawn(seed) for seed in range(K)]
        x_KBTD, _, targets_KBT = (np.stack(arrays) for arrays in zip(*segments, strict=True))
        table_VD = segments[0][1]
        tokens = targets_KBT, np.random.default_rng(1).normal(size=(K, B, T))

        def chunked(*inputs):
            return chunked_losses.weighted_losses(*inputs, DIVISOR, chunk)

        found = total(chunked, *tokens)(x_KBTD, table_VD)
        expected = total(plain_sums, *tokens)(x_KBTD, table_VD)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("chunk", [1, 3 * B * V, B * T * V], ids=str)
def test_losses_of_each_token(chunk, parts, monkeypatch):
    monkeypatch.setattr(chunked_losses, "model_parts", lambda _: parts)
    with jax.enable_x64(True):
        inputs = drawn()
        found = chunked_losses.chunked_losses(*inputs, DIVISOR, chunk)
        for a, b in zip(found, plain(*inputs), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_the_target_is_right_if_no_logit_exceeds_it():
    x_BTD = jnp.ones((1, 4, 2))
    table_VD = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])  # logits 1, 2, 2, 2
    targets_BT = jnp.array([[0, 1, 2, 3]])
    nats_BT, correct_BT = chunked_losses.chunked_losses(x_BTD, table_VD, targets_BT, 1.0, 4)
    assert correct_BT.tolist() == [[False, True, True, True]]
    np.testing.assert_allclose(nats_BT[0, 1:], np.log(3 + np.exp(-1.0)), rtol=1e-6)


# Seven chunks of one token, not four of two with padding; three, because seven are twice as many.
@pytest.mark.parametrize(("chunk", "C"), [(2 * B * V, 1), (3 * B * V, 3), (B * T * V, T)])
def test_no_array_of_more_logits_than_those_of_a_chunk_is_made(chunk, C):
    x_BTD, table_VD, targets_BT = drawn(dtype="float32")
    ones_BT = np.ones((B, T), np.float32)

    def nats(x_BTD, table_VD):
        tokens = targets_BT[None], ones_BT[None]
        return chunked_losses.weighted_losses(x_BTD[None], table_VD, *tokens, DIVISOR, chunk)[0]

    traced = jax.make_jaxpr(jax.grad(nats, argnums=(0, 1)))(x_BTD, np.float32(table_VD))
    equations = [*equations_of(traced.jaxpr)]
    shapes = [x.aval.shape for each in equations for x in each.outvars]
    of_logits = [shape for shape in shapes if V in shape and D not in shape]
    assert max(map(math.prod, of_logits)) == B * C * V
    assert "argmax" not in {each.primitive.name for each in equations}


def test_bfloat16_logits_and_table_gradients_are_float32():
    x_BTD, table_VD, targets_BT = drawn(3, "float32")
    x_BTD, table_VD = jnp.asarray(x_BTD, jnp.bfloat16), jnp.float32(table_VD)
    narrow_VD = table_VD.astype(jnp.bfloat16)
    tokens = targets_BT[None], np.ones((1, B, T), np.float32)

    def gradients(of, x_BTD, table_VD):
        def nats(x_BTD, table_VD):
            return of(x_BTD[None], table_VD, *tokens)[0]

        return jax.grad(nats, argnums=(0, 1))(x_BTD, table_VD)

    def chunked(*inputs):
        return chunked_losses.weighted_losses(*inputs, DIVISOR, B * V)

    found = gradients(chunked, x_BTD, table_VD)
    expected = gradients(plain_sums, jnp.float32(x_BTD), jnp.float32(narrow_VD))
    assert (found[0].dtype, found[1].dtype) == (jnp.bfloat16, jnp.float32)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.float32(a), b, rtol=0.02, atol=0.02)
