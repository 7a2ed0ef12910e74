"""Word-level vocabularies: ids are words, read from a file that lists them.

The file holds one word a line, the most frequent first, and may give its count after a space; the
line's number is the word's id. `brt.prepare --train_vocabulary` writes such a file, and word lists
that come with a corpus (One Billion Word) have the same form. Falling frequency is what adaptive
embeddings and softmaxes rely on.
"""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name, configurable
from brt.data.sources.base import Document
from brt.data.vocabularies.base import (
    Vocabulary,
    checked_ids,
    expanded,
    read_vocabulary_file,
    utf8_lines,
)


@configurable
class WordVocabulary(Vocabulary):
    """Words, as white space separates them, and a symbol for the end of each line.

    WikiText and Penn Treebank are read with the defaults. For One Billion Word, one sentence a
    line, bind `before_line` and `after_line` to "<S>" and `unknown` to "<UNK>", as its list has it.
    Source: Dai et al. 2019, arXiv:1901.02860, and its code.

    Args:
        file: path of the list; opened when first needed. `~` and variables are expanded.
        unknown: the word that stands for all that are not listed; None refuses these.
        before_line, after_line: words put before and after the words of each line, or None.
        lower_case: whether text is lower-cased first.
    """

    cuts_after = b"\n"

    def __init__(
        self,
        file: Name = gin.REQUIRED,
        unknown: str | None = "<unk>",
        before_line: str | None = None,
        after_line: str | None = "<eos>",
        lower_case: bool = False,
    ):
        self.file = expanded(file)
        self.unknown = unknown
        self.before_line = before_line
        self.after_line = after_line
        self.lower_case = lower_case

    @property
    def path(self) -> str:
        return self.file

    @property
    def size(self) -> int:
        return len(self._ids)

    @property
    def name(self) -> str:
        return f"words:{self.file.rsplit('/', 1)[-1]}"

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 of the words in their order and of the settings; counts do not matter."""
        settings = [self.unknown, self.before_line, self.after_line, self.lower_case]
        return hashlib.sha256(json.dumps([list(self._ids), settings]).encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        return {word: self._ids[word] for word in self.special_words()}

    @property
    def unknown_id(self) -> int | None:
        return None if self.unknown is None else self._ids[self.unknown]

    def special_words(self) -> list[str]:
        """Returns the words that the file must list because the settings name them."""
        words = (self.unknown, self.before_line, self.after_line)
        return list(dict.fromkeys(word for word in words if word is not None))

    def words(self, data: bytes, title: str) -> Iterator[str]:
        """Yields the words of a UTF-8 document, those that mark lines among them."""
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
        words = list(self._ids)
        text: list[str] = []
        line: list[str] = []
        for word in map(words.__getitem__, checked_ids(ids, self.size, self.name)):
            # Where one symbol opens and closes lines, it closes those that have words.
            if word == self.after_line and (line or self.before_line is None):
                text.append(" ".join(line) + "\n")
                line = []
            elif word != self.before_line:
                line.append(word)
        return "".join(text) + " ".join(line)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        """From each word to its id, in the order of the ids."""
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


def count_words(vocabulary: WordVocabulary, documents: Iterable[Document]) -> Counter[str]:
    """Counts each word; the file of `vocabulary` is not needed, only its settings."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(vocabulary.words(document.data[:], document.title))
    return counts


def word_list(
    vocabulary: WordVocabulary,
    counts: Counter[str],
    min_count: int = 1,
    max_size: int | None = None,
) -> bytes:
    """Returns the file of a word vocabulary.

    Words are sorted by falling count, those of equal count by their code points, so that the file
    depends neither on the order of documents nor on the machine. Words left out are counted as the
    unknown one, which is sorted by that count; words the settings name are never left out.

    Args:
        vocabulary: whose settings the list is for.
        counts: of each word.
        min_count: leave out words that are rarer.
        max_size: list so many words at most, special ones included; None lists all.
    """

    def order(item):
        return -item[1], item[0]

    special = vocabulary.special_words()
    room = None if max_size is None else max_size - len(special)
    if room is not None and room < 1:
        raise ValueError(
            f"WordCounting.max_size = {max_size} leaves no room for words beside {special}: "
            "bind it to more."
        )
    usual = [item for item in counts.items() if item[1] >= min_count and item[0] not in special]
    kept = dict(sorted(usual, key=order)[:room])
    left_out = len(counts.keys() - kept.keys() - set(special))
    kept |= {word: counts[word] for word in special}
    if vocabulary.unknown is not None:
        kept[vocabulary.unknown] += counts.total() - sum(kept.values())
    elif left_out:
        raise ValueError(
            f"{left_out} words would be left out: bind WordVocabulary.unknown to a word that "
            "stands for them, or WordCounting.min_count = 1 and WordCounting.max_size = None."
        )
    lines = (f"{word} {count}\n" for word, count in sorted(kept.items(), key=order))
    return "".join(lines).encode()
