"""A backbone's initial folder, and its tokenizer."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from absl import logging

from brt.bindings.bound_values import binding_of
from brt.checks import Name, configurable
from brt.data.extras import MissingExtra
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.pretrained.folder import CONFIG, HubFolder

READ_BY = {
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Llama",
    "qwen2": "Llama",
    "gpt_neox": "GPTNeoX",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "deberta-v2": "DeBERTa",
    "t5": "T5",
}
"""The backbone for each `model_type` of folders."""
SAMPLE = (
    "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down. "
    'In 1865, "Alice" had 192 pages; isn\'t that a pity?'
)
ALIKE = 0.9


@configurable
@dataclass(eq=False)
class Pretrained:
    """Names the folder with a backbone's initial parameters.

    Args:
        folder: in the format of the Hugging Face Hub; None: random parameters.
        other_vocabulary: accept a corpus whose ids are not those of the folder's tokenizer.
    """

    folder: Name | None = None
    other_vocabulary: bool = False


def open_folder(path: str | None, backbone: str, model_types: Collection[str]) -> HubFolder | None:
    path = Pretrained().folder if path is None else path
    if path is None:
        return None
    folder = HubFolder(path)
    model_type = folder.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in model_types:
        known = READ_BY.get(str(model_type))
        raise ValueError(
            f"{folder.file(CONFIG)}: model_type = {model_type!r} is not read by {backbone}"
            + (f", but by @{known}." if known else f"; brt knows {', '.join(sorted(READ_BY))}.")
        )
    return folder


def check_ids(folder: str, vocabulary: Vocabulary, binding: str) -> None:
    """Refuses a vocabulary whose ids are not those of the folder's tokenizer.

    Folders without a tokenizer, and ids that are not text, are accepted.
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
