"""Algorithmic tasks: copy, reverse and associative retrieval, one sample per document.

Only the target after the start token has loss weights (`Trainer.stream = "samples"`).

    copy        x, start, x, x              3 n + 1 tokens, 2 n scored
    reverse     x, start, x reversed        2 n + 1 tokens, n scored
    retrieval   a 3 d 1 k 4 b 9 k start 4   11 tokens, 1 scored

The splits are drawn together, without duplicates, test first: it does not depend on the size of
train.

Source: Bulatov et al. 2022, arXiv:2207.06881 (Recurrent Memory Transformer), section 4 and
appendix A.1; associative retrieval as in Ba et al. 2016, arXiv:1610.06258.
"""

import abc
import itertools
import math
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from brt.checks import Count, Range, Seed, configurable
from brt.data.sources.base import Document, Source, check_known_split
from brt.data.vocabularies.symbols import SymbolVocabulary

PAD, START = 0, 1


@dataclass(eq=False, kw_only=True)
class SampleTask(Source):
    """A task whose documents are single samples.

    Args:
        num_train, num_validation, num_test: samples of the splits.
        padded_length: tokens to which samples are padded, so that they divide into segments.
    """

    num_train: Count = 100_000
    num_validation: Count = 5_000
    num_test: Count = 10_000
    padded_length: Count | None = None
    seed: Seed = 0

    def _define(
        self, name: str, symbols: str, special_ids: dict[str, int], tokens: int, scored: int
    ) -> None:
        length = tokens - 1 if self.padded_length is None else self.padded_length
        if length < tokens - 1:
            raise ValueError(
                f"{type(self).__name__}.padded_length = {self.padded_length} is shorter than a "
                f"sample: a model reads {tokens - 1} tokens of it."
            )
        self.vocabulary = SymbolVocabulary(name, symbols, special_ids, f"symbols {symbols}", "")
        self.input_length: int = length
        self._tokens, self._scored = tokens, scored
        self._counts = {
            "test": self.num_test,
            "validation": self.num_validation,
            "train": self.num_train,
        }

    def documents(self, split: str) -> Iterator[Document]:
        check_known_split(self, split, self._counts)
        stops = dict(zip(self._counts, itertools.accumulate(self._counts.values())))
        sources = self._sources(sum(self._counts.values()))
        sources = sources[stops[split] - self.count(split) : stops[split]]
        weights = np.zeros(self.input_length + 1, np.float32)
        weights[self._tokens - self._scored : self._tokens] = 1
        for number, sample in enumerate(self._samples(sources)):
            tokens = np.full(self.input_length + 1, PAD, np.int32)
            tokens[: self._tokens] = sample
            yield Document(f"{split}-{number}", tokens=tokens, weights=weights)

    def count(self, split: str) -> int:
        check_known_split(self, split, self._counts)
        return self._counts[split]

    @abc.abstractmethod
    def _sources(self, count: int) -> np.ndarray:
        """Draws `count` different sources: integers (count, ...)."""

    @abc.abstractmethod
    def _samples(self, sources: np.ndarray) -> Iterable[np.ndarray]: ...

    def _random(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, 1])))

    def _check_possible(self, count: int, possible: int) -> None:
        if count > possible:
            raise ValueError(
                f"{type(self).__name__} is asked for {count:,} different samples and has "
                f"{possible:,}: lower num_train, num_validation and num_test."
            )


def distinct_rows(draw: Callable[[int], np.ndarray], count: int) -> np.ndarray:
    """Returns the first `count` different rows from calls of `draw(rows)`."""
    rows = draw(count)
    while True:
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        if len(first) >= count:
            return rows[first[:count]]
        rows = np.concatenate([rows[first], draw(count)])


@dataclass(eq=False, kw_only=True)
class _SequenceTask(SampleTask):
    length: Count = 24
    num_symbols: Annotated[int, Range("a whole number from 2 to 62", 2, 62)] = 10
    steps: ClassVar[tuple[int, ...]]  # of the target's parts through the source

    def __post_init__(self) -> None:
        symbols = (string.digits + string.ascii_letters)[: self.num_symbols]
        target = len(self.steps) * self.length
        name, special = f"symbols:{self.num_symbols}", {"pad": PAD, "start": START}
        self._define(name, "_>" + symbols, special, self.length + 1 + target, target)

    def _sources(self, count: int) -> np.ndarray:
        self._check_possible(count, self.num_symbols**self.length)
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, self.length))
            return (START + 1 + np.floor(uniform * self.num_symbols)).astype(np.uint8)

        return distinct_rows(draw, count)

    def _samples(self, sources: np.ndarray) -> Iterable[np.ndarray]:
        starts = np.full((len(sources), 1), START)
        target = (sources[:, ::step] for step in self.steps)
        return np.concatenate([sources, starts, *target], axis=1)


@configurable
@dataclass(eq=False, kw_only=True)
class CopyTask(_SequenceTask):
    """A sequence of symbols, to be written twice (Recurrent Memory Transformer, section 4).

    Args:
        length: n, symbols of the source; a model reads 3 n tokens.
        num_symbols: different symbols, without padding and start token.
    """

    steps = (1, 1)


@configurable
@dataclass(eq=False, kw_only=True)
class ReverseTask(_SequenceTask):
    steps = (-1,)


@configurable
@dataclass(eq=False, kw_only=True)
class AssociativeRetrieval(SampleTask):
    """Pairs of a letter and a digit, then one letter again, whose digit is the target.

    Ids: 0 to 9 the digits, 10 the start token, 11 to 36 a to z. No letter and no digit occurs in
    two pairs.

    Args:
        num_pairs: a model reads 2 num_pairs + 2 tokens.
    """

    START = 10
    FIRST_LETTER = 11
    num_pairs: Annotated[int, Range("a whole number from 1 to 10", 1, 10)] = 4

    def __post_init__(self) -> None:
        symbols = string.digits + ">" + string.ascii_lowercase
        self._define("retrieval", symbols, {"start": self.START}, 2 * self.num_pairs + 3, 1)

    def _sources(self, count: int) -> np.ndarray:
        pairs = self.num_pairs
        self._check_possible(count, pairs * math.perm(26, pairs) * math.perm(10, pairs))
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, 26 + 10 + 1))
            keys = np.argsort(uniform[:, :26], axis=1)[:, :pairs]
            values = np.argsort(uniform[:, 26:36], axis=1)[:, :pairs]
            queried = np.floor(uniform[:, 36:] * pairs)
            return np.concatenate([keys, values, queried], axis=1).astype(np.uint8)

        return distinct_rows(draw, count)

    def _samples(self, sources: np.ndarray) -> Iterable[np.ndarray]:
        letters = sources[:, : self.num_pairs] + self.FIRST_LETTER
        values = sources[:, self.num_pairs : -1]
        queried = sources[:, -1:].astype(int)
        return np.concatenate(
            [
                np.stack([letters, values], axis=2).reshape(len(sources), -1),
                np.take_along_axis(letters, queried, axis=1),
                np.full((len(sources), 1), self.START),
                np.take_along_axis(values, queried, axis=1),
            ],
            axis=1,
        )
