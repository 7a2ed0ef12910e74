"""Compares the topics of contexts and of their continuations.

A topic model of the training split gives every context and continuation a mixture of topics.

Source: Adding Recurrence to Pretrained Transformers, section 5.3.1. It leaves open the choice of
    words, the base of the divergence and the test: here those of `TopicModel`, base 2, a sign test.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from brt.checks import Count, configurable
from brt.data.extras import extra_library
from brt.evaluation.recorded_run import RecordedRun
from brt.studies.continuations import continued_texts
from brt.studies.study import Content, Runs, Study, content

TOPICS = 20
BOOKS = 5_000
"""Training documents of the topic model; both as in the paper."""
TOKENS = 2**20
"""Of a training document, at most."""


class TopicModel:
    """Latent Dirichlet allocation, by scikit-learn, over words of at least three characters.

    Args:
        most: largest share of texts with a word, which is in two or more.

    Source: Blei, Ng and Jordan 2003, Latent Dirichlet Allocation.
    """

    def __init__(
        self,
        texts: Iterable[str],
        topics: int = TOPICS,
        most: float = 0.5,
        seed: int = 0,
    ):
        words = extra_library("sklearn.feature_extraction.text", "brt.studies.topics", "topics")
        models = extra_library("sklearn.decomposition", "brt.studies.topics", "topics")
        self.words = words.CountVectorizer(
            token_pattern=r"[^\W\d_]{3,}", min_df=2, max_df=most, max_features=10_000
        )
        texts = list(texts)
        try:
            counts_NW = self.words.fit_transform(texts)
        except ValueError:
            raise ValueError(
                f"No word of three letters is in two or more of the {len(texts)} documents of the "
                "training split and not in most: a topic study needs more of them."
            ) from None
        rounds = dict(max_iter=30, mean_change_tol=1e-4)
        self.model = models.LatentDirichletAllocation(topics, random_state=seed, **rounds)
        self.model.fit(counts_NW)

    def mixtures(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the expected share of each topic in each text, float64 (N, Z)."""
        return self.model.transform(self.words.transform(texts))


def divergences(first_NZ: np.ndarray, second_NZ: np.ndarray) -> np.ndarray:
    """Returns Jensen-Shannon divergences, base 2, of rows: 0 if equal, 1 if disjoint."""
    from scipy.special import rel_entr

    middle_NZ = (first_NZ + second_NZ) / 2
    nats_NZ = (rel_entr(first_NZ, middle_NZ) + rel_entr(second_NZ, middle_NZ)) / 2
    # Rounding may make it negative, of which scipy's `jensenshannon` takes a root.
    return np.maximum(nats_NZ.sum(axis=1), 0) / math.log(2)


@configurable
@dataclass(eq=False)
class Topics(Study):
    """Topics of contexts, and of their continuations by the run and by others."""

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
        books = (run.vocabulary.decode(store.tokens(d, 0, TOKENS)) for d in range(count))
        model = TopicModel(books, self.topics, seed=seed)
        contexts_NZ = model.mixtures(texts.contexts)
        found = {
            name: divergences(contexts_NZ, model.mixtures(written))
            for name, written in texts.written.items()
        }
        kept = found.pop("kept")
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
        for name, values in found.items():
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
    """Returns the share of differing contexts where ours is lower, and p of an exact sign test."""
    from scipy.stats import binomtest  # slow to import

    lower = int((ours < theirs).sum())
    differ = int((ours != theirs).sum())
    if not differ:
        return 0.5, 1.0
    return lower / differ, float(binomtest(lower, differ).pvalue)
