"""Greedy continuations, and the topics of the generated text."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import PLAIN, build, command, train_here, write_config

from brt import evaluate
from brt.model_folder import load_run
from brt.studies.continuations import draw_contexts
from brt.studies.topics import TopicModel, divergences, how_often_lower

SEA = ["whale", "ship", "sail", "wave", "captain", "deck", "harbour", "storm"]
FARM = ["horse", "plough", "field", "barn", "wheat", "cow", "orchard", "fence"]


def texts_of(words, count, seed, length=40):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(words, length)) for _ in range(count)]


def test_two_topics_are_told_apart():
    texts = texts_of(SEA, 30, 0) + texts_of(FARM, 30, 1)
    model = TopicModel(texts, topics=2, most=0.9)
    mixed = "whale ship horse plough"
    texts = " ".join(SEA[:4]), " ".join(FARM[:4]), mixed, ""
    sea, farm, both, nothing = model.mixtures(texts)
    assert max(sea) > 0.85 and max(farm) > 0.85
    assert np.argmax(sea) != np.argmax(farm)
    assert both == pytest.approx([0.5, 0.5], abs=0.1)
    assert nothing == pytest.approx([0.5, 0.5])


def test_rare_and_common_words_make_no_topic():
    texts = ["the whale swam", "the whale sang", "the horse ran", "the ox"]
    assert list(TopicModel(texts, 2).words.get_feature_names_out()) == ["whale"]
    with pytest.raises(ValueError, match="1 documents"):
        TopicModel(["one text"], 2)


def test_divergence_is_0_of_equal_and_1_of_disjoint_mixtures():
    p, q = np.array([0.9, 0.1, 0]), np.array([0.2, 0.8, 0])
    m = (p + q) / 2
    pairs = zip([*p, *q], [*m, *m])
    by_hand = sum(x * math.log2(x / y) for x, y in pairs if x) / 2
    first = np.array([[0.3, 0.7, 0], [1, 0, 0], p])
    second = np.array([[0.3, 0.7, 0], [0, 0.5, 0.5], q])
    assert divergences(first, second) == pytest.approx([0, 1, by_hand])
    almost_NZ = np.random.default_rng(0).dirichlet(np.full(8, 0.3), 1000)
    assert (divergences(almost_NZ, np.nextafter(almost_NZ, 1)) >= 0).all()


def test_the_sign_test_counts_contexts_that_differ():
    ours, theirs = np.zeros(12), np.r_[np.ones(9), -np.ones(1), np.zeros(2)]
    share, p = how_often_lower(ours, theirs)
    assert share == 0.9
    # At least 9 of 10 heads, or at most 1: 2 (10 + 1) of 2^10 throws.
    assert p == pytest.approx(22 / 1024)
    assert how_often_lower(ours, ours) == (0.5, 1.0)


@pytest.fixture(scope="module")
def runs(folder):
    """Folders of a trained recurrent run and of one without a state, on the same texts."""
    for split, seed in (("train", 0), ("validation", 9), ("test", 18)):
        (folder / "texts" / split).mkdir(parents=True)
        for number in range(7):
            (text,) = texts_of(SEA if number % 2 else FARM, 1, seed + number, 12)
            (folder / "texts" / split / f"{number}.txt").write_text(text)
    tiny = build(write_config(folder, "Trainer.steps = 400", "Trainer.log_every = 400"))
    train_here(tiny, folder / "rec")
    train_here(build(write_config(folder, *PLAIN)), folder / "slide")
    return folder, tiny


def test_contexts_are_disjoint_whole_segments(store_of):
    store = store_of([64, 15, 50, 16, 90])
    every = draw_contexts(store, np.arange(5), 16, 100, seed=0)
    wanted = [(d, at) for d in range(5) for at in range(0, int(store.lengths_D[d]) - 15, 16)]
    assert every == wanted
    some = draw_contexts(store, np.arange(5), 16, 3, seed=1)
    assert len(some) == 3 and set(some) < set(wanted) and some == sorted(some)
    with pytest.raises(ValueError, match="1000"):
        draw_contexts(store, np.arange(5), 1000, 1, 0)


@pytest.mark.slow
def test_continuations_are_the_likeliest_from_scratch_each_time(runs, monkeypatch, capsys):
    folder, tiny = runs
    flags = f"--workdir={folder / 'rec'}", "--study=continuations", f"--other={folder / 'slide'}"
    sizes = "--gin.Continuations.contexts=3", "--gin.Continuations.written=5"
    assert not command(monkeypatch, evaluate, *flags, *sizes)
    found = json.loads((folder / "rec" / "studies" / "continuations.json").read_text())
    assert found["summary"] in capsys.readouterr().out
    tiny.bind()
    experiment, params, _ = load_run(str(folder / "rec"))
    model = experiment.bind(params)
    store = experiment.open_store("validation")
    vocabulary = experiment.trainer.corpus.vocabulary
    assert len(found["passages"]) == 3
    for passage in found["passages"]:
        at = passage["token"]
        context = store.tokens(passage["document"], at, at + 16).astype(np.int32)
        assert passage["context"] == vocabulary.decode(context)
        assert passage["written"].keys() == {"kept", "cleared", str(folder / "slide")}
        # The next segment is read whole again for each token that is written.
        inputs = jnp.asarray(np.concatenate([[-1], context[:-1]])[None])
        _, caches = model(inputs, model.init_caches(1))
        written = [int(context[-1])]
        for _ in range(5):
            segment = np.zeros((1, 16), np.int32)
            segment[0, : len(written)] = written
            logits, _ = model(jnp.asarray(segment), caches)
            written.append(int(jnp.argmax(logits[0, len(written) - 1])))
        assert passage["written"]["kept"] == vocabulary.decode(written[1:])


@pytest.mark.slow
def test_topics_are_one_command(runs, monkeypatch, capsys):
    folder, tiny = runs
    for study in ("Topics", "Continuations"):
        flags = f"--workdir={folder / 'rec'}", f"--gin.{study}.contexts=4"
        assert not command(monkeypatch, evaluate, *flags, f"--study={study.lower()}")
    assert "mean divergence" in capsys.readouterr().out
    found = json.loads((folder / "rec" / "studies" / "topics.json").read_text())
    continued = json.loads((folder / "rec" / "studies" / "continuations.json").read_text())
    passages = continued["passages"]
    tiny.bind()
    train = tiny.experiment.open_store("train")
    vocabulary = tiny.experiment.trainer.corpus.vocabulary
    model = TopicModel([vocabulary.decode(train.tokens(d)) for d in range(train.num_documents)])
    contexts_NZ = model.mixtures([each["context"] for each in passages])
    for name in ("kept", "cleared"):
        written_NZ = model.mixtures([each["written"][name] for each in passages])
        values = divergences(contexts_NZ, written_NZ)
        assert found["numbers"][f"divergence, {name}"] == pytest.approx(np.mean(values))
    assert 0 < found["numbers"]["divergence, kept"] < 1
    assert found["numbers"]["training_documents"] == train.num_documents


@pytest.mark.slow
def test_a_run_with_other_segments_is_refused(runs, monkeypatch, capsys):
    folder, _ = runs
    path = write_config(folder, *PLAIN, "Trainer.segment_length = 32")
    train_here(build(path), folder / "long")
    flags = f"--workdir={folder / 'rec'}", "--study=continuations", f"--other={folder / 'long'}"
    assert command(monkeypatch, evaluate, *flags)
    assert "and a context is one" in capsys.readouterr().err
