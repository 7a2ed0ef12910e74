"""Classes and answers: each figure against its definition, computed independently."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.evaluation.labels.answer_scores import answer_f1, best_span, exact_match, normalized
from brt.evaluation.labels.classification import class_figures

pairs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)


@settings(deadline=None, derandomize=True)
@given(pairs)
def test_figures_of_classes_are_their_definitions(documents):
    confusion_CC = np.array([[documents.count((t, p)) for p in range(3)] for t in range(3)])
    found = class_figures(confusion_CC, ("a", "b", "c"))
    f1s = []
    for number, name in enumerate("abc"):
        true = sum(p == number and t == number for t, p in documents)
        false = sum(p == number and t != number for t, p in documents)
        missed = sum(p != number and t == number for t, p in documents)
        precision = true / (true + false) if true + false else 0
        recall = true / (true + missed) if true + missed else 0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
        f1s.append(f1)
        assert found[f"precision/{name}"] == pytest.approx(precision)
        assert found[f"recall/{name}"] == pytest.approx(recall)
        assert found[f"f1/{name}"] == pytest.approx(f1)
    assert found["macro_f1"] == pytest.approx(sum(f1s) / 3)
    assert found["accuracy"] == pytest.approx(sum(t == p for t, p in documents) / len(documents))
    assert "f1" not in found


@pytest.mark.parametrize("answer, expected", [
    ("The  Queen's Gambit!", "queens gambit"),
    ("An apple, a day", "apple day"),
    ("theatre ban", "theatre ban"),
    ("U.S.A.", "usa"),
    ("the", ""),
    ("“the” end", "“ ” end"),
])  # fmt: skip
def test_answers_are_normalised_as_the_official_scripts_do(answer, expected):
    assert normalized(answer) == expected


def reference_f1(one, other):
    """Takes away a word of the other answer for each that it finds."""
    drop = {"a", "an", "the"}
    words = []
    for text in (one, other):
        kept = "".join(c for c in text.lower() if c not in r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
        words.append([word for word in kept.split() if word not in drop])
    left = list(words[1])
    common = 0
    for word in words[0]:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return float(words[0] == words[1])
    precision, recall = common / len(words[0]), common / len(words[1])
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None, derandomize=True)
@given(*[st.lists(st.sampled_from(["the", "A", "river", "River,", "rose", "an", "no"]))] * 2)
def test_f1_of_answers_counts_words_as_often_as_they_occur(one, other):
    one, other = " ".join(one), " ".join(other)
    assert answer_f1(one, other) == pytest.approx(reference_f1(one, other))
    assert exact_match(one, other) == (normalized(one) == normalized(other))


def test_yes_and_no_share_nothing_with_other_answers():
    assert answer_f1("no one", "no") == pytest.approx(2 / 3)
    assert answer_f1("no one", "no", whole_only=True) == 0
    assert answer_f1("No.", "no", whole_only=True) == 1
    assert answer_f1("the yes", "a yes vote", whole_only=True) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_best_span_is_the_best_of_all_that_are_allowed(seed):
    draw = random.Random(seed)
    T = draw.randint(1, 12)
    scores = np.random.default_rng(seed).normal(size=(2, T))
    start = draw.randint(0, T - 1)
    stop = draw.randint(start + 1, T)
    longest = draw.randint(1, 5)
    found = best_span(*scores, slice(start, stop), longest)
    best = max(
        (scores[0, a] + scores[1, b], a, b)
        for a, b in itertools.product(range(start, stop), repeat=2)
        if a <= b < a + longest
    )
    assert (found.first, found.last) == best[1:]
    assert found.score == pytest.approx(best[0])
