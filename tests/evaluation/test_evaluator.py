"""Evaluation: every token once, and the same number however the documents were batched."""

import math

import jax
import numpy as np
import pytest
from fabricated_recordings import make_store
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_reading import nats_of, segments
from tiny_run import PLAIN, build, mesh_of, one_device, random_params, write_config

from brt.data.mixture import MixedStore
from brt.data.streams.documents import DocumentPass
from brt.data.token_scores import TokenScores
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.scores import TokenSums
from brt.training.sharding import shardings

W = 8


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    return build(write_config(tmp_path_factory.mktemp("recurrent"))).experiment


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    return build(write_config(tmp_path_factory.mktemp("slide"), *PLAIN)).experiment


@pytest.fixture(scope="module")
def evaluated():
    """Scalars of an experiment on its validation split; each shape is compiled once."""
    compiled, known = {}, {}

    def run(experiment, rows, length, cleared=False, max_steps=None):
        shape, mesh = (id(experiment), rows, length), one_device()
        evaluation = experiment.evaluation
        evaluation.tokens_per_step, evaluation.segment_length = rows * length, length
        with jax.set_mesh(mesh):
            if shape not in compiled:
                store = experiment.open_store("validation")
                compiled[shape] = Evaluator(experiment, store, mesh)
            key = *shape, cleared, max_steps
            if key not in known:
                evaluation.cleared = cleared
                params = random_params(experiment)
                known[key] = compiled[shape].run(params, max_steps=max_steps)
        return known[key]

    return run


def plain_tokens(experiment, store):
    """Document, position, target, nats and rightness of all tokens, block by block."""
    params = random_params(experiment)
    for document in range(store.num_documents):
        for start, logits, targets, _ in segments(experiment, params, store, document, W):
            rows = zip(targets, nats_of(logits, targets), logits.argmax(-1) == targets)
            for position, row in enumerate(rows, start):
                yield document, position, *row


@pytest.fixture(scope="module")
def reference(recurrent, slide):
    sums = {}
    for experiment in (recurrent, slide):
        tokens = plain_tokens(experiment, experiment.open_store("validation"))
        sums[id(experiment)] = np.sum([token[3:] for token in tokens], axis=0)
    return sums


SHAPES = [(1, 8), (3, 24), (4, 16), (16, 64)]
"""Rows and segment lengths; the corpus has seven documents."""


@pytest.mark.parametrize("name", ["recurrent", "slide"])
@pytest.mark.parametrize(("rows", "length"), SHAPES)
def test_the_loss_is_that_of_a_loop_over_documents(
    name, rows, length, evaluated, reference, recurrent, slide
):
    experiment = {"recurrent": recurrent, "slide": slide}[name]
    scalars = evaluated(experiment, rows, length)
    manifest = experiment.open_store("validation").manifest
    nats, right = reference[id(experiment)]
    assert scalars["scored_tokens"] == manifest["tokens"]
    assert scalars["loss"] == pytest.approx(nats / manifest["tokens"], rel=1e-5)
    assert scalars["accuracy"] == pytest.approx(right / manifest["tokens"], rel=1e-12)
    assert scalars["bits_per_token"] == pytest.approx(scalars["loss"] / math.log(2), rel=1e-12)
    assert scalars["perplexity"] == pytest.approx(math.exp(scalars["loss"]), rel=1e-12)
    assert scalars["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / manifest["bytes"], rel=1e-5
    )
    bits = nats / math.log(2)
    assert scalars["bits_per_character"] == pytest.approx(bits / manifest["characters"], rel=1e-5)
    assert scalars["word_level_perplexity"] == pytest.approx(
        math.exp(nats / manifest["words"]), rel=1e-3
    )


