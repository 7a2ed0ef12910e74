"""Token losses, against sums of exponentials written out one token at a time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model

from brt.models.layers.losses import scored_positions, token_losses
from brt.training.train_step import trained_weights


def plain(logits, target):
    """-log p(target) of one token, with every exponential spelled out."""
    return math.log(sum(math.exp(x) for x in logits)) - logits[target]


@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 4, 17), (5, 100)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_each_token_costs_minus_the_log_of_its_probability(shape, scale):
    rng = np.random.default_rng(0)
    logits = (scale * rng.normal(size=shape)).astype(np.float32)
    targets = rng.integers(0, shape[-1], shape[:-1])
    nats, correct = jax.jit(token_losses)(logits, targets.astype(np.int32))
    assert nats.shape == correct.shape == targets.shape
    for index in np.ndindex(targets.shape):
        row = logits[index].astype(np.float64).tolist()
        assert float(nats[index]) == pytest.approx(plain(row, targets[index]), rel=1e-5, abs=1e-5)
        assert bool(correct[index]) == (max(row) == row[targets[index]])


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_a_constant_added_to_all_logits_changes_nothing(shift):
    logits = np.random.default_rng(1).integers(-8, 8, (6, 9)).astype(np.float32)
    targets = np.arange(6, dtype=np.int32)
    nats, correct = token_losses(logits, targets)
    shifted_nats, shifted_correct = token_losses(logits + np.float32(shift), targets)
    np.testing.assert_allclose(shifted_nats, nats, atol=2e-3)  # 2 ulp of 1e4 in float32
    np.testing.assert_array_equal(shifted_correct, correct)


def test_the_gradient_is_the_softmax_minus_the_target():
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(4, 7)).astype(np.float32), np.array([0, 3, 3, 6], np.int32)
    gradient = jax.grad(lambda x: token_losses(x, targets)[0].sum())(logits)
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum(-1, keepdims=True)
    np.testing.assert_allclose(gradient, probabilities - np.eye(7)[targets], atol=1e-6)


def test_a_target_is_right_if_no_logit_exceeds_its_own():
    logits = jnp.array([[2.0, 1.0, 2.0], [2.0, 1.0, 2.0], [2.0, 1.0, 2.0], [jnp.nan, 1.0, 2.0]])
    _, correct = token_losses(logits, jnp.array([0, 1, 2, 2], jnp.int32))
    assert correct.tolist() == [True, False, True, False]


@pytest.mark.parametrize("T", [1, 2, 5, 8])
def test_the_half_loss_scores_the_most_recent_half_of_a_segment(T):
    weights_BT = np.random.default_rng(1).random((3, T)) + 0.1
    np.testing.assert_array_equal(trained_weights(weights_BT), weights_BT)
    found = np.asarray(trained_weights(jnp.asarray(weights_BT), "half"))
    scored = found > 0
    assert (scored.sum(axis=-1) == T - T // 2).all() and scored[:, T // 2 :].all()
    np.testing.assert_allclose(found[scored], weights_BT[scored], rtol=1e-6)


def test_a_model_with_losses_of_its_own_is_trained_with_them():
    model = random_model("slide")

    class Smoothed(type(model)):
        def token_losses(self, x_BTD, targets_BT):
            nats_BT, correct_BT = super().token_losses(x_BTD, targets_BT)
            return 0.9 * nats_BT + 0.1, correct_BT

    rng = np.random.default_rng(0)
    x_KBTD = rng.normal(size=(2, 3, 4, model.width)).astype(np.float32)
    targets_KBT = rng.integers(0, model.vocabulary_size, (2, 3, 4)).astype(np.int32)
    weights_KBT = rng.random((2, 3, 4)).astype(np.float32)
    nats, correct = model.weighted_losses(x_KBTD, targets_KBT, weights_KBT)
    model.__class__ = Smoothed
    found = model.weighted_losses(x_KBTD, targets_KBT, weights_KBT)
    np.testing.assert_allclose(found, (0.9 * nats + 0.1 * weights_KBT.sum(), correct), rtol=1e-5)


@pytest.mark.parametrize("name", ["slide", "llama_slide"])
def test_a_model_with_logits_of_its_own_is_trained_with_them(name):
    model = random_model(name)
    owner = model.body if name == "llama_slide" else model

    class Capped(type(owner)):
        def logits(self, x_BTD):
            return 2 * jnp.tanh(super().logits(x_BTD) / 2)

    owner.__class__ = Capped
    x_BTD = np.random.default_rng(0).normal(size=(3, 4, model.width)).astype(np.float32)
    targets_BT, weights_BT = jnp.ones((3, 4), jnp.int32), jnp.ones((3, 4))
    nats_BT, _ = token_losses(model.logits(x_BTD), targets_BT)
    np.testing.assert_allclose(model.token_losses(x_BTD, targets_BT)[0], nats_BT, rtol=1e-5)
    nats, _ = model.weighted_losses(x_BTD[None], targets_BT[None], weights_BT[None])
    np.testing.assert_allclose(nats, nats_BT.sum(), rtol=1e-5)


def test_scored_positions_alone_give_the_same_gradients():
    """K segments of B elements: a product of every position, against the scored ones only."""
    rng = np.random.default_rng(4)
    K, B, T, D, V = 3, 4, 5, 6, 11
    x_KBTD = rng.normal(size=(K, B, T, D)).astype(np.float32)
    matrix_DV = rng.normal(size=(D, V)).astype(np.float32)
    targets_KBT = rng.integers(0, V, (K, B, T)).astype(np.int32)
    weights_KBT = np.zeros((K, B, T), np.float32)
    for b, scored in enumerate([0, 1, 3, 4]):  # never more than 4 of the 15 positions
        for at in rng.choice(K * T, scored, replace=False):
            weights_KBT[at // T, b, at % T] = rng.uniform(0.5, 2)

    def summed(x_KBTD, most):
        scored = x_KBTD, targets_KBT, weights_KBT
        x, targets, weights = scored_positions(*scored, most) if most else scored
        nats, correct = token_losses(x @ matrix_DV, targets)
        return (nats * weights).sum(), (correct * weights).sum()

    expected, gradients = jax.value_and_grad(summed, has_aux=True)(x_KBTD, None)
    for most in (4, 7, 40):
        found, more = jax.value_and_grad(summed, has_aux=True)(x_KBTD, most)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        np.testing.assert_allclose(more, gradients, atol=1e-6)
    assert np.isnan(summed(x_KBTD, 3)[0])  # a loss that leaves a position out is not silent
