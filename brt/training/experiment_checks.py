"""Checks that an experiment's model, streams and settings fit together."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from brt.bindings.bound_values import binding_of
from brt.data.mixture import MixedStore, Mixture
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import DTYPES, Batch
from brt.data.streams.labelled import LabelledDocuments
from brt.data.streams.samples import check_cut
from brt.data.streams.select import SAMPLES, check_mixture, check_stride
from brt.data.streams.shifted import check_overlap
from brt.models.diagonal import layerwise_of
from brt.models.model import Model
from brt.models.reader import Reader
from brt.training.evaluation_settings import Evaluation
from brt.training.settings import Trainer
from brt.training.train_step import enter_segment


def check_trainer(trainer: Trainer) -> None:
    depth, again, segments = trainer.bptt_depth, trainer.reread_segments, trainer.segments_per_step
    row_tokens = trainer.segment_length * segments
    if trainer.tokens_per_step % row_tokens:
        raise ValueError(
            f"Trainer.tokens_per_step = {trainer.tokens_per_step} is not a multiple of "
            f"{row_tokens} (Trainer.segments_per_step x Trainer.segment_length): bind it to one."
        )
    if trainer.rows % trainer.accumulation:
        raise ValueError(
            f"Trainer.accumulation = {trainer.accumulation} does not divide the {trainer.rows} "
            "batch elements of a step: change it or Trainer.tokens_per_step."
        )
    if isinstance(trainer.corpus, Mixture):
        check_mixture(trainer.stream)
    if trainer.stream in SAMPLES and trainer.sample_length:
        check_cut(trainer.sample_length, trainer.segment_length, segments)
    if depth is not None and depth >= segments:
        raise ValueError(
            f"Trainer.bptt_depth = {depth} must be below the {segments} segments of a step: "
            f"bind Trainer.segments_per_step = {depth + 1} or more, or a smaller depth."
        )
    if again and (segments != 1 or depth is not None):
        raise ValueError(
            f"Trainer.reread_segments = {again} is the depth of a step with one new segment: "
            "bind Trainer.segments_per_step = 1 and Trainer.bptt_depth = None."
        )
    if again and trainer.stream in (*SAMPLES, "labelled"):
        raise ValueError(
            f"Trainer.reread_segments = {again} needs earlier segments, and every step reads "
            f'whole samples (Trainer.stream = "{trainer.stream}"): bind it to 0.'
        )
    if trainer.labelled and trainer.stream != "labelled":
        raise ValueError(
            f'Trainer.labelled needs Trainer.stream = "labelled", which is {trainer.stream!r}.'
        )
    if trainer.stream == "labelled" and trainer.loss != "full":
        raise ValueError(
            f'Trainer.loss = "{trainer.loss}" excludes positions that have labels (Trainer.stream '
            '= "labelled"): bind it to "full".'
        )
    if trainer.plateau and not trainer.eval_every:
        raise ValueError("Trainer.plateau follows evaluations: bind Trainer.eval_every above 0.")
    if trainer.policy.keep_best and not trainer.eval_every:
        raise ValueError(
            "CheckpointPolicy.keep_best follows evaluations: bind Trainer.eval_every above 0."
        )
    if trainer.plateau and trainer.average:
        raise ValueError(
            "Trainer.plateau and Trainer.average are both bound, and the average improves long "
            "after the weights have stopped: bind one of them."
        )


def check_evaluation(
    trainer: Trainer, evaluation: Evaluation, bind: Callable[[Any], Model], params: Any
) -> None:
    tokens = trainer.tokens_per_step // trainer.accumulation
    rows, T = evaluation.batch_shape(tokens, trainer.segment_length)
    score = evaluation.score
    if score and trainer.stream not in score.streams:
        raise ValueError(
            f"Evaluation.score = @{type(score).__name__}() needs {score.streams[0]}, and "
            f"Trainer.stream = {trainer.stream!r} has none: bind one of them otherwise."
        )
    if evaluation.stride is not None:
        check_stride(trainer.stream)
        check_overlap(evaluation.stride, T)
    if trainer.stream in SAMPLES and trainer.sample_length:
        check_cut(trainer.sample_length, T)

    def read(params, batch):
        model, segment = bind(params), batch.segment(0)
        x_BTD, caches = enter_segment(model, segment, model.init_caches(rows), clear=True)
        x_BTD, _, _ = model.stack(x_BTD, caches)
        if evaluation.segments_together > 1:
            layerwise_of(model)
        answers = model.answers(x_BTD) if isinstance(model, Reader) else None
        return model.token_losses(x_BTD, segment.targets_BT), answers

    try:
        jax.eval_shape(read, params, abstract_batch(1, rows, T))
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
    labelled = trainer.labelled or LabelledDocuments()
    if model.targets != labelled.targets:
        raise ValueError(
            f"{name} predicts {model.targets}, and LabelledDocuments.targets = "
            f'"{labelled.targets}": bind one of them differently.'
        )
    most = labelled.words if model.num_words is None else model.num_words
    if labelled.targets == "words" and most < labelled.words:
        raise ValueError(
            f"{name}.words = {most} is less than LabelledDocuments.words = {labelled.words}: bind "
            "them to the same number."
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


def check_same_parameters(trained: Model, evaluated: Model) -> None:
    shapes, others = (
        {path: x.shape for path, x in nnx.to_flat_state(nnx.state(model, nnx.Param))}
        for model in (trained, evaluated)
    )
    for path in {**shapes, **others}:
        if shapes.get(path) != others.get(path):
            name = ".".join(map(str, path))
            raise ValueError(
                f"Evaluation.model has other parameters than Trainer.model ({name}): name the same "
                "model in its scope, and bind only settings such as the length of a memory."
            )


def abstract_batch(segments: int, rows: int, segment_length: int) -> Batch:
    shapes = *[(segments, rows, segment_length)] * 3, (segments, rows)
    return Batch._make(map(jax.ShapeDtypeStruct, shapes, DTYPES))


def check_size(model: Model, size: int, subject: str) -> None:
    if size > model.vocabulary_size:
        # A model around a backbone has the backbone's sizes.
        sizes = model.divided_sizes()
        own = f"{type(model).__name__}.vocabulary_size"
        binding = next((name for name in sizes if name.endswith(".vocabulary_size")), own)
        raise ValueError(
            f"{subject} has {size} ids and the model only {model.vocabulary_size}: bind "
            f"{binding_of(binding.split(' - ')[0])} = {size} or more."
        )
