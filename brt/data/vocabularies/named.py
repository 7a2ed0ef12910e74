"""Vocabularies by name: `KIND:PATH`."""

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
    """Returns a vocabulary by its name; opens no file.

    Args:
        text: "bytes"; the path of a SentencePiece model, ending in `.model`; or KIND:PATH, such as
            "words:vocabularies/wikitext.txt". Other settings are bindings of the class of a kind.
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
def as_vocabulary(vocabulary: Vocabulary | str) -> Vocabulary: ...


@overload
def as_vocabulary(vocabulary: Vocabulary | str | None) -> Vocabulary | None: ...


def as_vocabulary(vocabulary: Vocabulary | str | None) -> Vocabulary | None:
    return named_vocabulary(vocabulary) if isinstance(vocabulary, str) else vocabulary
