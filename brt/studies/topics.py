"""Compares the topics of contexts and of their continuations.

A topic model of the training split gives every context and continuation a mixture of topics.

Source: Adding Recurrence to Pretrained Transformers, section 5.3.1. It leaves open the choice of
    words, the base of the divergence and the test: here those of `topic_model`, base 2, a sign
    test.
"""

import math
from dataclasses import dataclass

import numpy as np

from brt.checks import Count, configurable
from brt.evaluation.recorded_run import RecordedRun
from brt.studies.continuations import continued_texts
from brt.studies.study import Content, Runs, Study, content
from brt.studies.topic_model import TopicModel, divergence

TOPICS = 20
BOOKS = 5_000
"""Training documents of the topic model; both as in the paper."""
WORDS = 2**20


@configurable
@dataclass(eq=False)
class Topics(Study):
    """Topics of contexts, and of their continuations by the run and by others.

    Args:
        contexts: most contexts, which are drawn. The paper has 8,000.
        written: tokens after each context.
        topics: of the topic model.
    """

    title = "Topics of continuations"
    caption = "Divergence between the topics of contexts and of their greedy continuations."
    most_others = math.inf
    any_stream = True

    contexts: Count = 10
    written: Count = 30
    topics: Count = TOPICS

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        texts = continued_texts(run, others, documents, seed, self.contexts, self.written)
        store = run.experiment.open_store("train")
        count = min(store.num_documents, BOOKS)
        books = (run.vocabulary.decode(store.tokens(d, 0, WORDS)) for d in range(count))
        model = TopicModel(books, self.topics, seed=seed)
        contexts = list(map(model.mixture, texts.contexts))
        divergences = {
            name: np.array([divergence(a, model.mixture(b)) for a, b in zip(contexts, written)])
            for name, written in texts.written.items()
        }
        kept = divergences.pop("kept")
        numbers = {
            "contexts": len(kept),
            "topics": self.topics,
            "training_documents": count,
            "divergence, kept": float(kept.mean()),
        }
        clauses = [
            f"Topics of {len(kept):,} contexts of {run.segment_length:,} tokens and of "
            f"greedy continuations of {self.written:,}: mean divergence {kept.mean():.4f}, base 2"
        ]
        for name, values in divergences.items():
            share, p = how_often_lower(kept, values)
            numbers |= {
                f"divergence, {name}": float(values.mean()),
                f"lower_than, {name}": share,
                f"p, {name}": p,
            }
            clauses.append(
                f"{name} {values.mean():.4f}, kept lower in {share:.1%} of those that differ "
                f"(sign test, p {p:.2g})"
            )
        return content(numbers, [], "; ".join(clauses) + ".")


def how_often_lower(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Returns the share of the differing contexts where ours is lower, and p of a sign test."""
    lower = int((ours < theirs).sum())
    differ = int((ours != theirs).sum())
    if not differ:
        return 0.5, 1.0
    distance = abs(lower - differ / 2) / math.sqrt(differ / 4)
    return lower / differ, math.erfc(distance / math.sqrt(2))
