"""Checks of a run on this machine: its vocabulary, documents, memory and warm-up."""

import os
from collections.abc import Iterable
from typing import Any

import jax
from absl import logging

from brt.data.corpus import Corpus
from brt.data.mixture import Mixture
from brt.data.sources.base import Source, absolute
from brt.data.stores.token_store import HOW_TO_REPEAT, MANIFEST
from brt.data.streams import documents, mixture
from brt.experiment import Experiment
from brt.storage.json_files import read_json
from brt.storage.paths import is_remote
from brt.training.experiment_checks import check_size


def check_vocabulary(experiment: Experiment) -> None:
    """Refuses a vocabulary that does not fit the model, before stores are made."""
    corpus = experiment.trainer.corpus
    vocabulary = corpus.vocabulary
    source = corpus.corpora[0].source
    owner = "Corpus" if source.vocabulary is None else type(source).__name__
    experiment.model.check_vocabulary(vocabulary, f"{owner}.vocabulary")
    check_size(experiment.model, vocabulary.size, f"The vocabulary {vocabulary.name}")


def check_documents(experiment: Experiment, splits: Iterable[str]) -> None:
    """Refuses missing files or libraries, and fewer training documents than batch elements.

    Counts only stores and sources that list their files.
    """
    trainer = experiment.trainer
    corpus = trainer.corpus
    for part in corpus.corpora:
        for split in splits:
            if not part.exists(split):
                _check_library(part.vocabulary)
                _check_files(part.source, split)
    if trainer.stream != "documents":
        return
    for part in corpus.corpora:
        where, count = _count(part)
        if count is not None and isinstance(corpus, Mixture):
            mixture.check_count(where, count, trainer.rows)
        elif count is not None:
            tokens = trainer.segments_per_step * trainer.segment_length
            documents.check_count(where, count, trainer.rows, tokens)


def _count(corpus: Corpus) -> tuple[str, int | None]:
    if corpus.exists("train"):
        path = corpus.path("train")
        manifest = read_json(path / "manifest.json", MANIFEST, HOW_TO_REPEAT)
        return str(path), manifest["documents"]
    source = corpus.source
    return type(source).__name__, source.count("train") if source.listed else None


def _check_library(owner: Any) -> None:
    if check := getattr(owner, "check_library", None):
        check()


def _check_files(source: Source, split: str) -> None:
    _check_library(source)
    if inner := getattr(source, "source", None):  # a selection of its documents
        _check_files(inner, split)
    elif source.listed and not source.checks_content:
        source.count(split)
    elif isinstance(path := getattr(source, "path", None), str):
        path = path.replace("{split}", source.original_split(split))
        if not is_remote(path) and not os.path.exists(absolute(path)):
            raise FileNotFoundError(
                f"Nothing is at {path}: bind {type(source).__name__}.path to the documents of "
                f"split {split!r}."
            )


def check_memory(experiment: Experiment) -> None:
    """Refuses a step whose arrays exceed this machine's memory; for one CPU process."""
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return
    arrays = jax.tree.leaves((experiment.abstract_state(), experiment.abstract_batch()))
    needed = sum(x.size * x.dtype.itemsize for x in arrays)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"Trainer.tokens_per_step = {experiment.trainer.tokens_per_step:,} needs at least "
            f"{needed:,} bytes for the batch, the caches and the parameters of a step, and this "
            f"machine has {memory:,}: bind it to less, or choose a smaller model."
        )


def warn_of_warmup(experiment: Experiment) -> None:
    """Warns of a learning rate that still rises when the run ends."""
    steps = experiment.trainer.steps
    asked = steps // 2, steps - 1, steps
    middle, before, last = (float(experiment.schedule(step)) for step in asked)
    # A warm-up adds last / steps with each step. If it ends where `linear` does, all rates are 0.
    if last - before > last / (2 * steps) or not middle:
        logging.warning(
            "The learning rate still rises when the run ends; it ends at %.3g. Shorten the warm-up "
            "of %s to %s steps (a tenth of the %s), or raise Trainer.steps.",
            last,
            experiment.trainer.schedule.__name__,
            max(steps // 10, 1),
            f"{steps:,}",
        )
