"""The contract of a folder's tokenizer, and what both kinds share.

A tokenizer gives texts as ids in two ways: as brt stores them, without special tokens and with
their names read as text; and as `transformers` gives them to a model, with special tokens around a
text or a pair, and their names read as tokens.
"""

import abc
import hashlib
from typing import NamedTuple

from brt.data.vocabularies.tokenizer_settings import RESAVE, SETTINGS, TokenizerSettings

TOKENIZER = "tokenizer.json"


class Encoded(NamedTuple):
    """A text, or a pair of texts, as a model reads it.

    ids: of its tokens.
    offsets: of each token, the characters of its own text: first, and one behind the last; (0, 0)
        of a special token that was added. None where the tokenizer does not tell them.
    types: `token_type_ids`; None as offsets.
    sequences: 0 or 1, the text a token is of; None of a special token that was added.
    """

    ids: list[int]
    offsets: list[tuple[int, int]] | None
    types: list[int] | None
    sequences: list[int | None]


class FolderTokenizer(abc.ABC):
    """The tokenizer of a folder: the base of both kinds.

    Attributes:
        size: one more than the highest id.
        count: of tokens.
        special: special tokens by role, each its text and its id.
        unknown_id: of text that it does not know; None where it knows every text.
        may_be_cut: whether a text may be cut after a line feed between two characters that are
            not white space, and encoded in parts.
        digest: sha256, in hex, of whatever decides the ids of a text.
    """

    size: int
    count: int
    special: dict[str, tuple[str, int]]
    unknown_id: int | None
    may_be_cut: bool
    digest: str

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens; names of such are text."""

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the same ids and, for each, the characters it is of: first, and one behind."""

    @abc.abstractmethod
    def read(self, text: str, second: str | None = None, special: bool = True) -> Encoded:
        """Returns a text or a pair as a model reads it; names of special tokens are tokens.

        special: whether special tokens are added.
        """

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids, special tokens by their names."""

    def frame(self) -> tuple[list[int], list[int]]:
        """Returns the special tokens before and after a text that a model reads alone."""
        found = self.read("")
        marked = self.read("x")
        first = next((i for i, of in enumerate(marked.sequences) if of == 0), 0)
        return found.ids[:first], found.ids[first:]


def unknown_family(settings: TokenizerSettings, name: str, known: str) -> ValueError:
    """Returns the error of a folder whose tokenizer is of a class that is not built.

    Args:
        settings: of the folder.
        name: of the file that was to be read.
        known: the classes that are built from it.
    """
    return ValueError(
        f"{settings.path(name)} is of tokenizer_class {settings.family.name or 'unknown'} "
        f"({SETTINGS}, or model_type of config.json), and without {TOKENIZER} brt reads {known}: "
        f"{RESAVE}."
    )


def digest_of(*contents: str | bytes) -> str:
    """Returns the sha256, in hex, of contents one after the other."""
    digest = hashlib.sha256()
    for content in contents:
        content = content.encode() if isinstance(content, str) else content
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
