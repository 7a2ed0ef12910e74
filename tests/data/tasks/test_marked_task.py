"""Marked texts: one mark near the beginning tells the class, and nothing else does."""

import numpy as np
import pytest

from brt.data.tasks.marked import END, OPEN, WORDS, MarkTask
from brt.data.vocabularies.base import Frame

SETTINGS = dict(num_documents=300, num_held_out=200, length=12, mark_within=4, num_fillers=5)


@pytest.fixture(scope="module")
def documents():
    return [*MarkTask(**SETTINGS).documents("train")]


def test_the_mark_is_the_only_token_that_depends_on_the_class(documents):
    marks = [WORDS.index("mark_no"), WORDS.index("mark_yes")]
    positions, labels = [], []
    for document in documents:
        (at,) = np.flatnonzero(np.isin(document.tokens, marks))
        assert document.tokens[at] == marks[document.annotation["label"]]
        rest = np.delete(document.tokens, at)
        assert rest.min() >= len(WORDS) and rest.max() < len(WORDS) + 5
        positions.append(int(at))
        labels.append(document.annotation["label"])
    assert {*positions} == {0, 1, 2, 3} and len(documents) == 300
    assert 0.4 < np.mean(labels) < 0.6


def test_a_text_is_framed_as_its_reader_expects():
    vocabulary = MarkTask(**SETTINGS).vocabulary
    assert vocabulary.decode([3, 6, 7]) == "no mark_yes f0"
    assert vocabulary.size == len(WORDS) + 5
    assert vocabulary.frame == Frame((OPEN,), (END,))
    without = MarkTask(**SETTINGS, opened=False).vocabulary
    assert without.frame == Frame((), (END,))
    assert without.fingerprint != vocabulary.fingerprint
    assert vocabulary.fingerprint.startswith("d02f7cfac2c5")
