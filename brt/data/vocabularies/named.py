"""Makes vocabularies from one string, of a config or a command line: `KIND:PATH`."""

import difflib
from collections.abc import Callable
from typing import overload

from brt.data.vocabularies.base import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from brt.data.vocabularies.characters import CharacterVocabulary
from brt.data.vocabularies.pretrained import ByteLevelBpeVocabulary, WordPieceVocabulary
from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.data.vocabularies.subwords import SubwordVocabulary
from brt.data.vocabularies.words import WordVocabulary

KINDS: dict[str, Callable[[str], Vocabulary]] = {
    "sentencepiece": SentencePieceVocabulary,
    "words": WordVocabulary,
    "characters": CharacterVocabulary,
    "bpe": ByteLevelBpeVocabulary,
    "wordpiece": WordPieceVocabulary,
    "subwords": SubwordVocabulary,
    "pretrained": PretrainedFolderVocabulary,
}


def named_vocabulary(text: str) -> Vocabulary:
    """Makes the vocabulary that a string names; opens no file.

    Args:
        text: "bytes"; the path of a SentencePiece model, ending in `.model`; or a kind, a colon
            and the path of its file or folder, such as "words:vocabularies/wikitext.txt". Further
            settings of a kind are bindings of its class, `WordVocabulary.lower_case` for example.
    """
    if text == "bytes":
        return ByteVocabulary()
    kind, colon, path = text.partition(":")
    if colon and path and kind in KINDS:
        return KINDS[kind](path)
    if text.endswith(".model"):
        return SentencePieceVocabulary(text)
    nearest = difflib.get_close_matches(kind, ["bytes", *KINDS], n=1)
    raise ValueError(
        f"{text!r} names no vocabulary"
        + (f" (is {nearest[0]} meant?)" if nearest else "")
        + ': write "bytes", the path of a SentencePiece model that ends in .model, or KIND:PATH '
        f"with one of the kinds {', '.join(KINDS)}."
    )


@overload
def as_vocabulary(given: Vocabulary | str) -> Vocabulary: ...


@overload
def as_vocabulary(given: None) -> None: ...


def as_vocabulary(given: Vocabulary | str | None) -> Vocabulary | None:
    """Returns the vocabulary itself, or the one that a string names."""
    return named_vocabulary(given) if isinstance(given, str) else given
