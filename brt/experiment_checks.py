"""Checks that model, stream, vocabulary and documents of an experiment fit together."""

import functools
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import gin
import jax
from absl import logging

from brt.bindings.bound_values import binding_of
from brt.data.corpus import Corpus
from brt.data.mixture import MixedStore, Mixture
from brt.data.sources.base import Source, absolute
from brt.data.stores.token_store import HOW_TO_REPEAT, MANIFEST, TokenStore
from brt.data.streams import documents, mixture
from brt.data.streams.batch import DTYPES, Batch
from brt.data.streams.labelled import LabelledDocuments
from brt.data.streams.samples import check_cut
from brt.data.streams.select import check_stride
from brt.data.streams.shifted import check_overlap
from brt.evaluation.reading import reading_step
from brt.evaluation.settings import batch_shape
from brt.models.model import Model
from brt.models.reader import Reader
from brt.storage.json_files import read_json
from brt.storage.paths import is_remote
from brt.training.settings import Trainer

if TYPE_CHECKING:
    from brt.experiment import Experiment


def check_evaluation(experiment: "Experiment") -> None:
    trainer, evaluation = experiment.trainer, experiment.evaluation
    rows, T = batch_shape(experiment)
    score = evaluation.score
    if score and trainer.stream not in score.streams:
        raise ValueError(
            f"Evaluation.score = @{type(score).__name__}() needs {score.streams[0]}, and "
            f"Trainer.stream = {trainer.stream!r} has none: bind one of them otherwise."
        )
    if evaluation.stride is not None:
        check_stride(trainer.stream)
        check_overlap(evaluation.stride, T)
    if trainer.stream == "samples" and trainer.sample_length:
        check_cut(trainer.sample_length, T)
    try:
        init, step = reading_step(experiment, rows, T, answers=trainer.stream == "labelled")
        caches = jax.eval_shape(init, experiment.abstract_params)
        batch = abstract_batch(1, rows, T)
        jax.eval_shape(
            functools.partial(step, state="cleared"),
            *(experiment.abstract_params, caches, batch, True),
            *(jax.ShapeDtypeStruct((rows,), bool), None),
        )
    except (ValueError, TypeError) as error:
        reason = str(error).replace("Trainer.segment_length", "Evaluation.segment_length")
        raise ValueError(
            f"Evaluation cannot run {rows} segments of {T} tokens "
            f"(Evaluation.segment_length, Evaluation.model): {reason}"
        ) from error


def check_reader(model: Model, trainer: Trainer) -> None:
    name = type(model).__name__
    if trainer.stream != "labelled":
        if isinstance(model, Reader):
            raise ValueError(
                f"{name} needs labelled documents, and Trainer.stream = {trainer.stream!r} has "
                'none: bind Trainer.stream = "labelled", or another model.'
            )
        return
    if not isinstance(model, Reader):
        raise ValueError(
            f'Trainer.stream = "labelled" needs a model for labelled documents, which {name} is '
            "not: bind another Trainer.model, or another stream."
        )
    targets = (trainer.labelled or LabelledDocuments()).targets
    if model.targets != targets:
        raise ValueError(
            f'{name} predicts {model.targets}, and LabelledDocuments.targets = "{targets}": bind '
            "one of them differently."
        )


def check_classes(model: Model, store: TokenStore | MixedStore) -> None:
    number = model.num_classes if isinstance(model, Reader) else None
    if number is None or isinstance(store, MixedStore):
        return
    classes = store.manifest["source"].get("classes") or []
    if classes and len(classes) != number:
        raise ValueError(
            f"{store.folder} has {len(classes)} classes ({', '.join(classes)}), and the model "
            f"{number}: bind {type(model).__name__}.classes = {len(classes)}."
        )


def check_same_parameters(trained: Any, evaluated: Any) -> None:
    """Refuses an evaluated model whose parameters, trees of shapes, are not the trained ones."""
    shapes, others = (
        {path: x.shape for path, x in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (trained, evaluated)
    )
    for path in shapes.keys() | others.keys():
        if shapes.get(path) != others.get(path):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(
                f"Evaluation.model has other parameters than Trainer.model ({name}): name the same "
                "model in its scope, and bind only settings such as the length of a memory."
            )


def check_vocabulary(experiment: "Experiment") -> None:
    """Refuses a vocabulary that does not fit the model, before stores are made."""
    corpus = experiment.trainer.corpus
    vocabulary = corpus.vocabulary
    source = corpus.corpora[0].source
    owner = "Corpus" if source.vocabulary is None else type(source).__name__
    experiment.model.check_vocabulary(vocabulary, f"{owner}.vocabulary")
    check_size(experiment.model, vocabulary.size, f"The vocabulary {vocabulary.name}")


def abstract_batch(segments: int, rows: int, segment_length: int) -> Batch:
    """Returns the shapes of a batch, and allocates nothing."""
    shapes = *[(segments, rows, segment_length)] * 3, (segments, rows)
    return Batch._make(map(jax.ShapeDtypeStruct, shapes, DTYPES))


def check_memory(experiment: "Experiment") -> None:
    """Refuses a step whose arrays are larger than this machine's memory; for one CPU process."""
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


def warn_of_warmup(experiment: "Experiment") -> None:
    """Warns of a learning rate that still rises when the run ends."""
    steps = experiment.trainer.steps
    for name in experiment.bindings:
        if not name.endswith(".warmup_steps"):
            continue
        schedule = name.removesuffix(".warmup_steps")
        warmup_steps = gin.get_bindings(schedule).get("warmup_steps")  # no macro: its value
        if (warmup_steps or 0) >= steps:
            logging.warning(
                "The learning rate still rises when the run ends, as %s = %s is not below "
                "Trainer.steps = %s; it ends at %.3g. Bind %s = %s (a tenth of the steps), or "
                "raise Trainer.steps.",
                name,
                f"{warmup_steps:,}",
                f"{steps:,}",
                experiment.schedule(steps),
                name,
                max(steps // 10, 1),
            )


def check_size(model: Model, size: int, subject: str) -> None:
    """Refuses a vocabulary (`subject`, for the message) of more ids than the model has."""
    if size > model.vocabulary_size:
        # A model around a backbone takes the backbone's.
        sizes = model.divided_sizes()
        own = f"{type(model).__name__}.vocabulary_size"
        binding = next((name for name in sizes if name.endswith(".vocabulary_size")), own)
        raise ValueError(
            f"{subject} has {size} ids and the model only {model.vocabulary_size}: bind "
            f"{binding_of(binding.split(' - ')[0])} = {size} or more."
        )


def check_documents(experiment: "Experiment", splits: Iterable[str]) -> None:
    """Refuses missing files, and fewer training documents than batch elements.

    Called before stores are made. Counts only stores and sources that list their files.
    """
    trainer = experiment.trainer
    corpus = trainer.corpus
    for part in corpus.corpora:
        for split in splits:
            if not part.exists(split):
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


def _check_files(source: Source, split: str) -> None:
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
