"""Evaluation by windows that overlap: every token once, from as much context as was promised."""

import math

import jax
import numpy as np
import pytest
from gin_settings import bound
from stores import FIRST, RAGGED
from tiny_run import TXL, build, one_device, random_params, write_config

from brt.data.streams.select import evaluation_pass
from brt.data.streams.shifted import ShiftedPass
from brt.data.vocabularies.base import BEGIN
from brt.evaluation.evaluator import Evaluator

T = 8
VANILLA = (
    *TXL,
    *bound("TransformerXL", num_layers=2, memory_length=0),
    *bound("Evaluation", segment_length=8, tokens_per_step=320),
)


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("stride", [1, 3, T])
@pytest.mark.parametrize("rows", [1, 4, 300])
def test_every_token_is_scored_once_with_the_promised_context(store_of, rows, stride, contiguous):
    store = store_of(RAGGED, weighted=True)
    shifted = ShiftedPass(store, rows, T, stride, contiguous)
    offsets = [(d, offset) for d, length in enumerate(RAGGED) for offset in range(length)]
    offset_of = dict(enumerate(offsets, FIRST))
    weight_of = {token: float(store.weights(d)[at]) for token, (d, at) in offset_of.items()}
    scored = {}
    for step in range(shifted.num_steps):
        batch = shifted.batch(step)
        documents_B, offsets_B = shifted.positions(step)
        assert batch.starts_KB.all()
        for row in range(rows):
            inputs, targets, weights = (x[0, row].tolist() for x in batch[:3])
            if documents_B[row] >= 0:
                assert offset_of[targets[0]] == (documents_B[row], offsets_B[row])
            for t, (target, weight) in enumerate(zip(targets, weights)):
                if not weight:
                    continue
                assert target not in scored and weight == weight_of[target]
                _, offset = offset_of[target]
                before = target - FIRST - 1 if contiguous else offset
                assert t >= min(before, T - stride)  # tokens before the last input, in the window
                assert inputs[t] == (BEGIN if offset == 0 and not contiguous else target - 1)
                scored[target] = weight
    unseen = {FIRST} if contiguous else set()
    assert scored == {
        token: weight for token, weight in weight_of.items() if weight and token not in unseen
    }


@pytest.mark.parametrize("stride", [None, 3])
def test_a_text_of_one_token_has_nothing_to_predict(store_of, stride):
    with pytest.raises(ValueError, match="has one token"):
        evaluation_pass("contiguous", store_of([1]), 2, T, stride)


def perplexity_of_a_late_model(store, stride, length=1024, vocabulary=50_257, good=20.0):
    """Perplexity of a model that guesses until it has the context of all but one position.

    With that context it has the perplexity `good`: the example of Adding Recurrence to Pretrained
    Transformers, section 4.1.
    """
    guesses_T = np.arange(length) < length - 1
    nats_T = np.where(guesses_T, math.log(vocabulary), math.log(good))
    shifted = ShiftedPass(store, 64, length, stride, contiguous=True)
    nats, scored = 0.0, 0.0
    for step in range(shifted.num_steps):
        weights_KBT = shifted.batch(step).weights_KBT
        nats += float((weights_KBT * nats_T).sum())
        scored += float(weights_KBT.sum())
    assert scored == store.num_tokens - 1
    return math.exp(nats / scored)


def test_a_full_overlap_hides_a_model_of_full_contexts(store_of):
    lengths = (2049, 8193, 32_769)
    found = [perplexity_of_a_late_model(store_of([length]), 1) for length in lengths]
    assert found == sorted(found, reverse=True)
    assert found[0] > 500 and found[-1] == pytest.approx(20.0, rel=0.3)
    # Read window by window, as text is generated, it guesses all but one token of each.
    alone = perplexity_of_a_late_model(store_of([32_769]), 1024)
    assert alone == pytest.approx(50_257, rel=0.01)


@pytest.mark.parametrize("stream", ["documents", "contiguous"])
def test_a_shift_of_one_gives_every_token_its_own_window(tmp_path, stream):
    path = write_config(tmp_path, *VANILLA)
    experiment = build(path, "Evaluation.stride = 1", f"Trainer.stream = '{stream}'").experiment
    params = random_params(experiment)
    store = experiment.open_store("validation")
    with jax.set_mesh(one_device()):
        found = Evaluator(experiment, store, one_device()).run(params)

    @jax.jit
    def read(inputs_BT):
        model = experiment.bind(params).for_segments(T)
        return model(inputs_BT, model.init_caches(1))[0][0]

    if stream == "documents":
        texts = [np.append(BEGIN, store.tokens(d)) for d in range(store.num_documents)]
    else:
        texts = [np.concatenate([store.tokens(d) for d in range(store.num_documents)])]
    nats, count = 0.0, 0
    for text in texts:
        text = text.astype(int)
        for t in range(1, len(text)):
            window = np.zeros(T, np.int32)  # what follows the last input is never seen
            inputs = text[max(t - T, 0) : t]
            window[: len(inputs)] = inputs
            logits_V = np.float64(read(window[None])[len(inputs) - 1])
            nats += math.log(np.exp(logits_V).sum()) - logits_V[text[t]]
            count += 1
    assert found["scored_tokens"] == count
    assert found["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert not any(name.startswith("cleared") for name in found)
