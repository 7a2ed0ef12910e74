"""Checks of a corpus against the model that is to be trained on it, before stores are made."""

import difflib
import os
from collections.abc import Iterable
from typing import Any

from absl import logging

from brt.bindings.bound_values import binding_of
from brt.data.corpus import Corpus
from brt.data.extras import MissingExtra
from brt.data.mixture import Mixture
from brt.data.sources.base import Source, absolute
from brt.data.stores.token_store import HOW_TO_REPEAT, MANIFEST
from brt.data.streams import documents, mixture
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.models.model import Model
from brt.pretrained.source import Pretrained
from brt.storage.json_files import read_json
from brt.storage.paths import is_remote

SAMPLE = (
    "The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down. "
    'In 1865, "Alice" had 192 pages; isn\'t that a pity?'
)
"""A text that two vocabularies are compared by."""
ALIKE = 0.9
"""Share of equal ids from which on two vocabularies are taken for one: the first may differ."""


def check_size(model: Model, size: int, which: str) -> None:
    """Refuses a vocabulary of more ids than the model has.

    Args:
        model: to be trained, or evaluated.
        size: of the vocabulary.
        which: names the vocabulary, for the message.

    Raises:
        ValueError: it has more; the sentence names the binding.
    """
    if size > model.vocabulary_size:
        # A model around a body takes the body's.
        sizes = model.divided_sizes()
        own = f"{type(model).__name__}.vocabulary_size"
        binding = next((name for name in sizes if name.endswith(".vocabulary_size")), own)
        raise ValueError(
            f"{which} has {size} ids and the model's table only {model.vocabulary_size} rows: bind "
            f"{binding_of(binding.split(' - ')[0])} = {size} or more."
        )


def check_folder(model: Model, corpus: Corpus | Mixture) -> None:
    """Refuses a corpus whose ids are not those of the pretrained folder's tokenizer.

    A folder without a tokenizer, and ids that stand for no text, are accepted.

    Raises:
        ValueError: the ids of a text differ; the sentence names the bindings.
    """
    path = _folder_of(model)
    vocabulary = corpus.vocabulary
    if path is None or not vocabulary.is_text or Pretrained().other_vocabulary:
        return
    own = PretrainedFolderVocabulary(path)
    try:
        expected = _ids(own)
    except FileNotFoundError:
        return
    except (OSError, ValueError, MissingExtra) as error:
        logging.warning("The tokenizer of %s is not compared with the corpus: %s", path, error)
        return
    if vocabulary.fingerprint == own.fingerprint:
        return
    try:
        found = _ids(vocabulary)
    except ValueError:  # text that the vocabulary refuses
        found = []
    source = corpus.corpora[0].source
    owner = "Corpus" if source.vocabulary is None else type(source).__name__
    binding = binding_of(f"{owner}.vocabulary")
    if difflib.SequenceMatcher(None, expected, found, autojunk=False).ratio() < ALIKE:
        raise ValueError(
            f"{owner}.vocabulary = {vocabulary.name!r} gives other ids than the tokenizer of "
            f"Pretrained.folder = {path!r}, which the parameters were trained on: bind "
            f'{binding} = "pretrained:{path}" and Corpus.store to a new folder, or, if '
            "other ids are meant, Pretrained.other_vocabulary = True."
        )


def check_files(corpus: Corpus | Mixture, splits: Iterable[str]) -> None:
    """Refuses a source whose files are not there, where a split's store is not made yet.

    Raises:
        OSError: naming the path.
    """
    for part in corpus.corpora:
        for split in splits:
            if not part.exists(split):
                _check_files(part.source, split)


def check_documents(corpus: Corpus | Mixture, rows: int, tokens: int) -> None:
    """Refuses fewer training documents than rows, of the store or, without one, of the source.

    Sources that do not list their files are not asked.

    Args:
        corpus: to be read as whole documents.
        rows: of a batch.
        tokens: of a row in a step.

    Raises:
        ValueError: there are fewer.
        OSError: the source cannot be read.
    """
    for part in corpus.corpora:
        where, count = _count(part)
        if count is not None and isinstance(corpus, Mixture):
            mixture.check_count(where, count, rows)
        elif count is not None:
            documents.check_count(where, count, rows, tokens)


def _count(corpus: Corpus) -> tuple[str, int | None]:
    """Where the training documents are, and how many; None where counting may take long."""
    if corpus.exists("train"):
        path = corpus.path("train")
        manifest = read_json(path / "manifest.json", MANIFEST, HOW_TO_REPEAT)
        return str(path), manifest["documents"]
    source = corpus.source
    return type(source).__name__, source.count("train") if source.listed else None


def _check_files(source: Source, split: str) -> None:
    if inner := getattr(source, "source", None):  # a selection of its documents
        _check_files(inner, split)
    elif source.listed and not source.checks_content:
        source.count(split)
    elif isinstance(path := getattr(source, "path", None), str):
        named = (getattr(source, "splits", None) or {}).get(split, split)
        path = path.replace("{split}", named)
        if not is_remote(path) and not os.path.exists(absolute(path)):
            raise FileNotFoundError(
                f"Nothing is at {path}: bind {type(source).__name__}.path to where the documents "
                f"of split {split!r} are."
            )


def _folder_of(model: Any) -> str | None:
    """Path of the folder that a model's body is read from."""
    while model is not None:
        if folder := getattr(model, "folder", None):
            return folder.path
        model = getattr(model, "body", None)
    return None


def _ids(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode(SAMPLE.encode(), "text").tolist()
