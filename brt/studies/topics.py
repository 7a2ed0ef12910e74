"""Measures whether what a model writes keeps to the topics of the context.

A topic model of the training split gives every context and every continuation a mixture of topics,
and their divergence is what is compared: with the state kept and cleared, and with other runs.

Source: Adding Recurrence to Pretrained Transformers, section 5.3.1. It leaves open how words are
chosen, the base of the divergence and the test: here those of `topic_model`, base 2, a sign test.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from brt.evaluation.recorded_run import RecordedRun
from brt.studies.continuations import continuations
from brt.studies.topic_model import TopicModel, divergence

TOPICS = 20
BOOKS = 5_000
"""Topics, and training documents that they are found in; the paper's numbers."""
WORDS = 2**20
"""Tokens of a training document that are read, at most."""


class Topics(NamedTuple):
    """Divergences between the topics of contexts and of what was written after them.

    kept: of each context, with the run's state kept.
    beside: the same, by name: "cleared", and other runs.
    context_tokens, written_tokens: of each.
    topics, documents: of the topic model.
    """

    kept: np.ndarray
    beside: dict[str, np.ndarray]
    context_tokens: int
    written_tokens: int
    topics: int
    documents: int


class Lower(NamedTuple):
    """How often one of two is lower: share of the contexts where they differ, and a sign test's p,
    two-sided, by the normal approximation."""

    share: float
    p: float


def topics(
    run: RecordedRun,
    others: Mapping[str, RecordedRun],
    documents: np.ndarray,
    seed: int = 0,
    number: int = 8_000,
    length: int = 30,
    topic_count: int = TOPICS,
) -> Topics:
    """Compares the topics of contexts with those of greedy continuations.

    Args:
        run, others, documents, seed, number, length: as of `continuations`.
        topic_count: topics of the model.

    Raises:
        ValueError: as `continuations` and `TopicModel`.
    """
    written = continuations(run, others, documents, seed, number, length)
    store = run.experiment.open_store("train")
    count = min(store.num_documents, BOOKS)
    texts = (run.vocabulary.decode(store.tokens(d, 0, WORDS)) for d in range(count))
    model = TopicModel(texts, topic_count, seed=seed)

    def divergences(continued: list[str]) -> np.ndarray:
        return np.array([
            divergence(model.mixture(each.context), model.mixture(text))
            for each, text in zip(written.continuations, continued, strict=True)
        ])  # fmt: skip

    beside = {}
    cleared = [each.cleared for each in written.continuations]
    if all(text is not None for text in cleared):
        beside["cleared"] = divergences([text or "" for text in cleared])
    for name in others:
        beside[name] = divergences([each.others[name] for each in written.continuations])
    return Topics(
        divergences([each.kept for each in written.continuations]),
        beside,
        written.context_tokens,
        written.written_tokens,
        topic_count,
        count,
    )


def how_often_lower(ours: np.ndarray, theirs: np.ndarray) -> Lower:
    """Returns how often the first of two series is lower than the second."""
    lower = int((ours < theirs).sum())
    differ = int((ours != theirs).sum())
    if not differ:
        return Lower(0.5, 1.0)
    distance = abs(lower - differ / 2) / math.sqrt(differ / 4)
    return Lower(lower / differ, math.erfc(distance / math.sqrt(2)))
