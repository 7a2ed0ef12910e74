"""Sources of algorithmic tasks: copy, reverse and associative retrieval, one sample a document.

A sample is a source, a start token and the target, one after another; a model reads all of it but
the last token and predicts all of it but the first (`Trainer.stream = "samples"`). Loss weights
are 1 on the target and 0 elsewhere.

    copy        x, start, x, x              3 n + 1 tokens, 2 n scored
    reverse     x, start, x backwards       2 n + 1 tokens, n scored
    retrieval   a 3 d 1 k 4 b 9 k start 4   11 tokens, 1 scored

The splits of a task are drawn together, without duplicates, and do not overlap. The test samples
are drawn first: they stay the same when `num_train` changes.

Source: Bulatov et al. 2022, arXiv:2207.06881 (Recurrent Memory Transformer), section 4 and
appendix A.1; associative retrieval as in Ba et al. 2016, arXiv:1610.06258.
"""

import abc
import hashlib
import math
import string
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Count, Seed, Symbols, configurable
from brt.data.sources.base import Document, Source, check_known_split
from brt.data.vocabularies.base import Vocabulary, checked_ids

PAD, START = 0, 1
"""Ids of copy, reverse and the equations; their symbols follow."""
SPLITS = ("test", "validation", "train")
"""In the order in which they are drawn."""


class SymbolVocabulary(Vocabulary):
    """Ids of symbols that are written as one character each.

    Args:
        name: for messages and manifests.
        symbols: a character for each id, all different.
        special_ids: names of the ids that are no part of a source or target.
    """

    is_text = False

    def __init__(self, name: str, symbols: str, special_ids: dict[str, int]):
        self._name = name
        self.symbols = symbols
        self._special_ids = special_ids

    @property
    def size(self) -> int:
        """Number of symbols."""
        return len(self.symbols)

    @property
    def name(self) -> str:
        """The name as given."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """sha256 of the symbols in their order."""
        return hashlib.sha256(f"symbols {self.symbols}".encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids that are no part of a source or target."""
        return self._special_ids

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the ids of the characters, int32 (characters,); white space is passed over.

        Raises:
            ValueError: a character that stands for no id.
        """
        text = "".join(data.decode("utf-8", errors="replace").split())
        if unknown := set(text) - set(self.symbols):
            raise ValueError(
                f"Document {title!r} has the character {min(unknown)!r}, and the symbols of "
                f"{self.name} are {self.symbols}: write only these."
            )
        return np.array([self.symbols.index(symbol) for symbol in text], np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Returns the characters, without spaces.

        Raises:
            ValueError: an id outside [0, size).
        """
        return "".join(self.symbols[i] for i in checked_ids(ids, self.size, self.name))


