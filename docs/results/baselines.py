"""Prints bits per byte of compressors and of n-grams on a folder of text files, as CSV.

    python docs/results/baselines.py code    # code/train/*.txt, code/validation/*.txt
    python docs/results/baselines.py code words    # of words, by bytes since their last occurrence

gzip, xz and deflate compress each document of the validation split by itself. An n-gram
interpolates orders 0 to n (Witten-Bell) and counts 16 stretches of 192,000 bytes of the training
split, at equal distances: as many as a run of 3,000 steps reads. "Counting" n-grams also count the
bytes of a document after predicting them, and drop these counts at its end. "words" is of all
documents of validation and test, with the distances of `brt.evaluate --study=compare`.
"""

import functools
import gzip
import lzma
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from brt.data.vocabularies.base import ByteVocabulary
from brt.evaluation.token_kinds import since_last_occurrence
from brt.evaluation.words import Words
from brt.studies.compare import DISTANCES

STRETCHES, STRETCH = 16, 192_000
WINDOWS = {9: "512 B", 11: "2 kB", 13: "8 kB"}
FIXED, COUNTING = (4,), (4, 6)
"""Orders of the n-grams, without and with counts of the document."""


class Ngram:
    """Probabilities of bytes by how often they followed the last `order` bytes or fewer."""

    def __init__(self, order: int, stretches: list[bytes]):
        self._order = order
        self._counts: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        self._totals: Counter[bytes] = Counter()
        for stretch in stretches:
            for end in range(order, len(stretch)):
                self._add(stretch, end)

    def bits(self, text: bytes, counting: bool = False) -> float:
        """Returns the bits of a document; counting: whether its own bytes count as it proceeds."""
        return sum(self.each(text, counting))

    def each(self, text: bytes, counting: bool) -> Iterator[float]:
        """Yields the bits of each byte."""
        for end in range(len(text)):
            yield -math.log2(self._probability(text, end))
            if counting:
                self._add(text, end)
        if counting:
            for end in range(len(text)):
                self._add(text, end, -1)

    def _probability(self, text: bytes, end: int) -> float:
        probability = 1 / 256
        for context in self._contexts(text, end):
            if not (total := self._totals.get(context, 0)):
                break
            seen = self._counts[context]
            probability = (seen.get(text[end], 0) + len(seen) * probability) / (total + len(seen))
        return probability

    def _add(self, text: bytes, end: int, times: int = 1) -> None:
        for context in self._contexts(text, end):
            seen = self._counts[context]
            seen[text[end]] += times
            self._totals[context] += times
            if not seen[text[end]]:
                del seen[text[end]]

    def _contexts(self, text: bytes, end: int) -> Iterator[bytes]:
        return (text[end - order : end] for order in range(min(self._order, end) + 1))


def main() -> None:
    folder = Path(sys.argv[1])
    train, validation, test = (
        [file.read_bytes() for file in sorted((folder / split).glob("*.txt"))]
        for split in ("train", "validation", "test")
    )
    if sys.argv[2:]:
        for name, each in _of_words(b"".join(train), [*validation, *test]):
            print(f'{folder.name},"{name} bytes ago",{each:.3f}', flush=True)
        return
    total = sum(map(len, validation))
    for name, bits in _methods(b"".join(train)):
        print(f'{folder.name},"{name}",{sum(map(bits, validation)) / total:.3f}', flush=True)


def _of_words(train: bytes, texts: list[bytes]) -> Iterator[tuple[str, float]]:
    vocabulary, ngram = ByteVocabulary(), Ngram(FIXED[0], _stretches(train))
    since = [since_last_occurrence(Words(vocabulary, vocabulary.encode(x, ""))) for x in texts]
    bins = np.searchsorted(DISTANCES, np.concatenate(since), side="right")  # nan comes last
    for name, counting in ((f"{FIXED[0]}-gram", False), (f"{FIXED[0]}-gram, counting", True)):
        bits = np.fromiter((b for text in texts for b in ngram.each(text, counting)), float)
        sums, counts = np.bincount(bins, bits), np.bincount(bins)
        for number, distance in enumerate(DISTANCES[:-1], 1):
            if counts[number]:
                yield f"{name}, words from {distance}", sums[number] / counts[number]


def _stretches(train: bytes) -> list[bytes]:
    row = len(train) // STRETCHES
    return [train[start : start + STRETCH] for start in range(0, row * STRETCHES, row)]


def _methods(train: bytes) -> Iterator[tuple[str, Callable[[bytes], float]]]:
    yield "gzip -9", lambda text: 8 * len(gzip.compress(text))
    yield "xz -9", lambda text: 8 * len(lzma.compress(text, preset=9))
    for order in sorted({*FIXED, *COUNTING}):
        ngram = Ngram(order, _stretches(train))
        if order in FIXED:
            yield f"{order}-gram", ngram.bits
        if order in COUNTING:
            yield f"{order}-gram, counting", functools.partial(ngram.bits, counting=True)
    for wbits, size in WINDOWS.items():
        yield f"deflate, window {size}", functools.partial(_deflated, wbits)


def _deflated(wbits: int, text: bytes) -> int:
    compressor = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return 8 * len(compressor.compress(text) + compressor.flush())


if __name__ == "__main__":
    main()
