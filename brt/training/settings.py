"""Settings of a training run, which gin binds."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import optax

from brt.checks import Count, CountFrom0, Devices, OneOf, Seed, configurable
from brt.data.corpus import Corpus
from brt.data.mixture import Mixture
from brt.data.streams.labelled import LabelledDocuments
from brt.data.streams.select import STREAMS
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.model import Model
from brt.training.checkpoints.policy import CheckpointPolicy
from brt.training.evaluation_settings import Evaluation
from brt.training.optimization.plateau import ReduceOnPlateau
from brt.training.optimization.schedules import Schedule
from brt.training.optimization.weight_average import WeightAverage
from brt.training.train_step import LOSSES


@configurable
@dataclasses.dataclass(eq=False, repr=False)
class Trainer:
    """Settings of a run; `experiment_checks` refuses those that contradict one another.

    Args:
        corpus: a `Corpus` or a `Mixture` of several.
        optimizer, schedule: by reference, `@adafactor` and `@rsqrt`.
        steps: number of updates.
        segment_length: T in tokens, a multiple of the model's cache-update interval.
        tokens_per_step: batch elements x segments_per_step x segment_length, over all devices.
        accumulation: microbatches of a step, run one after another to save memory.
        segments_per_step: consecutive segments of a document that gradients may cross.
        bptt_depth: memories that the gradient of a segment's loss crosses; None for all.
        reread_segments: k earlier segments that a step runs again, unscored, before its one new
            segment, so that each gradient crosses k memories, at k + 1 times the cost (RMT, section
            3).
        remat_segments: recompute each segment, but not its loss, in the backward pass.
        loss: trained positions: "full"; "half", the last half of a segment (Transformer-XL, Table
            5). Evaluation scores all.
        most_scored: for tasks whose other tokens have weight 0: the most scored positions of a
            document in a step, which alone get logits. A step with more has a loss that is not
            finite. None for all.
        seed: of parameters, dropout and the order of documents.
        stream: the order of the data, also of evaluation (docs/data.md, Batches).
        mesh: (data, fsdp, model) devices, or (batch, model); -1 for the remaining ones.
        devices_over_time: devices of the data axis that divide the segments of a step
            (`brt/training/over_time/loss.py`) instead of its batch elements.
        plateau: lowers the rate when the evaluation loss stops falling.
        average: evaluates an average of the weights; not with a plateau.
        clear_state: train with the state, but not windows, cleared at every segment: the control.
        skip_nonfinite: skip updates that are not finite instead of stopping.
        log_every, eval_every: in steps; eval_every = 0 for no evaluation.
        evaluation, checkpoints, labelled: their settings; None for the defaults.
        model: a `Model`, by reference.

    Attributes: rows, the batch elements B of a step; policy, that of checkpoints.
    """

    corpus: Corpus | Mixture
    optimizer: Callable[..., optax.GradientTransformation]
    schedule: Callable[..., Schedule]
    steps: Count
    segment_length: Count
    tokens_per_step: Count
    accumulation: Count = 1
    segments_per_step: Count = 1
    bptt_depth: CountFrom0 | None = None
    reread_segments: CountFrom0 = 0
    remat_segments: bool = False
    loss: Annotated[str, OneOf(LOSSES)] = "full"
    most_scored: Count | None = None
    seed: Seed = 0
    stream: Annotated[str, OneOf(STREAMS)] = "documents"
    mesh: tuple[Devices, Devices] | tuple[Devices, Devices, Devices] = (-1, 1)
    devices_over_time: Count = 1
    plateau: ReduceOnPlateau | None = None
    average: WeightAverage | None = None
    clear_state: bool = False
    skip_nonfinite: bool = False
    log_every: Count = 100
    eval_every: CountFrom0 = 1000
    evaluation: Evaluation | None = None
    checkpoints: CheckpointPolicy | None = None
    model: Callable[..., Model] = BlockRecurrentTransformer
    labelled: LabelledDocuments | None = None

    def __post_init__(self):
        self.rows = self.tokens_per_step // (self.segment_length * self.segments_per_step)
        self.policy = self.checkpoints or CheckpointPolicy()
        source = self.corpus.source if isinstance(self.corpus, Corpus) else None
        self.sample_length = source.input_length if source else None

    @property
    def loss_settings(self) -> dict[str, Any]:
        names = "bptt_depth", "reread_segments", "remat_segments", "most_scored"
        same = {name: getattr(self, name) for name in names}
        return same | {"clear": self.clear_state, "scores": self.loss}
