"""Settings of a training run that contradict one another."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from brt.data.mixture import Mixture
from brt.data.streams.samples import check_cut
from brt.data.streams.select import check_mixture

if TYPE_CHECKING:
    from brt.training.settings import Trainer


def contradictions(trainer: "Trainer") -> Iterator[str]:
    depth, again, segments = trainer.bptt_depth, trainer.reread_segments, trainer.segments_per_step
    row_tokens = trainer.segment_length * segments
    if trainer.tokens_per_step % row_tokens:
        yield (
            f"Trainer.tokens_per_step = {trainer.tokens_per_step} is not a multiple of "
            f"{row_tokens} (Trainer.segments_per_step x Trainer.segment_length): bind it to one."
        )
    if isinstance(trainer.corpus, Mixture):
        check_mixture(trainer.stream)
    if trainer.stream == "samples" and trainer.sample_length:
        check_cut(trainer.sample_length, trainer.segment_length, segments)
    if depth is not None and depth >= segments:
        yield (
            f"Trainer.bptt_depth = {depth} must be below the {segments} segments of a step: "
            f"bind Trainer.segments_per_step = {depth + 1} or more, or a smaller depth."
        )
    if again and (segments != 1 or depth is not None):
        yield (
            f"Trainer.reread_segments = {again} is the depth of a step with one new segment: "
            "bind Trainer.segments_per_step = 1 and Trainer.bptt_depth = None."
        )
    if again and trainer.stream in ("samples", "labelled"):
        yield (
            f"Trainer.reread_segments = {again} needs earlier segments, and every step reads "
            f'whole samples (Trainer.stream = "{trainer.stream}"): bind it to 0.'
        )
    if trainer.labelled and trainer.stream != "labelled":
        yield f'Trainer.labelled needs Trainer.stream = "labelled", which is {trainer.stream!r}.'
    if trainer.stream == "labelled" and trainer.loss != "full":
        yield (
            f'Trainer.loss = "{trainer.loss}" excludes positions that have labels (Trainer.stream '
            '= "labelled"): bind it to "full".'
        )
    if trainer.plateau and not trainer.eval_every:
        yield "Trainer.plateau follows evaluations: bind Trainer.eval_every above 0."
    if trainer.policy.keep_best and not trainer.eval_every:
        yield "CheckpointPolicy.keep_best follows evaluations: bind Trainer.eval_every above 0."
    if trainer.plateau and trainer.average:
        yield (
            "Trainer.plateau and Trainer.average are both bound, and the average improves long "
            "after the weights have stopped: bind one of them."
        )
