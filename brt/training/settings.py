"""Settings of a training run, which gin binds."""

from collections.abc import Callable
from typing import Annotated, Any

import gin
import jax
import optax

from brt.checks import Count, CountFrom0, Devices, OneOf, Seed, configurable
from brt.data.corpus import Corpus
from brt.data.mixture import Mixture
from brt.data.streams.labelled import LabelledDocuments
from brt.data.streams.samples import check_cut
from brt.data.streams.select import STREAMS, check_mixture, check_stream
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.model import Model
from brt.training.checkpoints.policy import CheckpointPolicy
from brt.training.losses import LOSSES
from brt.training.optimization.plateau import ReduceOnPlateau
from brt.training.optimization.weight_average import WeightAverage

FREE_TO_CHANGE = (
    "Trainer.steps:",
    "Trainer.log_every:",
    "Trainer.eval_every:",
    "Trainer.mesh:",
    "Trainer.evaluation:",
    "Trainer.checkpoints:",
    "Evaluation.",
    "RecallScore.",
    "FreeRunning.",
    "CheckpointPolicy.",
    "Corpus.store:",
    "Pretrained.other_vocabulary:",
)
"""Bindings that may differ when a run is resumed; all others decide what is computed."""


class EvaluationSettings:
    """Base class of `brt.evaluation.settings.Evaluation`."""


