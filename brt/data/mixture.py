"""Mixtures: several corpora read as one, each with a share of the tokens."""

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name, Positive, configurable
from brt.data.corpus import Corpus
from brt.data.stores.layout import joint_hash, vocabulary_entry, vocabulary_text
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary


@configurable
class Mixture:
    """Corpora mixed by weight, with the interface of a `Corpus`.

    Args:
        corpora: with the same vocabulary.
        weights: shares of training tokens, in any unit; the attribute adds up to 1.
        names: in records, as in `eval/loss/books`; None for numbers from 0.
    """

    def __init__(
        self,
        corpora: list[Corpus],
        weights: list[Positive],
        names: list[Name] | None = None,
    ):
        if not corpora or len(corpora) != len(weights):
            raise ValueError(
                f"Mixture.weights = {weights} gives {len(weights)} weights for {len(corpora)} "
                "corpora: give one a corpus, and at least one corpus."
            )
        # Not the names of the stores, so that a run can resume when stores have moved.
        self.names = [str(number) for number in range(len(corpora))] if names is None else names
        if len(set(self.names)) != len(corpora) or len(self.names) != len(corpora):
            raise ValueError(
                f"Mixture.names = {names}: give each of {len(corpora)} corpora a name of its own, "
                "or None for numbers."
            )
        self.corpora = list(corpora)
        self.weights = [weight / math.fsum(weights) for weight in weights]

    @property
    def vocabulary(self) -> Vocabulary:
        return self.corpora[0].vocabulary

    def exists(self, split: str) -> bool:
        return all(corpus.exists(split) for corpus in self.corpora)

    def prepare(self, split: str, **options: Any) -> None:
        _check_one_vocabulary(
            [(corpus.path(split), vocabulary_entry(corpus.vocabulary)) for corpus in self.corpora]
        )
        for corpus in self.corpora:
            corpus.prepare(split, **options)

    def open(self, split: str) -> "MixedStore":
        return MixedStore([corpus.open(split) for corpus in self.corpora], self.weights, self.names)


class MixedStore:
    """Token stores with the interface of one `TokenStore`.

    Store n has the documents from `bases[n]` on. The manifest is the first one with the counts and
    the content of all.
    """

    def __init__(
        self, stores: Sequence[TokenStore], shares: Sequence[float], names: Sequence[str] = ()
    ):
        _check_one_vocabulary([(s.folder, s.manifest["vocabulary"]) for s in stores])
        self.stores = stores
        self.shares = shares
        self.names = names
        self.folder = " + ".join(str(store.folder) for store in stores)
        self.manifest = dict(stores[0].manifest)
        for key, value in self.manifest.items():
            if type(value) is int and key != "format":
                counts = [store.manifest[key] for store in stores]
                # Ids without a text have 0 bytes, and bits per byte are of the whole text.
                is_known = all(counts) or key == "unknown"
                self.manifest[key] = sum(counts) if is_known else 0
        self.manifest["content"] = joint_hash(store.manifest["content"] for store in stores)
        counts = [store.num_documents for store in stores]
        self.bases = [0, *np.cumsum(counts).tolist()][:-1]
        self.num_documents = sum(counts)
        self.num_tokens = sum(store.num_tokens for store in stores)
        self.lengths_D = np.concatenate([store.lengths_D for store in stores])
        self.has_weights = any(store.has_weights for store in stores)

    @property
    def shard_documents(self) -> np.ndarray:
        """First document of each shard, then the number of all, int64 (shards + 1,)."""
        firsts = [part.shard_documents[:-1] + base for part, base in zip(self.stores, self.bases)]
        return np.concatenate([*firsts, [self.num_documents]])

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        store, document = self._find(document)
        return store.tokens(document, start, stop)

    def weights(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        store, document = self._find(document)
        return store.weights(document, start, stop)

    def titles(self) -> list[str]:
        return [title for store in self.stores for title in store.titles()]

    def annotations(self) -> list[dict[str, Any] | None]:
        return [annotation for store in self.stores for annotation in store.annotations()]

    def stores_of(self, documents: ArrayLike) -> np.ndarray:
        """Returns the number of each document's store, int64 (documents,); -1 for document -1."""
        return np.searchsorted(self.bases, documents, side="right") - 1

    def _find(self, document: int) -> tuple[TokenStore, int]:
        number = bisect.bisect_right(self.bases, document) - 1
        return self.stores[number], document - self.bases[number]


def _check_one_vocabulary(entries: Iterable[tuple[Any, dict]]) -> None:
    (first, ours), *others = entries
    for folder, entry in others:
        if entry["fingerprint"] != ours["fingerprint"]:
            raise ValueError(
                f"{folder} has vocabulary {vocabulary_text(entry)} and {first} has "
                f"{vocabulary_text(ours)}: bind one vocabulary to all that is mixed."
            )