@pytest.mark.parametrize(("max_steps", "shape"), [(None, (1, 1)), (6, (1, 1)), (None, (2, 2))])
def test_segments_together_change_no_scalar(evaluated, recurrent, max_steps, shape):
    """With a last call that is partly padding, and one that `max_steps` cuts."""
    expected = evaluated(recurrent, 3, 24, True, max_steps)
    mesh = mesh_of(*shape)
    recurrent.evaluation.segments_together = 4
    try:
        with jax.set_mesh(mesh):
            evaluator = Evaluator(recurrent, recurrent.open_store("validation"), mesh)
            assert evaluator.stream.num_steps % 4
            params = random_params(recurrent)
            params = jax.device_put(params, shardings(params, mesh))
            found = evaluator.run(params, max_steps=max_steps)
    finally:
        recurrent.evaluation.segments_together = 1
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_mixture_has_figures_of_each_store_and_of_all(evaluated, recurrent, tmp_path):
    alone = {"first": evaluated(recurrent, 3, 16, cleared=True)}
    texts = [chr(65 + n) * (5 + 9 * n) for n in range(4)]
    second = make_store(tmp_path / "second" / "validation", texts)
    stores = [recurrent.open_store("validation"), second]
    mesh, params = one_device(), random_params(recurrent)
    with jax.set_mesh(mesh):
        alone["tokens"] = Evaluator(recurrent, stores[1], mesh).run(params)
        mixed = MixedStore(stores, [0.9, 0.1], ["first", "tokens"])
        together = Evaluator(recurrent, mixed, mesh).run(params)
        recurrent.evaluation.tokens_per_step = 16  # one row: one document, of one store
        part = Evaluator(recurrent, mixed, mesh).run(params, max_steps=1)
    for name, figures in alone.items():
        own = {key: together[f"{key}/{name}"] for key in figures}
        assert own == pytest.approx(figures, rel=1e-6)
    assert len(together) == 3 * len(alone["tokens"])
    total = sum(figures["scored_tokens"] for figures in alone.values())
    assert together["scored_tokens"] == total
    assert together["loss"] == pytest.approx(
        sum(figures["loss"] * figures["scored_tokens"] for figures in alone.values()) / total
    )
    assert {key.partition("/")[2] for key in part} == {"", "first"}
    assert part["loss"] == part["loss/first"] and "bits_per_byte/first" not in part


def test_only_whole_splits_have_bits_per_byte(evaluated, slide):
    part, whole = evaluated(slide, 4, 16, max_steps=2), evaluated(slide, 4, 16)
    assert "bits_per_byte" in whole and "bits_per_byte" not in part
    stream = DocumentPass(slide.open_store("validation"), 4, 16)
    expected = sum(stream.batch(step).weights_KBT.sum() for step in range(2))
    assert part["scored_tokens"] == expected < whole["scored_tokens"]
    assert "bits_per_byte" in evaluated(slide, 4, 16, max_steps=stream.num_steps + 5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.integers(1, 16),
    st.sampled_from([8, 16, 64]),
)
def test_a_finished_row_takes_the_next_document(store_of, lengths, rows, length):
    """However the lengths differ: once a row is idle, no document is begun in another."""
    stream = DocumentPass(store_of(lengths), rows, length)
    for step in range(1, stream.num_steps):
        documents_B, offsets_B = stream.positions(step)
        begun_B = (documents_B >= 0) & (offsets_B == 0)
        assert not begun_B.any() or (stream.positions(step - 1)[0] >= 0).all()
    assert (stream.positions(0)[0] >= 0).sum() == min(rows, len(lengths))


