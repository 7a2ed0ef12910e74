"""Scores of answers to questions: exact match and F1 of words, after the official normalisation.

Sources: Rajpurkar et al. 2016, SQuAD, arXiv:1606.05250; Yang et al. 2018, arXiv:1809.09600, for yes
and no.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
WHOLE_ONLY = ("yes", "no", "noanswer")


def normalized(answer: str) -> str:
    without = answer.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", without).split())


def exact_match(predicted: str, right: str) -> float:
    return float(normalized(predicted) == normalized(right))


def answer_f1(predicted: str, right: str, whole_only: bool = False) -> float:
    """Returns the F1 of the words of two answers, with multiplicity.

    whole_only: yes and no match nothing but themselves, as in HotpotQA.
    """
    one = normalized(predicted)
    other = normalized(right)
    compared_whole = whole_only and (one in WHOLE_ONLY or other in WHOLE_ONLY)
    if compared_whole or not one or not other:
        return float(one == other)
    ours, theirs = one.split(), other.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def answer_figures(
    predicted: Sequence[str], right: Sequence[Sequence[str]], whole_only: bool = False
) -> dict[str, float]:
    """Returns `answer_f1` and `exact_match`, means over questions of the best score, as shares."""
    pairs = list(zip(predicted, right, strict=True))
    f1s = [max(answer_f1(answer, one, whole_only) for one in correct) for answer, correct in pairs]
    matches = [max(exact_match(answer, one) for one in correct) for answer, correct in pairs]
    return {
        "answer_f1": float(np.mean(f1s)),
        "exact_match": float(np.mean(matches)),
        "questions": float(len(pairs)),
    }


class Span(NamedTuple):
    """A part of a segment: first and last position, and its score."""

    first: int
    last: int
    score: float


def best_span(first_T: np.ndarray, last_T: np.ndarray, allowed: slice, longest: int) -> Span | None:
    """Returns the allowed part of a segment with the highest sum of both scores, if any.

    Args:
        first_T, last_T: scores of each position as the first and as the last, (T,).
        allowed: positions that may be in the part.
    """
    start, stop, _ = allowed.indices(len(first_T))
    best = None
    for length in range(1, min(longest, stop - start) + 1):
        scores = first_T[start : stop - length + 1] + last_T[start + length - 1 : stop]
        at = int(np.argmax(scores))
        if best is None or scores[at] > best.score:
            best = Span(start + at, start + at + length - 1, float(scores[at]))
    return best
