"""Multi-query associative recall, against a solver that reads the tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_tables import manual_table

from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.select import evaluation_pass, training_stream
from brt.data.tasks.answers import answers_of
from brt.data.tasks.mqar import BLANK, MultiQueryRecall


def read(tokens, pairs, first_value):
    """Positions and values of the answers, and where they were defined, token by token."""
    known = {}
    for at in range(0, 2 * pairs, 2):
        assert 0 < tokens[at] < first_value <= tokens[at + 1]
        known[tokens[at]] = (at + 1, tokens[at + 1])
    assert len(known) == pairs
    found = []
    for at in range(2 * pairs, len(tokens) - 1):
        if tokens[at] in known:
            defined, value = known[tokens[at]]
            found.append((at + 1, value, defined))
    return found


@st.composite
def tasks(draw):
    pairs = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2, unique=True))
    lengths = [draw(st.integers(4 * max(pairs), 90))]  # fits every number of pairs
    lengths += draw(st.lists(st.integers(4 * min(pairs), 90), max_size=1))
    return MultiQueryRecall(
        num_documents=5,
        num_held_out=3,
        lengths=tuple(lengths),
        num_pairs=tuple(pairs),
        vocabulary_size=draw(st.integers(16, 40)),
        power=draw(st.sampled_from([0.01, 1.0, 2.0])),
        random_fillers=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(tasks())
def test_each_key_is_asked_once_and_its_value_follows(task):
    for number, document in enumerate(task.documents("train")):
        length, pairs = task.cell(number)
        assert length >= 4 * pairs
        tokens = document.tokens.tolist()
        found = read(tokens, pairs, task.first_value)
        answers = answers_of(document.annotation)
        assert (answers.length, answers.facts) == (length, pairs) and len(tokens) == length
        assert [(a.start, a.stop, a.needed) for a in answers.answers] == [
            (at, at + 1, defined) for at, _, defined in found
        ]
        assert len(found) == pairs and len({tokens[at - 1] for at, _, _ in found}) == pairs
        assert all(tokens[at] == value for at, value, _ in found)  # an oracle is always right
        assert np.flatnonzero(document.weights).tolist() == [at for at, _, _ in found]
        fillers = set(range(2 * pairs, length)) - {
            at - back for at, _, _ in found for back in (0, 1)
        }
        if not task.random_fillers:
            assert all(tokens[at] == BLANK for at in fillers)
        assert max(tokens) < task.vocabulary.size


def test_documents_cycle_through_lengths_and_pairs():
    def contents(split="test", **change):
        task = MultiQueryRecall(
            **{"num_held_out": 8, "lengths": (32, 64), "num_pairs": (1, 4)} | change
        )
        return [document.tokens.tolist() for document in task.documents(split)]

    first = contents()
    assert [len(tokens) for tokens in first] == [32, 32, 64, 64] * 2
    assert first == contents() and first == contents(num_held_out=12)[:8]
    assert first != contents(seed=1) and first != contents("validation")


@pytest.mark.parametrize(("lengths", "num_pairs"), [(4, 2), ((4, 64), 2), (32, (2, 16))])
def test_a_length_or_pairs_without_a_fit_are_refused(lengths, num_pairs):
    with pytest.raises(ValueError, match=r"MultiQueryRecall\.lengths"):
        MultiQueryRecall(lengths=lengths, num_pairs=num_pairs, vocabulary_size=64)


PUBLISHED = dict(lengths=65, num_pairs=4, vocabulary_size=8192, random_fillers=False)


def test_questions_are_as_published(tmp_path):
    """Inputs without answers; each query's target is its key's value, and nothing else counts."""
    task = MultiQueryRecall(num_documents=40, num_held_out=9, **PUBLISHED)
    stores = {}
    for split in ("train", "test"):
        documents = task.documents(split)
        write_store(tmp_path / split, documents, task.vocabulary, {}, quiet=True)
        stores[split] = TokenStore(tmp_path / split)
    assert task.input_length == 64
    read = evaluation_pass("questions", stores["test"], 4, 32)
    halves = [read.batch(step) for step in range(read.num_steps)]
    whole = [np.concatenate(pair, axis=-1) for pair in zip(halves[0][:3], halves[1][:3])]
    batch = training_stream("questions", stores["train"], 7, 64, 1, seed=2).batch(3)
    for arrays in (batch[:3], whole):
        for inputs, targets, weights in zip(*(array.reshape(-1, 64) for array in arrays)):
            value_of = dict(zip(inputs[:8:2].tolist(), inputs[1:8:2].tolist()))
            assert len(value_of) == 4 and all(0 < key < 4096 for key in value_of)
            assert all(4096 <= value < 8192 for value in value_of.values())
            asked = np.flatnonzero(inputs[8:]) + 8
            assert sorted(inputs[asked].tolist()) == sorted(value_of)  # each key once, no value
            assert (asked % 2 == 0).all()
            assert targets[asked].tolist() == [value_of[key] for key in inputs[asked].tolist()]
            assert np.flatnonzero(weights).tolist() == asked.tolist()
            assert (weights[asked] == 1).all()


def test_gaps_of_the_published_size_follow_the_power_law():
    """Against the same law by another algorithm: the largest of log p plus Gumbel noise."""
    task = MultiQueryRecall(num_documents=3000, **PUBLISHED)
    found = np.zeros(28)
    for document in task.documents("train"):
        for start, _, _ in document.annotation["answers"]:
            found[(start - 9) // 2] += 1
    rng = np.random.default_rng(0)
    log_p = -0.99 * np.log(np.arange(1, 29))
    drawn = np.argsort(-(log_p + rng.gumbel(size=(200_000, 28))), axis=1)[:, :4]
    expected = 3000 * np.bincount(drawn.ravel(), minlength=28) / 200_000
    assert ((found - expected) ** 2 / expected).sum() < 55  # 27 degrees of freedom: p = 0.001
    assert found[0] > 2 * found[3] > 2 * found[20]


def test_questions_need_tokens_that_are_not_scored(store_of):
    with pytest.raises(ValueError, match=r"Trainer.stream"):
        training_stream("questions", store_of([9, 9]), 1, 4, 2)


def test_rules_without_knowledge_are_right_as_often_as_planned():
    """The shares in docs/results/zoology_plan.md, by the order in which pairs are asked."""
    shown = np.array([shares for _, *shares in manual_table("zoology_rules")[1:]], float)
    rng = np.random.default_rng(5)
    for column, (length, pairs) in enumerate(((64, 4), (128, 8))):
        slots = (length - 2 * pairs) // 2
        log_p = -0.99 * np.log(np.arange(1, slots + 1)) + rng.gumbel(size=(100_000, slots))
        slot_NP = np.argsort(-log_p, axis=1)[:, :pairs]
        asked_NR = np.argsort(slot_NP, axis=1)  # the pair asked at each rank
        left = pairs - np.arange(pairs)
        first_NR = [  # the first pair that is not among those asked before
            (asked_NR[:, :rank, None] == np.arange(pairs)).any(axis=1).argmin(axis=1)
            for rank in range(pairs)
        ]
        often = [np.bincount(asked, minlength=pairs).max() for asked in asked_NR.T]
        back_NP = 2 * pairs + 2 * slot_NP - (2 * np.arange(pairs) + 1)
        near = [np.mean(back_NP < window) for window in (16, 64)]
        expected = [
            1 / 4096,
            1 / pairs,
            np.mean(often) / len(asked_NR),
            np.mean(1 / left),
            np.mean(np.stack(first_NR, axis=1) == asked_NR),
            *(share + (1 - share) / pairs for share in near),
        ]
        np.testing.assert_allclose(shown[:, column], expected, atol=3e-3)