@configurable
class Trainer:
    """Settings of a run.

    Args:
        corpus: the data, a `Corpus` or a `Mixture` of several.
        optimizer, schedule: by reference, `@adafactor` and `@rsqrt`.
        model: a `Model`, by reference.
        steps: updates in all.
        segment_length: N in tokens, a multiple of the model's cache-update interval.
        tokens_per_step: batch elements x segments_per_step x segment_length, over all devices;
            without segments that are read again.
        segments_per_step: consecutive segments of a document that gradients may cross.
        bptt_depth: memories that the gradient of a segment's loss crosses, fewer than
            segments_per_step; None for all.
        reread_segments: earlier segments that every step runs again before its one new segment, so
            that the gradient of each loss crosses as many memories. 3 of them cost about 4 times a
            step without (Recurrent Memory Transformer, section 3).
        remat_segments: recompute each segment in the backward pass: the activations of one segment
            instead of all are kept.
        loss: positions of a segment that are trained on: "full", all; "half", the most recent
            half (Transformer-XL, Table 5). Evaluation scores all.
        seed: of parameters, dropout and the order of documents.
        stream: "documents", each in one batch element from start to end; "contiguous", the corpus
            cut into as many parts as batch elements; "shuffled", the same with documents in a new
            order every epoch; "samples" of one length, which the segments of a step make up; or
            "labelled" documents, of at most that many segments. Evaluation follows.
        labelled: how labelled documents are read, `@LabelledDocuments()`; None for its defaults.
        mesh: (data, model) devices; -1 takes what the other leaves.
        plateau: lowers the rate when the evaluation loss stops falling, `@ReduceOnPlateau()`.
        average: evaluates an average of the weights, `@WeightAverage()`; not with a plateau.
        clear_state: train with the state cleared at every segment.
        skip_nonfinite: skip updates that are not finite instead of stopping.
        log_every, eval_every: in steps; eval_every 0 evaluates never.
        evaluation: settings of evaluation, `@Evaluation()`; None for its defaults.
        checkpoints: when checkpoints are written and kept.

    Raises:
        ValueError: settings that contradict one another, naming the bindings.
    """

    def __init__(
        self,
        corpus: Corpus | Mixture = gin.REQUIRED,
        optimizer: Callable[..., optax.GradientTransformation] = gin.REQUIRED,
        schedule: Callable[..., jax.Array] = gin.REQUIRED,
        steps: Count = gin.REQUIRED,
        segment_length: Count = gin.REQUIRED,
        tokens_per_step: Count = gin.REQUIRED,
        segments_per_step: Count = 1,
        bptt_depth: CountFrom0 | None = None,
        reread_segments: CountFrom0 = 0,
        remat_segments: bool = False,
        loss: Annotated[str, OneOf(LOSSES)] = "full",
        seed: Seed = 0,
        stream: Annotated[str, OneOf(STREAMS)] = "documents",
        mesh: tuple[Devices, Devices] = (-1, 1),
        plateau: ReduceOnPlateau | None = None,
        average: WeightAverage | None = None,
        clear_state: bool = False,
        skip_nonfinite: bool = False,
        log_every: Count = 100,
        eval_every: CountFrom0 = 1000,
        evaluation: EvaluationSettings | None = None,
        checkpoints: CheckpointPolicy | None = None,
        model: Callable[..., Model] = BlockRecurrentTransformer,
        labelled: LabelledDocuments | None = None,
    ):
        row_tokens = segment_length * segments_per_step
        if tokens_per_step % row_tokens:
            raise ValueError(
                f"Trainer.tokens_per_step = {tokens_per_step} is not a whole number of rows of "
                f"{segments_per_step} x {segment_length} tokens (Trainer.segments_per_step x "
                f"Trainer.segment_length): bind it to a multiple of {row_tokens}."
            )
        check_stream(stream)
        if isinstance(corpus, Mixture):
            check_mixture(stream)
        self.sample_length = corpus.source.input_length if isinstance(corpus, Corpus) else None
        if stream == "samples" and self.sample_length:
            check_cut(self.sample_length, segment_length, segments_per_step)
        self.corpus = corpus
        self.optimizer = optimizer
        self.schedule = schedule
        self.steps = steps
        self.segment_length = segment_length
        self.tokens_per_step = tokens_per_step
        self.segments_per_step = segments_per_step
        self.rows = tokens_per_step // row_tokens
        self.bptt_depth = bptt_depth
        self.reread_segments = reread_segments
        self.remat_segments = remat_segments
        self.loss = loss
        self.seed = seed
        self.stream = stream
        self.labelled = labelled
        self.mesh = mesh
        self.plateau = plateau
        self.average = average
        self.clear_state = clear_state
        self.skip_nonfinite = skip_nonfinite
        self.log_every = log_every
        self.eval_every = eval_every
        self.evaluation: Any = evaluation
        self.model = model
        self.checkpoints = checkpoints or CheckpointPolicy()
        self._check_segments()
        self._check_evaluations()

    def _check_segments(self):
        depth, again, segments = self.bptt_depth, self.reread_segments, self.segments_per_step
        if depth is not None and depth >= segments:
            raise ValueError(
                f"Trainer.bptt_depth = {depth} reaches beyond the {segments} segments of a step: "
                f"bind Trainer.segments_per_step = {depth + 1} or more, or a smaller depth."
            )
        if again and (segments != 1 or depth is not None):
            raise ValueError(
                f"Trainer.reread_segments = {again} is the depth of a step with one new segment: "
                f"bind Trainer.segments_per_step = 1 for {segments}, and Trainer.bptt_depth = None "
                f"for {depth}."
            )
        if again and self.stream in ("samples", "labelled"):
            raise ValueError(
                f"Trainer.reread_segments = {again} has nothing to read again where every step "
                f'reads whole samples (Trainer.stream = "{self.stream}"): bind it to 0.'
            )
        if self.labelled and self.stream != "labelled":
            raise ValueError(
                f'Trainer.labelled is of Trainer.stream = "labelled", which is {self.stream!r}: '
                "bind one of them otherwise."
            )
        if self.stream == "labelled" and self.loss != "full":
            raise ValueError(
                f'Trainer.loss = "{self.loss}" leaves out the first positions of a segment, where '
                'labels stand (Trainer.stream = "labelled"): bind it to "full".'
            )

    def _check_evaluations(self):
        for name, is_bound in (
            ("Trainer.plateau", self.plateau),
            ("CheckpointPolicy.keep_best", self.checkpoints.keep_best),
        ):
            if is_bound and not self.eval_every:
                raise ValueError(f"{name} follows evaluations: bind Trainer.eval_every above 0.")
        if self.plateau and self.average:
            raise ValueError(
                "Trainer.plateau and Trainer.average are both bound: the rule would follow the "
                "average, which improves long after the weights have stopped. Bind one of them."
            )

    @property
    def loss_settings(self) -> dict:
        """Arguments of `brt.training.train_step.make_loss`, besides the model."""
        return {
            "clear": self.clear_state,
            "bptt_depth": self.bptt_depth,
            "reread_segments": self.reread_segments,
            "remat_segments": self.remat_segments,
            "scores": self.loss,
        }