class SampleTask(Source):
    """The base of the tasks: the splits, and how a sample becomes a document.

    Args:
        vocabulary: of the tokens.
        tokens: of a sample, before padding.
        scored: of those the last ones, which have weight.
        counts: samples of the splits train, validation and test.
        seed: not negative.
        padded_length: tokens a model reads of a sample; None for as many as there are, `tokens`
            - 1. What is added stands behind the sample, with weight 0.
        settings: what else decides the samples, for the manifest.

    Attributes:
        input_length: tokens a model reads of a sample, to be cut into segments.

    Raises:
        ValueError: no samples, a negative seed, or less room than a sample takes.
    """

    def __init__(
        self,
        *,
        vocabulary: SymbolVocabulary,
        tokens: int,
        scored: int,
        counts: tuple[int, int, int],
        seed: int,
        padded_length: int | None,
        settings: dict,
    ):
        name = type(self).__name__
        self.input_length: int = tokens - 1 if padded_length is None else padded_length
        if self.input_length < tokens - 1:
            raise ValueError(
                f"{name}.padded_length = {padded_length} is shorter than a sample: a model reads "
                f"{tokens - 1} tokens of it."
            )
        self.vocabulary = vocabulary
        self.scored = scored
        self.seed = seed
        self._tokens = tokens
        self._settings = settings
        self._counts = dict(zip(("train", "validation", "test"), counts))

    def documents(self, split: str) -> Iterator[Document]:
        """Yields the samples of a split with tokens and weights; `data` stays empty.

        Raises:
            ValueError: another split than train, validation and test, or fewer different samples
                than all splits need.
        """
        check_known_split(self, split, self._counts)
        first = sum(self.count(other) for other in SPLITS[: SPLITS.index(split)])
        total = sum(self._counts.values())
        sources = self._sources(total)[first : first + self.count(split)]
        weights = np.zeros(self.input_length + 1, np.float32)
        weights[self._tokens - self.scored : self._tokens] = 1
        for number, sample in enumerate(self._stacked(sources)):
            tokens = np.full(self.input_length + 1, PAD, np.int32)
            tokens[: self._tokens] = sample
            yield Document(f"{split}-{number}", tokens=tokens, weights=weights)

    def description(self, split: str) -> dict:
        """Returns the settings that decide the samples of a split."""
        return {
            "source": type(self).__name__,
            "split": split,
            "samples": {name: self._counts[name] for name in SPLITS},
            "seed": self.seed,
            "input_length": self.input_length,
            **self._settings,
        }

    def count(self, split: str) -> int:
        """Returns the number of samples of a split."""
        check_known_split(self, split, self._counts)
        return self._counts[split]

    @abc.abstractmethod
    def _sources(self, count: int) -> np.ndarray:
        """Draws the sources of so many different samples: integers (count, ...)."""

    @abc.abstractmethod
    def _stacked(self, sources: np.ndarray) -> Iterable[np.ndarray]:
        """Returns the tokens of the samples, source, start token and target, one by one."""

    def _random(self):
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, 1])))

    def _refuse_too_many(self, count, possible):
        if count > possible:
            raise ValueError(
                f"{type(self).__name__} is asked for {count:,} different samples and has "
                f"{possible:,}: lower num_train, num_validation and num_test."
            )


def distinct_rows(draw: Callable[[int], np.ndarray], count: int) -> np.ndarray:
    """Returns the first `count` different rows of an endless sequence of draws.

    Args:
        draw: from a number of rows to that many, (rows, columns); equal to drawing them in turn.
        count: at most the number of different rows there are; fast where it is much smaller.
    """
    rows = draw(count)
    while True:
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        if len(first) >= count:
            return rows[first[:count]]
        rows = np.concatenate([rows[first], draw(count)])


class _SequenceTask(SampleTask):
    """Copy and reverse, whose sources are sequences of independent uniform symbols."""

    copies: int  # how many times a target writes the source

    def __init__(
        self,
        length: Count = 24,
        num_symbols: Symbols = 10,
        num_train: Count = 100_000,
        num_validation: Count = 5_000,
        num_test: Count = 10_000,
        padded_length: Count | None = None,
        seed: Seed = 0,
    ):
        letters = string.digits + string.ascii_letters
        if length < 1 or not 2 <= num_symbols <= len(letters):
            raise ValueError(
                f"{type(self).__name__}.length = {length} must be at least 1, and num_symbols = "
                f"{num_symbols} between 2 and {len(letters)}."
            )
        self.length = length
        self.num_symbols = num_symbols
        super().__init__(
            vocabulary=SymbolVocabulary(
                f"symbols:{num_symbols}", "_>" + letters[:num_symbols], {"pad": PAD, "start": START}
            ),
            tokens=(self.copies + 1) * length + 1,
            scored=self.copies * length,
            counts=(num_train, num_validation, num_test),
            seed=seed,
            padded_length=padded_length,
            settings={"length": length, "num_symbols": num_symbols},
        )

    @abc.abstractmethod
    def _target(self, sources: np.ndarray) -> np.ndarray:
        """Returns what follows the start token."""

    def _sources(self, count):
        self._refuse_too_many(count, self.num_symbols**self.length)
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, self.length))
            return (START + 1 + np.floor(uniform * self.num_symbols)).astype(np.uint8)

        return distinct_rows(draw, count)

    def _stacked(self, sources):
        starts = np.full((len(sources), 1), START)
        return np.concatenate([sources, starts, self._target(sources)], axis=1)


