"""The recall task: solvable with memory, and only with memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_algorithmic_tasks import samples

from brt.data.tasks.recall import ASK, DEFINE, FIRST_KEY, RecallTask, answer_distances

SMALL = {"num_documents": 20, "num_held_out": 20, "document_length": 300, "max_distance": 200}


def plain_answers(tokens):
    """Reads a document token by token: (position, distance, value by memory) of each answer."""
    known = {}
    found = []
    for at in range(2, len(tokens)):
        if tokens[at - 2] == DEFINE:
            known[tokens[at - 1]] = (at, tokens[at])
        if tokens[at - 2] == ASK:
            where, value = known[tokens[at - 1]]
            found.append((at, at - where, value))
    return found


@st.composite
def tasks(draw):
    facts = draw(st.integers(1, 6))
    low = draw(st.integers(3, 40))
    high = draw(st.integers(low, 150))
    shortest = high + 3 + 20 * (facts - 1) + draw(st.sampled_from([0, 1, 50]))
    return RecallTask(
        num_documents=4,
        num_held_out=2,
        document_length=(shortest, shortest + draw(st.sampled_from([0, 30]))),
        num_facts=facts,
        num_keys=facts + draw(st.integers(0, 3)),
        num_values=draw(st.integers(1, 9)),
        num_fillers=draw(st.integers(1, 5)),
        min_distance=low,
        max_distance=high,
        seed=draw(st.integers(0, 5)),
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(tasks())
def test_each_fact_is_defined_and_asked_once_in_range(task):
    for document in task.documents("train"):
        tokens = document.tokens.tolist()
        assert task.lengths[0] <= len(tokens) <= task.lengths[1]
        assert tokens.count(DEFINE) == tokens.count(ASK) == task.num_facts
        answers = plain_answers(tokens)
        assert len(answers) == task.num_facts
        keys = [tokens[at - 1] for at, _, _ in answers]
        assert all(tokens.count(key) == 2 for key in keys)
        first_value = FIRST_KEY + task.num_keys
        values = range(first_value, first_value + task.num_values)
        positions = {at for at, _, _ in answers} | {at - d for at, d, _ in answers}
        for at, token in enumerate(tokens):
            assert (token in values) == (at in positions)
        for at, distance, value in answers:
            assert task.min_distance <= distance <= task.max_distance
            assert tokens[at] == value  # an oracle that remembers is always right
        assert max(tokens) < task.vocabulary.size
        recovered = answer_distances(tokens)  # from the tokens alone
        assert list(zip(*(x.tolist() for x in recovered))) == [answer[:2] for answer in answers]
        weights = np.zeros(len(tokens))
        weights[[at for at, _, _ in answers]] = 1
        assert document.weights.tolist() == weights.tolist()
        assert document.weights.dtype == np.float32


def test_a_question_without_a_definition_is_refused():
    with pytest.raises(ValueError, match="key 5"):
        answer_distances([9, ASK, 5, 7, DEFINE, 5, 7])
    assert [a.tolist() for a in answer_distances([9, 9])] == [[], []]


def test_what_is_near_says_nothing_about_a_far_answer():
    """Fits, on half the documents, the best guess from the 1 to 6 tokens before an answer."""
    sizes = dict(num_documents=3000, document_length=120, min_distance=30, max_distance=90)
    task = RecallTask(**sizes, num_facts=2, num_keys=4, num_values=4, num_fillers=2)
    documents = [document.tokens.tolist() for document in task.documents("train")]
    for order in [1, 2, 4, 6]:
        counts = {}
        right = asked = 0
        for number, tokens in enumerate(documents):
            for at, _, value in plain_answers(tokens):
                votes = counts.setdefault(tuple(tokens[at - order : at]), {})
                if number < len(documents) / 2:
                    votes[value] = votes.get(value, 0) + 1
                else:
                    asked += 1
                    right += max(votes, key=votes.get, default=None) == value
        chance = 1 / 4
        spread = (chance * (1 - chance) / asked) ** 0.5
        assert right / asked < chance + 4 * spread


def test_documents_follow_from_seed_split_and_number():
    first = samples(RecallTask(**SMALL), "train")
    assert first == samples(RecallTask(**SMALL), "train")
    longer = samples(RecallTask(**(SMALL | {"num_documents": 25})), "train")
    assert longer[:20] == first
    groups = [
        first,
        samples(RecallTask(**SMALL), "validation"),
        samples(RecallTask(**SMALL), "test"),
        samples(RecallTask(**SMALL, seed=1), "train"),
    ]
    together = {tuple(tokens) for group in groups for tokens in group}
    assert len(together) == 80


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"num_facts": 0}, "num_facts"),
        ({"num_values": 0}, "num_values"),
        ({"seed": -1}, "seed"),
        ({"num_keys": 3}, "num_keys = 3"),
        ({"min_distance": 2}, "min_distance = 2"),
        ({"min_distance": 900}, "max_distance = 768"),
        ({"document_length": 830}, "document_length = 830"),
        ({"document_length": (900, 890)}, "document_length"),
    ],
)
def test_settings_without_room_for_the_facts_are_refused(settings, name):
    with pytest.raises(ValueError, match=name):
        RecallTask(**settings)


def vocabulary_of(num_keys, num_values, num_fillers):
    return RecallTask(num_keys=num_keys, num_values=num_values, num_fillers=num_fillers).vocabulary


def test_the_vocabulary_encodes_and_decodes_words():
    vocabulary = vocabulary_of(4, 8, 3)
    text = "define k3 v7 . . ask k3"
    ids = vocabulary.encode(text.encode(), "prompt")
    assert ids.tolist() == [DEFINE, 5, 13, 14, 14, ASK, 5]
    assert vocabulary.decode(ids) == text
    assert vocabulary.decode([14, 15, 16]) == ". . ."
    assert vocabulary.size == 17
    with pytest.raises(ValueError, match="17"):
        vocabulary.decode([17])
    with pytest.raises(ValueError, match="'prompt' has 'k4'"):
        vocabulary.encode(b"ask k4", "prompt")


def test_vocabularies_of_other_sizes_have_other_fingerprints():
    sizes = [(4, 8, 3), (5, 8, 3), (4, 9, 3), (4, 8, 4), (5, 7, 3)]
    assert len({vocabulary_of(*size).fingerprint for size in sizes}) == len(sizes)
    # For good: stores made today must be accepted tomorrow.
    assert vocabulary_of(4, 8, 3).fingerprint.startswith("40c4872d3c48")
