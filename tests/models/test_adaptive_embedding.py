"""The embedding in bins and the softmax that goes back, tied and untied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import OneKey, equations_of, leaves_close, quick_jit, randomised

from brt.models.layers.losses import token_losses
from brt.models.transformer_xl import adaptive_embedding
from brt.models.transformer_xl.adaptive_embedding import AdaptiveEmbedding

V, D = 23, 8
CASES = {
    "one bin": {},
    "one width": dict(cutoffs=(6, 14)),
    "widths": dict(cutoffs=(6, 14), div_val=2),
    "one bin, projected": dict(div_val=2),
    "untied": dict(cutoffs=(9,), div_val=4, tied=False, tied_projections=False),
    "mixed": dict(cutoffs=(1, 22), div_val=2, tied_projections=(False, True, True)),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def built(**case):
    return randomised(nnx.eval_shape(lambda: AdaptiveEmbedding(OneKey(), V, D, **case)), 1)


def outputs(shape=(3, 50, D)):
    rng = np.random.default_rng(2)
    return jnp.asarray(rng.normal(size=shape), "float32"), rng.integers(0, V, shape[:-1])


@every_case
def test_probabilities_sum_to_one_over_the_whole_vocabulary(case):
    model, (x_BTD, _) = built(**case), outputs((1, 50, D))
    targets_VT = np.arange(V)[:, None].repeat(50, axis=1)
    nats_VT, _ = quick_jit(model.token_losses)(x_BTD.repeat(V, axis=0), targets_VT)
    np.testing.assert_allclose(np.exp(-nats_VT).sum(axis=0), 1, atol=1e-5)
    logits_BTV = quick_jit(model.logits)(x_BTD)
    assert logits_BTV.shape == (1, 50, V)
    if "cutoffs" in case:  # then they are log-probabilities
        np.testing.assert_allclose(np.exp(logits_BTV).sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("case", ["one width", "widths", "untied", "mixed"])
def test_losses_of_the_needed_scores_are_those_of_all_logits(case, chunk, monkeypatch):
    monkeypatch.setattr(adaptive_embedding, "CHUNK", chunk)
    model, (x_BTD, targets_BT) = built(**CASES[case]), outputs()
    logits_BTV = quick_jit(model.logits)(x_BTD)
    targets_BT[::2] = logits_BTV[::2].argmax(axis=-1)
    nats_BT, correct_BT = quick_jit(model.token_losses)(x_BTD, targets_BT)
    expected_BT, expected_correct_BT = token_losses(logits_BTV, targets_BT)
    np.testing.assert_allclose(nats_BT, expected_BT, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(correct_BT, expected_correct_BT)
    assert (targets_BT[correct_BT] >= model.edges[1]).any()


def test_their_gradients_are_those_of_all_logits():
    model, (x_BTD, targets_BT) = built(cutoffs=(6, 14), div_val=2), outputs((2, 9, D))
    graph, params = nnx.split(model)

    def mean(of):
        def loss(params, x_BTD):
            return of(nnx.merge(graph, params), x_BTD)[0].mean()

        return quick_jit(jax.grad(loss, argnums=(0, 1)))(params, x_BTD)

    found = mean(lambda model, x: model.token_losses(x, targets_BT))
    expected = mean(lambda model, x: token_losses(model.logits(x), targets_BT))
    leaves_close(found, expected, 1e-6)


def test_losses_make_no_array_of_tokens_times_vocabulary(monkeypatch):
    monkeypatch.setattr(adaptive_embedding, "CHUNK", 4)

    def make():
        return AdaptiveEmbedding(OneKey(), 5000, 4, cutoffs=(10,))

    graph, params = nnx.split(nnx.eval_shape(make))
    x, targets = jax.ShapeDtypeStruct((100, 4), "float32"), jax.ShapeDtypeStruct((100,), "int32")

    def loss(params, x, targets):
        return nnx.merge(graph, params).token_losses(x, targets)[0].mean()

    equations = equations_of(jax.make_jaxpr(jax.grad(loss))(params, x, targets).jaxpr)
    largest = max(out.aval.size for equation in equations for out in equation.outvars)
    assert 4 * 4990 <= largest < 100 * 4990


@every_case
def test_every_word_has_the_vector_of_its_bin(case):
    model = built(**case)
    found_VD = model(np.arange(V)[None], jnp.float32)[0]
    for part, low, high in zip(model.bins, model.edges[:-1], model.edges[1:], strict=True):
        expected = part.table_VE[...]
        if case.get("div_val", 1) > 1:
            expected = expected @ part.projection_ED[...]
        np.testing.assert_allclose(found_VD[low:high], expected * D**0.5, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (dict(cutoffs=(14, 6)), "TransformerXL.cutoffs"),
        (dict(cutoffs=(6, V)), "TransformerXL.vocabulary_size"),
        (dict(cutoffs=(6, 14), div_val=4), "TransformerXL.div_val"),
        (dict(cutoffs=(6,), tied_projections=(True,)), "TransformerXL.tied_projections"),
    ],
)
def test_bins_that_cannot_be_are_refused(case, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveEmbedding(OneKey(), V, D, **case)
