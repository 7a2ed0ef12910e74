"""Latent Dirichlet allocation by variational Bayes.

Source: Blei, Ng and Jordan 2003, Latent Dirichlet Allocation; the updates are those of Hoffman,
    Blei and Bach 2010, Online Learning for Latent Dirichlet Allocation, with all documents in each
    round.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

WORD = re.compile(r"[^\W\d_]{3,}")


class TopicModel:
    """Topics of a collection, and the mixture of topics of any text.

    N documents, W words of the vocabulary, Z topics.

    Args:
        rounds: of estimation, over all documents.
        words: most words of the vocabulary, the most frequent.
        fewest, most: least number and largest share of documents with a word.

    Attributes:
        topics_ZW: share of each word in each topic, float64.
    """

    def __init__(
        self,
        texts: Iterable[str],
        topics: int = 20,
        rounds: int = 30,
        words: int = 10_000,
        fewest: int = 2,
        most: float = 0.5,
        seed: int = 0,
    ):
        counts = [words_of(text) for text in texts]
        documents = Counter(word for count in counts for word in count)
        total: Counter[str] = Counter()
        for count in counts:
            total.update(count)
        allowed = [w for w, n in documents.items() if fewest <= n <= most * len(counts)]
        allowed = sorted(allowed, key=lambda word: (-total[word], word))[:words]
        if not allowed:
            raise ValueError(
                f"No word of three letters is in {fewest} or more of the {len(counts)} documents "
                "of the training split and not in most: a topic study needs more of them."
            )
        self.vocabulary = {word: number for number, word in enumerate(allowed)}
        self.prior = 1.0 / topics
        bags = [self._bag(count) for count in counts]
        lambda_ZW = np.random.default_rng(seed).gamma(100.0, 0.01, (topics, len(allowed)))
        for _ in range(rounds):
            expected_ZW = np.exp(_expected_log(lambda_ZW))
            sums_ZW = np.zeros_like(lambda_ZW)
            for numbers_W, counts_W in bags:
                if len(numbers_W):
                    gamma_Z = self._gamma(numbers_W, counts_W, expected_ZW)
                    theta_Z = np.exp(_expected_log(gamma_Z))
                    of_words_ZW = expected_ZW[:, numbers_W]
                    norm_W = theta_Z @ of_words_ZW + 1e-100
                    sums_ZW[:, numbers_W] += theta_Z[:, None] * of_words_ZW * (counts_W / norm_W)
            lambda_ZW = self.prior + sums_ZW
        self.topics_ZW = lambda_ZW / lambda_ZW.sum(axis=1, keepdims=True)
        self._expected_ZW = np.exp(_expected_log(lambda_ZW))

    def mixture(self, text: str) -> np.ndarray:
        """Returns the expected share of each topic in a text, float64 (Z,)."""
        gamma_Z = self._gamma(*self._bag(words_of(text)), self._expected_ZW)
        return gamma_Z / gamma_Z.sum()

    def _bag(self, counts: Counter[str]) -> tuple[np.ndarray, np.ndarray]:
        known = [(self.vocabulary[w], n) for w, n in counts.items() if w in self.vocabulary]
        numbers_W, counts_W = np.array(sorted(known)).reshape(-1, 2).T
        return numbers_W.astype(int), counts_W.astype(float)

    def _gamma(self, numbers_W, counts_W, expected_ZW, rounds=100):
        of_words_ZW = expected_ZW[:, numbers_W]
        gamma_Z = np.ones(len(expected_ZW))
        for _ in range(rounds):
            theta_Z = np.exp(_expected_log(gamma_Z))
            norm_W = theta_Z @ of_words_ZW + 1e-100
            last_Z = gamma_Z
            gamma_Z = self.prior + theta_Z * (of_words_ZW @ (counts_W / norm_W))
            if np.abs(gamma_Z - last_Z).mean() < 1e-4:
                break
        return gamma_Z


def words_of(text: str) -> Counter[str]:
    return Counter(WORD.findall(text.lower()))


def divergence(
    first_Z: Sequence[float] | np.ndarray, second_Z: Sequence[float] | np.ndarray
) -> float:
    """Returns the Jensen-Shannon divergence of two mixtures, base 2: 0 if equal, 1 if disjoint."""
    mixtures = np.asarray([first_Z, second_Z], float)
    middle_Z = mixtures.mean(axis=0)
    ratios = np.divide(mixtures, middle_Z, out=np.ones_like(mixtures), where=mixtures > 0)
    return float((mixtures * np.log2(ratios)).sum() / 2)


def _expected_log(x: np.ndarray) -> np.ndarray:
    # Here, or every command would wait for it: 0.4 s.
    from scipy.special import psi

    return psi(x) - psi(x.sum(axis=-1, keepdims=True))
