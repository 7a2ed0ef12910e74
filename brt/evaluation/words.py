"""Words of a document, with tokens and kinds.

Kinds are those of the paper's qualitative study, decided by rules:

- A chapter title is a word of a heading that has been read before, in a table of contents. A
  heading is a line of its own (blank lines around it, no speech) in capitals or title case, or,
  where line ends do not survive, a run of at least two words in capitals.
- A proper name begins with a capital, has been read before, occurs within a sentence or all in
  capitals, and never in lower case.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict

import numpy as np

from brt.data.vocabularies.base import Vocabulary

WORD = re.compile(r"\w+(?:['’]\w+)*")
POSSESSIVE = re.compile(r"['’]s$")
QUOTES = ('"', "'", "“", "‘", "«", "_'", '_"')
SENTENCE_ENDS = ".!?:\"'“”‘’«»*_-—"
"""Characters after which a capital does not mean a name."""
HEADING_WORDS = 12
OPENING_WORDS = 200
"""Words at the beginning of a document, with title and author."""
ENDING = 0.1
"""Last share of a document that counts as its end."""

PIECE = 32
"""Tokens that are decoded together."""
AROUND = 8
"""Tokens decoded on both sides of a piece, so that no character is cut."""

NAME, TITLE, OTHER = "proper name", "chapter title", "other"


class Words:
    """The words of one document.

    Attributes:
        texts: of each token.
        text: all of them joined.
        words: the words, without a possessive 's.
        starts: first token of each word, int64 (words,).
    """

    def __init__(self, vocabulary: Vocabulary, tokens: np.ndarray):
        self.texts = token_texts(vocabulary, tokens)
        self.text = "".join(self.texts)
        self._ends_T = np.cumsum([len(text) for text in self.texts])
        matches = list(WORD.finditer(self.text))
        self._spans = [match.span() for match in matches]
        self._first = [begin for begin, _ in self._spans]
        self.words = [POSSESSIVE.sub("", match[0]) for match in matches]
        self.starts = np.searchsorted(self._ends_T, self._first, side="right")
        self._numbers = defaultdict(list)
        for number, word in enumerate(self.words):
            self._numbers[word].append(number)
        self._folded = " ".join(word.casefold() for word in self.words)
        self._folded_ends = np.cumsum([len(word.casefold()) + 1 for word in self.words])

    def at(self, token: int) -> int | None:
        end = int(self._ends_T[token])
        begin = end - len(self.texts[token])
        # A token without text shares the last character before it.
        last = end - 1
        number = bisect_right(self._first, last) - 1
        if number < 0 or self._spans[number][1] <= min(begin, last):
            return None
        return number

    def last_seen(self, number: int) -> int | None:
        """Returns the distance in tokens to the word's last occurrence, or None."""
        numbers = self._numbers[self.words[number]]
        before = bisect_left(numbers, number) - 1
        if before < 0:
            return None
        return int(self.starts[number] - self.starts[numbers[before]])

    def kind(self, number: int) -> str:
        if self._is_title(number):
            return TITLE
        word = self.words[number]
        named = word[0].isupper() and word.lower() not in self._numbers
        named = named and self.last_seen(number) is not None
        if named and (
            (len(word) > 1 and word.isupper()) or any(map(self._within, self._numbers[word]))
        ):
            return NAME
        return OTHER

    def is_recalled_opening(self, number: int) -> bool:
        """Returns whether a word in the document's last tenth repeats its title or author: with a
        neighbour, both with a capital, it is also in the first 200 words.
        """
        if self.starts[number] < (1 - ENDING) * len(self.texts):
            return False
        opening = self.words[: min(OPENING_WORDS, max(number - 1, 0))]
        pairs = set(itertools.pairwise(opening))
        neighbours = self.words[max(number - 1, 0) : number + 1], self.words[number : number + 2]
        return any(
            tuple(pair) in pairs and all(word[0].isupper() or word[0].isdigit() for word in pair)
            for pair in neighbours
        )

    def around(self, token: int) -> tuple[str, str, str]:
        """Returns up to 100 characters before a token, its text, and up to 100 after it."""
        end = int(self._ends_T[token])
        begin = end - len(self.texts[token])
        return (
            self.text[max(begin - 100, 0) : begin],
            self.text[begin:end],
            self.text[end : end + 100],
        )

    def _within(self, number):
        begin = self._spans[number][0]
        before = self.text[max(begin - 20, 0) : begin]
        last = before.rstrip()[-1:]
        return last != "" and last not in SENTENCE_ENDS and "\n\n" not in before

    def _is_title(self, number):
        for first, last in self._headings(number):
            phrase = f" {' '.join(word.casefold() for word in self.words[first : last + 1])} "
            before = int(self._folded_ends[first - 1]) if first else 0
            if phrase in f" {self._folded[:before]} ":
                return True
        return False

    def _headings(self, number):
        begin = self.text.rfind("\n", 0, self._spans[number][0]) + 1
        end = self.text.find("\n", begin)
        end = len(self.text) if end < 0 else end
        first = bisect_left(self._first, begin)
        last = bisect_left(self._first, end) - 1
        alone = _blank_line(self.text[:begin][-80:][::-1]) and _blank_line(self.text[end:][:80])
        line = self.words[first : last + 1]
        spoken = self.text[begin:end].lstrip().startswith(QUOTES)
        if alone and not spoken and len(line) <= HEADING_WORDS and _titled(line):
            yield first, last
        first = last = number
        while first and self.words[first - 1].isupper():
            first -= 1
        while last + 1 < len(self.words) and self.words[last + 1].isupper():
            last += 1
        if self.words[number].isupper() and 1 < last - first + 1 <= HEADING_WORDS:
            yield first, last


def _blank_line(text):
    space = text[: len(text) - len(text.lstrip())]
    return not text.strip() or space.count("\n") >= 2


def _titled(words):
    longer = [word for word in words if len(word) > 3] or words
    return all(word[0].isupper() or word[0].isdigit() for word in longer)


def token_texts(vocabulary: Vocabulary, tokens: np.ndarray) -> list[str]:
    """Returns one string a token; joined they are the document as the vocabulary decodes it.

    A character of several tokens belongs to the first of them; the others are empty.

    tokens: integers (tokens,).
    """
    tokens = np.asarray(tokens)
    texts: list[str] = []
    for start in range(0, len(tokens), PIECE):
        stop = min(start + PIECE, len(tokens))
        first = max(start - AROUND, 0)
        text = vocabulary.decode(tokens[first : stop + AROUND])
        ends = [len(vocabulary.decode(tokens[first:end])) for end in range(start, stop + 1)]
        if stop == len(tokens):
            ends[-1] = len(text)
        ends = np.maximum.accumulate(np.minimum(ends, len(text))).tolist()
        texts += [text[begin:end] for begin, end in itertools.pairwise(ends)]
    return texts
