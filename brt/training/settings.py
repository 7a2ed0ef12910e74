"""Settings of a training run, which gin binds; the loop that follows them is in `trainer.py`."""

from collections.abc import Callable
from typing import Annotated, Any

import gin
import jax
import optax

from brt.checks import Count, CountFrom0, Devices, OneOf, Seed, check_choice
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
from brt.training.unroll import check_depth, check_reread

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
    """Base class of what `Trainer.evaluation` is bound to: `brt.evaluation.settings.Evaluation`."""


@gin.configurable
class Trainer:
    """Settings of a run.

    Args:
        corpus: what is read, a `Corpus` or a `Mixture` of several.
        optimizer, schedule: by reference, `@adafactor` and `@rsqrt`.
        model: a `Model`, by reference.
        steps: updates in all.
        segment_length: N in tokens, a multiple of the model's window.
        tokens_per_step: rows x segments_per_step x segment_length, over all devices; segments
            read again do not count.
        segments_per_step: consecutive segments of a document that gradients may cross.
        bptt_depth: memories that the gradient of a segment's loss crosses, fewer than
            segments_per_step; None for all.
        reread_segments: segments before the new one that every step reads again, so that the
            gradient of each loss crosses as many memories; a step then has one new segment. 3 of
            them cost about 4 times a step without (Recurrent Memory Transformer, section 3).
        remat_segments: recompute each segment in the backward pass, so that a step needs the
            memory of one segment's activations instead of all.
        loss: positions of a segment that are trained on: "full", all; "half", the most recent
            half (Transformer-XL, Table 5). Evaluation scores all.
        seed: of parameters, dropout and the order of documents.
        stream: "documents", each read by one row from start to end; "contiguous", the corpus cut
            into rows; "shuffled", the same with its documents in a new order every epoch; or
            "samples" of one length, which the segments of a step make up; or "labelled" documents,
            of which a step reads that many segments at most. Evaluation follows.
        labelled: how labelled documents are read, `@LabelledDocuments()`; None for its defaults.
        mesh: (data, model) devices; -1 takes what the other leaves.
        plateau: lowers the rate when the evaluation loss stops falling, `@ReduceOnPlateau()`.
        average: evaluates an average of the weights, `@WeightAverage()`; not with a plateau.
        clear_state: train with the state cleared at every segment.
        skip_nonfinite: skip updates that are not finite instead of stopping.
        log_every, eval_every: in steps; eval_every 0 evaluates never.
        evaluation: what in-loop evaluation and `brt.evaluate` do, `@Evaluation()`; None for its
            defaults, which `Experiment.evaluation` has.
        checkpoints: when checkpoints are written and kept.
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
        per_row = segment_length * segments_per_step
        if min(segment_length, segments_per_step) < 1 or tokens_per_step % per_row:
            raise ValueError(
                f"Trainer.tokens_per_step = {tokens_per_step} is not a whole number of rows of "
                f"{segments_per_step} x {segment_length} tokens (Trainer.segments_per_step x "
                f"Trainer.segment_length): bind it to a multiple of {per_row}."
            )
        if min(steps, tokens_per_step, log_every) < 1:
            raise ValueError("Trainer.steps, tokens_per_step and log_every must be at least 1.")
        check_depth(bptt_depth, segments_per_step)
        check_choice("Trainer.loss", loss, LOSSES)
        check_stream(stream)
        if isinstance(corpus, Mixture):
            check_mixture(stream)
        if labelled and stream != "labelled":
            raise ValueError(
                f'Trainer.labelled is of Trainer.stream = "labelled", which is {stream!r}: bind '
                "one of them otherwise."
            )
        if stream == "labelled" and loss != "full":
            raise ValueError(
                f'Trainer.loss = "{loss}" leaves out the first positions of a segment, where '
                'labels stand (Trainer.stream = "labelled"): bind it to "full".'
            )
        check_reread(reread_segments, segments_per_step, bptt_depth, stream)
        self.sample_length = corpus.source.input_length if isinstance(corpus, Corpus) else None
        if stream == "samples" and self.sample_length:
            check_cut(self.sample_length, segment_length, segments_per_step)
        if plateau and not eval_every:
            raise ValueError(
                "Trainer.plateau follows evaluations: bind Trainer.eval_every to 1 or more."
            )
        if checkpoints and checkpoints.keep_best and not eval_every:
            raise ValueError(
                "CheckpointPolicy.keep_best follows evaluations, and Trainer.eval_every = 0 makes "
                "none: bind it to 1 or more."
            )
        if plateau and average:
            raise ValueError(
                "Trainer.plateau and Trainer.average are both bound: the rule would follow the "
                "average, which improves long after the weights have stopped. Bind one of them."
            )
        self.corpus: Any = corpus
        self.optimizer = optimizer
        self.schedule = schedule
        self.steps = steps
        self.segment_length = segment_length
        self.tokens_per_step = tokens_per_step
        self.segments_per_step = segments_per_step
        self.rows = tokens_per_step // per_row
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
