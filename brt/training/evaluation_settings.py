"""Settings of an evaluation."""

from collections.abc import Callable
from dataclasses import dataclass

from brt.checks import Count, configurable
from brt.data.splits import check_split
from brt.data.token_scores import Score
from brt.models.model import Model


@configurable
@dataclass(eq=False)
class Evaluation:
    """Settings of an evaluation, in the loop of a training run and by `brt.evaluate`.

    Args:
        split: of the corpus.
        tokens_per_step: batch elements times segment length; None takes a microbatch of the
            trainer's, rounded down. Empty batch elements are added where the devices do not divide
            them.
        segment_length: None takes the trainer's.
        max_steps: most segments of each batch element, in the loop of a training run; whole
            samples, and one labelled document at least.
        cleared: evaluate again with the state, if any, cleared before every segment.
        score: a further `Score`: `@RecallScore()` or, of samples, `@FreeRunning()`; or None.
        meliad_scoring: score as google-research/meliad, without the first token of each segment
            and id 0. There are then no metrics of the whole text, such as bits per byte.
        model: by reference, with the parameters of `Trainer.model` but other settings, such as a
            longer memory (`@evaluation/TransformerXL` takes bindings of that scope). None takes the
            trainer's.
        segments_together: segments of a document that run at once, in a diagonal schedule of the
            layers (`brt/evaluation/diagonal.py`); generation reads long texts so, too.
        stride: evaluate windows of one segment, each from empty caches and `stride` tokens after
            the last; only new tokens are scored (Transformer-XL, section 3.1).
    """

    split: str = "validation"
    tokens_per_step: Count | None = None
    segment_length: Count | None = None
    max_steps: Count | None = None
    cleared: bool = True
    score: Score | None = None
    meliad_scoring: bool = False
    model: Callable[..., Model] | None = None
    segments_together: Count = 1
    stride: Count | None = None

    def __post_init__(self) -> None:
        check_split(self.split, "Evaluation.split")

    def batch_shape(self, tokens_per_step: int, segment_length: int) -> tuple[int, int]:
        """Returns batch elements and tokens of a segment, (B, T).

        Arguments are the trainer's, of a microbatch.
        """
        T = self.segment_length or segment_length
        tokens = self.tokens_per_step or tokens_per_step
        rows, rest = divmod(tokens, T)
        if not rows or (rest and self.tokens_per_step):
            owner = "Trainer.tokens_per_step / Trainer.accumulation"
            owner = "Evaluation.tokens_per_step" if self.tokens_per_step else owner
            raise ValueError(
                f"{owner} = {tokens} is not a multiple of the segment length of {T} tokens: bind "
                f"Evaluation.tokens_per_step = {max(rows, 1) * T}, or segment_length."
            )
        return rows, T
