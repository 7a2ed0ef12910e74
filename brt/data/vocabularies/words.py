"""Vocabularies of words.

The file has one word per line, in the order of the ids, and optionally its count. Adaptive
embeddings and softmaxes need decreasing frequency.
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import configurable
from brt.data.vocabularies.base import FileVocabulary, checked_ids, read_vocabulary_file, utf8_lines


@configurable
@dataclass(eq=False)
class WordVocabulary(FileVocabulary):
    """Words, separated by white space, and a symbol for the end of each line (WikiText, PTB).

    One Billion Word has "<S>" before and after lines, and `unknown` "<UNK>" (Dai et al. 2019).

    Args:
        unknown: the word for all that are not listed; None refuses these.
        before_line, after_line: words before and after each line, or None.
    """

    kind = "words"
    cuts_after = b"\n"

    unknown: str | None = "<unk>"
    before_line: str | None = None
    after_line: str | None = "<eos>"
    lower_case: bool = False

    @property
    def size(self) -> int:
        return len(self._ids)

    @functools.cached_property
    def fingerprint(self) -> str:
        settings = [self.unknown, self.before_line, self.after_line, self.lower_case]
        return hashlib.sha256(json.dumps([list(self._ids), settings]).encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        return {word: self._ids[word] for word in self.special_words()}

    @property
    def unknown_id(self) -> int | None:
        return None if self.unknown is None else self._ids[self.unknown]

    def special_words(self) -> list[str]:
        words = (self.unknown, self.before_line, self.after_line)
        return list(dict.fromkeys(word for word in words if word is not None))

    def words(self, data: bytes, title: str) -> Iterator[str]:
        for line in utf8_lines(data, title):
            if self.before_line is not None:
                yield self.before_line
            yield from (line.lower() if self.lower_case else line).split()
            if self.after_line is not None:
                yield self.after_line

    def encode(self, data: bytes, title: str) -> np.ndarray:
        ids = self._ids
        words = self.words(data, title)
        if self.unknown is not None:
            unknown = ids[self.unknown]
            return np.fromiter((ids.get(word, unknown) for word in words), np.int32)
        try:
            return np.fromiter((ids[word] for word in words), np.int32)
        except KeyError as error:
            raise ValueError(
                f"Document {title!r} has the word {error.args[0]!r}, which {self.file} does not "
                "list: bind WordVocabulary.unknown to a word that stands for such words."
            ) from None

    def decode(self, ids: ArrayLike) -> str:
        text: list[str] = []
        line: list[str] = []
        for word in map(self._words.__getitem__, checked_ids(ids, self.size, self.name)):
            # If one symbol opens and closes lines, it closes those with words.
            if word == self.after_line and (line or self.before_line is None):
                text.append(" ".join(line) + "\n")
                line = []
            elif word != self.before_line:
                line.append(word)
        return "".join(text) + " ".join(line)

    @functools.cached_property
    def _words(self) -> list[str]:
        return list(self._ids)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        lines = read_vocabulary_file(self.file, "word list", "WordVocabulary.file")
        for number, line in enumerate(utf8_lines(lines, self.file), 1):
            word = line.split(maxsplit=1)[:1]
            if not word:
                raise ValueError(f"Line {number} of {self.file} is empty: write one word a line.")
            ids.setdefault(word[0], len(ids))
        if absent := [word for word in self.special_words() if word not in ids]:
            raise ValueError(
                f"{self.file} does not list {absent[0]!r}: bind WordVocabulary.unknown, "
                "before_line and after_line to words that it lists, or to None."
            )
        return ids
