"""Measures a vocabulary on a text: sizes, ratios, and what survives a round trip."""

from collections.abc import Iterable
from typing import NamedTuple

from brt.data.sources.base import Document
from brt.data.vocabularies.base import Vocabulary

PROBE_WORDS = 500
"""Most words of the test of white space."""


class Report(NamedTuple):
    """Measured on one text.

    name, size, fingerprint, special_ids: of the vocabulary.
    bytes, words, tokens, unknown: numbers of the text's bytes, words, token ids, and unknown ids.
    exact: whether decoding gives the text.
    tabs, newlines, double_spaces: whether decoding keeps them between known words.
    """

    name: str
    size: int
    fingerprint: str
    special_ids: dict[str, int]
    bytes: int
    words: int
    tokens: int
    unknown: int
    exact: bool
    tabs: bool
    newlines: bool
    double_spaces: bool

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of a token."""
        return self.bytes / self.tokens

    @property
    def tokens_per_word(self) -> float:
        """Mean tokens of a word; scale in the paper's Table 5."""
        return self.tokens / max(self.words, 1)

    def __str__(self) -> str:
        special = [f"{name} {number}" for name, number in self.special_ids.items()]
        more = [f"and {len(special) - 8} more"] if len(special) > 8 else []
        rows = [
            ("vocabulary", f"{self.name} ({self.fingerprint:.12})"),
            ("size", f"{self.size:,}"),
            ("special ids", ", ".join(special[:8] + more) or "none"),
            ("sample", f"{self.bytes:,} bytes, {self.words:,} words, {self.tokens:,} tokens"),
            ("bytes per token", f"{self.bytes_per_token:.4f}"),
            ("tokens per word", f"{self.tokens_per_word:.4f}"),
            ("unknown tokens", f"{self.unknown:,} ({self.unknown / self.tokens:.3%}), scored"),
            ("tabs survive", _yes(self.tabs)),
            ("newlines survive", _yes(self.newlines)),
            ("double spaces survive", _yes(self.double_spaces)),
            ("sample comes back", "unchanged" if self.exact else "changed"),
        ]
        return "\n".join(f"{name:<22} {value}" for name, value in rows)


def report(vocabulary: Vocabulary, text: bytes) -> Report:
    """Measures a vocabulary on UTF-8 text of at least two words."""
    ids = vocabulary.encode(text, "sample")
    words = text.decode("utf-8", errors="replace").split()
    if len(words) < 2 or not len(ids):
        raise ValueError("The sample has fewer than two words: give a longer one.")
    unknown = vocabulary.unknown_id
    exact = _round_trip(vocabulary, ids) == text
    # The text of an unknown symbol may contain white space, as SentencePiece's does.
    probe = words[:PROBE_WORDS]
    known = [w for w in probe if unknown not in vocabulary.encode(w.encode(), "sample")]
    known = known if len(known) > 1 else probe
    return Report(
        name=vocabulary.name,
        size=int(vocabulary.size),
        fingerprint=vocabulary.fingerprint,
        special_ids=dict(vocabulary.special_ids),
        bytes=len(text),
        words=len(words),
        tokens=len(ids),
        unknown=0 if unknown is None else int((ids == unknown).sum()),
        exact=exact,
        tabs=_survives("\t", vocabulary, known),
        newlines=_survives("\n", vocabulary, known),
        double_spaces=_survives("  ", vocabulary, known),
    )


def sample_text(documents: Iterable[Document], size: int = 2**22) -> bytes:
    """Returns the first `size` bytes of documents, up to the end of a line."""
    sample = b""
    for document in documents:
        if document.tokens is not None:
            raise ValueError(
                f"Document {document.title!r} comes as token ids, and there is no text to measure "
                "its vocabulary on: bind Corpus.source to a source of text."
            )
        sample += document.data[:]
        if len(sample) >= size:
            return sample[: sample.rfind(b"\n", 0, size) + 1] or sample
    return sample


def lost_white_space(vocabulary: Vocabulary, words: list[str]) -> list[str]:
    """Returns which of tabs, newlines and double spaces decoding loses between words."""
    separators = {"tabs": "\t", "newlines": "\n", "double spaces": "  "}
    return [name for name, text in separators.items() if not _survives(text, vocabulary, words)]


def _round_trip(vocabulary, ids):
    return vocabulary.decode(ids).encode("utf-8", errors="replace")


def _survives(separator, vocabulary, words):
    """Returns whether decoding keeps all separators between words."""
    # The line end completes the line for vocabularies with line symbols.
    probe = separator.join(words) + "\n"
    try:
        back = vocabulary.decode(vocabulary.encode(probe.encode(), "sample"))
    except ValueError:  # a symbol that the vocabulary refuses
        return False
    return back.count(separator) == probe.count(separator)


def _yes(survives):
    return "yes" if survives else "no"