@pytest.mark.parametrize(("rows", "length"), [(3, 24), (4, 16)])
def test_meliad_scoring_omits_first_tokens_and_id_0(tmp_path, slide, rows, length):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("00aet"), n)).replace("0", "\0") for n in (1, 24, 50)]
    store, mesh, evaluation = make_store(tmp_path / "zeros", texts), one_device(), slide.evaluation
    evaluation.tokens_per_step, evaluation.segment_length = rows * length, length
    evaluation.meliad_scoring = True
    try:
        with jax.set_mesh(mesh):
            scalars = Evaluator(slide, store, mesh).run(random_params(slide))
    finally:
        evaluation.meliad_scoring = False
    tokens = [t for t in plain_tokens(slide, store) if t[1] % length and t[2] != 0]
    unscored = sum(-(-len(text) // length) for text in texts)
    assert 0 < len(tokens) < 75 - unscored  # some zeros stand elsewhere
    assert scalars["scored_tokens"] == len(tokens)
    assert scalars["loss"] == pytest.approx(np.mean([nats for *_, nats, _ in tokens]), rel=1e-5)
    assert "bits_per_byte" not in scalars


# The state cleared.


def test_clearing_costs_and_scores_the_same_tokens(evaluated, recurrent):
    scalars = evaluated(recurrent, 4, 16, cleared=True)
    assert abs(scalars["cleared_loss"] - scalars["loss"]) > 1e-4
    assert scalars["loss"] == evaluated(recurrent, 4, 16)["loss"]
    names = ("bits_per_token", "perplexity", "accuracy", "bits_per_character")
    assert {f"cleared_{name}" for name in names} <= set(scalars)
    assert not {"cleared_scored_tokens", "cleared_tokens_per_word"} & set(scalars)
    assert not any(name.startswith("cleared") for name in evaluated(recurrent, 4, 16))


def test_a_model_without_a_state_is_not_evaluated_twice(evaluated, slide):
    assert evaluated(slide, 4, 16, cleared=True) == evaluated(slide, 4, 16)


# Sums.


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("length", [1, 3, 8, 16, 200])
def test_sums_depend_neither_on_rows_nor_on_segments(slide, rows, length):
    store = slide.open_store("validation")

    def cost(document, position):
        return 1 + 0.01 * document + 0.0001 * position

    stream, sums, score = DocumentPass(store, rows, length), {}, TokenSums()
    for step in range(stream.num_steps):
        documents, offsets = stream.positions(step)
        nats = cost(documents[:, None], offsets[:, None] + np.arange(length))
        weights = stream.batch(step).weights_KBT[0]
        nats[weights == 0] = np.nan  # outputs at padding have no meaning
        correct = (offsets[:, None] + np.arange(length)) % 3 == 0
        score.add(sums, store, TokenScores(documents, offsets, None, weights, nats, correct))
    scalars = score.scalars(sums, store, whole=True)
    tokens = [(d, p) for d in range(store.num_documents) for p in range(store.lengths_D[d])]
    expected = sum(cost(*token) for token in tokens)
    assert scalars["scored_tokens"] == len(tokens) == store.manifest["tokens"]
    assert scalars["loss"] == pytest.approx(expected / len(tokens), rel=1e-12)
    assert scalars["accuracy"] == pytest.approx(
        sum(p % 3 == 0 for _, p in tokens) / len(tokens), rel=1e-12
    )


# What cannot be divided.


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")
@pytest.mark.parametrize("stream", ["documents", "contiguous"])
def test_rows_that_do_not_divide_over_devices_score_the_same(recurrent, stream):
    evaluation, trainer = recurrent.evaluation, recurrent.trainer
    evaluation.tokens_per_step, evaluation.segment_length, evaluation.cleared = 48, 16, True
    before, trainer.stream = trainer.stream, stream
    found = []
    for mesh in (one_device(), mesh_of(2, 1), mesh_of(4, 1)):
        with jax.set_mesh(mesh):
            params = random_params(recurrent)
            params = jax.device_put(params, shardings(params, mesh))
            store = recurrent.open_store("validation")
            found.append(Evaluator(recurrent, store, mesh).run(params))
    trainer.stream = before
    assert found[1] == pytest.approx(found[0]) == found[2]
    assert found[0].keys() == found[1].keys() and "cleared_loss" in found[0]
