"""Measures a vocabulary on a text."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from brt.data.sources.base import Document
from brt.data.vocabularies.base import SentencePieceVocabulary, Vocabulary

PROBE_WORDS, SHOWN = 500, 10
SEPARATORS = {"tabs": "\t", "newlines": "\n", "double spaces": "  "}


class Report(NamedTuple):
    """Measurements on one text.

    bytes, words, tokens, unknown: numbers of bytes, words, token ids, and unknown ids.
    exact: whether decoding gives the text.
    lost: which of `SEPARATORS` decoding loses between known words.
    missing: the first `SHOWN` characters of the text that decoding gives nowhere.
    """

    vocabulary: Vocabulary
    bytes: int
    words: int
    tokens: int
    unknown: int
    exact: bool
    lost: list[str]
    missing: list[str]

    def __str__(self) -> str:
        vocabulary = self.vocabulary
        special = [f"{name} {number}" for name, number in vocabulary.special_ids.items()]
        more = [f"and {len(special) - 8} more"] if len(special) > 8 else []
        rows = [
            ("vocabulary", f"{vocabulary.name} ({vocabulary.fingerprint:.12})"),
            ("size", f"{vocabulary.size:,}"),
            ("special ids", ", ".join(special[:8] + more) or "none"),
            ("sample", f"{self.bytes:,} bytes, {self.words:,} words, {self.tokens:,} tokens"),
            ("bytes per token", f"{self.bytes / self.tokens:.4f}"),
            ("tokens per word", f"{self.tokens / self.words:.4f}"),
            ("unknown tokens", f"{self.unknown:,} ({self.unknown / self.tokens:.3%}), scored"),
            *((f"{name} survive", "no" if name in self.lost else "yes") for name in SEPARATORS),
            ("sample comes back", "unchanged" if self.exact else f"changed: {self._reason()}"),
        ]
        return "\n".join(f"{name:<22} {value}" for name, value in rows)

    def _reason(self):
        reasons = [f"{self.unknown:,} unknown ids"] if self.unknown else []
        if self.missing:
            reasons.append(f"without the characters {' '.join(map(ascii, self.missing))}")
            if isinstance(self.vocabulary, SentencePieceVocabulary):
                reasons.append(
                    "which training with SentencePieceTraining.options = "
                    "{'character_coverage': 1.0} keeps"
                )
        return ", ".join(reasons) or "white space, or the form of characters, differs"


def report(vocabulary: Vocabulary, text: bytes) -> Report:
    ids = vocabulary.encode(text, "sample")
    words = text.decode("utf-8", errors="replace").split()
    if len(words) < 2 or not len(ids):
        raise ValueError("The sample has fewer than two words: give a longer one.")
    decoded = vocabulary.decode(ids)
    exact = decoded.encode("utf-8", errors="replace") == text
    missing = sorted(set(text.decode("utf-8", errors="replace")) - set(decoded))
    unknown = vocabulary.unknown_id
    # The text of an unknown symbol may contain white space, as SentencePiece's does.
    probe = words[:PROBE_WORDS]
    known = [w for w in probe if unknown not in vocabulary.encode(w.encode(), "sample")]
    return Report(
        vocabulary,
        len(text),
        len(words),
        len(ids),
        unknown=0 if unknown is None else int((ids == unknown).sum()),
        exact=exact,
        lost=lost_white_space(vocabulary, known if len(known) > 1 else probe),
        missing=missing[:SHOWN],
    )


def sample_text(documents: Iterable[Document], size: int = 2**22) -> bytes:
    sample = bytearray()  # appends in place: a document may be a short row
    for document in text_documents(documents):
        sample += document.data[:]
        if len(sample) >= size:
            return bytes(sample[: sample.rfind(b"\n", 0, size) + 1] or sample)
    return bytes(sample)


def text_documents(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document.tokens is not None:
            raise ValueError(
                f"Document {document.title!r} comes as token ids, and a vocabulary is of text: "
                "bind Corpus.source to a source of text."
            )
        yield document


def lost_white_space(vocabulary: Vocabulary, words: list[str]) -> list[str]:
    """Returns which of `SEPARATORS` between words a round trip loses."""
    lost = []
    for name, separator in SEPARATORS.items():
        # The line end completes the line for vocabularies with line symbols.
        probe = separator.join(words) + "\n"
        try:
            back = vocabulary.decode(vocabulary.encode(probe.encode(), "sample"))
        except ValueError:  # a symbol that the vocabulary refuses
            back = ""
        if back.count(separator) != probe.count(separator):
            lost.append(name)
    return lost


def white_space_caveat(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    """Returns a sentence on the white space that a vocabulary loses.

    tokens: a few thousand ids of the split.
    """
    words = vocabulary.decode(tokens).split()
    lost = lost_white_space(vocabulary, words) if words else []
    if not lost:
        return f"The vocabulary {vocabulary.name} keeps white space: every character is predicted."
    return (
        f"{vocabulary.name} does not keep {', '.join(lost)}: they are counted as characters and "
        "not predicted, so compare bits per character and byte, and perplexity per word, only "
        "between models with this vocabulary."
    )