@configurable
class CopyTask(_SequenceTask):
    """A sequence of symbols, to be written twice.

    Args:
        length: n, symbols of the source; a model reads 3 n tokens.
        num_symbols: different symbols. Ids are one more for padding and one for the start token.
        num_train, num_validation, num_test: samples of the splits.
        padded_length: tokens to pad what is read to, so that it divides into segments; None for
            no padding.
        seed: not negative.

    Raises:
        ValueError: sizes below 1, or too many symbols.

    Source: Recurrent Memory Transformer, section 4; symbols as in the released logs.
    """

    copies = 2

    def _target(self, sources):
        return np.concatenate([sources, sources], axis=1)


@configurable
class ReverseTask(_SequenceTask):
    """A sequence of symbols, to be written backwards; a model reads 2 n tokens.

    Arguments, errors and source as `CopyTask`.
    """

    copies = 1

    def _target(self, sources):
        return sources[:, ::-1]


@configurable
class AssociativeRetrieval(SampleTask):
    """Pairs of a letter and a digit, then one of the letters, whose digit is the target.

    Ids: the digits 0 to 9, the start token 10, the letters 11 to 36. The letters of a sample are
    different, and so are its digits.

    Args:
        num_pairs: at most 10; a model reads 2 num_pairs + 2 tokens.
        others: as of `CopyTask`. The published cut of 10 tokens into 3 and 4 segments is in truth
            one into 2 of 5, and into 4, 4 and 2; padded to 12 tokens they are 3 of 4 and 4 of 3.

    Raises:
        ValueError: fewer pairs than 1 or more than 10, or as `CopyTask`.
    """

    START = 10
    FIRST_LETTER = 11

    def __init__(
        self,
        num_pairs: Count = 4,
        num_train: Count = 100_000,
        num_validation: Count = 5_000,
        num_test: Count = 10_000,
        padded_length: Count | None = None,
        seed: Seed = 0,
    ):
        if not 1 <= num_pairs <= 10:
            raise ValueError(
                f"AssociativeRetrieval.num_pairs = {num_pairs} must lie between 1 and 10."
            )
        self.num_pairs = num_pairs
        symbols = string.digits + ">" + string.ascii_lowercase
        super().__init__(
            vocabulary=SymbolVocabulary("retrieval", symbols, {"start": self.START}),
            tokens=2 * num_pairs + 3,
            scored=1,
            counts=(num_train, num_validation, num_test),
            seed=seed,
            padded_length=padded_length,
            settings={"num_pairs": num_pairs},
        )

    def _sources(self, count):
        """Keys, values, and which key is asked for: uint8 (count, 2 num_pairs + 1)."""
        pairs = self.num_pairs
        self._refuse_too_many(count, pairs * math.perm(26, pairs) * math.perm(10, pairs))
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, 26 + 10 + 1))
            keys = np.argsort(uniform[:, :26], axis=1)[:, :pairs]
            values = np.argsort(uniform[:, 26:36], axis=1)[:, :pairs]
            asked = np.floor(uniform[:, 36:] * pairs)
            return np.concatenate([keys, values, asked], axis=1).astype(np.uint8)

        return distinct_rows(draw, count)

    def _stacked(self, sources):
        letters = sources[:, : self.num_pairs] + self.FIRST_LETTER
        values = sources[:, self.num_pairs : -1]
        asked = sources[:, -1:].astype(int)
        stacked = np.stack([letters, values], axis=2).reshape(len(sources), -1)
        return np.concatenate(
            [
                stacked,
                np.take_along_axis(letters, asked, axis=1),
                np.full((len(sources), 1), self.START),
                np.take_along_axis(values, asked, axis=1),
            ],
            axis=1,
        )
