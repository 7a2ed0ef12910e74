"""Compares the vocabulary of a corpus with the tokenizer of a pretrained folder."""

import difflib

from absl import logging

from brt.bindings.bound_values import binding_of
from brt.data.extras import MissingExtra
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.pretrained.source import Pretrained

SAMPLE = (
    "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down. "
    'In 1865, "Alice" had 192 pages; isn\'t that a pity?'
)
ALIKE = 0.9


def check_ids(folder: str, vocabulary: Vocabulary, binding: str) -> None:
    """Refuses a vocabulary whose ids are not those of the folder's tokenizer.

    A folder without a tokenizer, and ids that are not text, are accepted.
    """
    if not vocabulary.is_text or Pretrained().other_vocabulary:
        return
    own = PretrainedFolderVocabulary(folder)
    try:
        expected = _ids(own)
    except FileNotFoundError:
        return
    except (OSError, ValueError, MissingExtra) as error:
        logging.warning("The tokenizer of %s is not compared with the corpus: %s", folder, error)
        return
    if vocabulary.fingerprint == own.fingerprint:
        return
    try:
        ids = _ids(vocabulary)
    except ValueError:  # text that the vocabulary refuses
        ids = []
    if difflib.SequenceMatcher(None, expected, ids, autojunk=False).ratio() < ALIKE:
        raise ValueError(
            f"{binding} = {vocabulary.name!r} gives other ids than the tokenizer of "
            f"Pretrained.folder = {folder!r}, which the parameters were trained on: bind "
            f'{binding_of(binding)} = "pretrained:{folder}" and Corpus.store to a new folder, or, '
            "if other ids are meant, Pretrained.other_vocabulary = True."
        )


def _ids(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode(SAMPLE.encode(), "text").tolist()
