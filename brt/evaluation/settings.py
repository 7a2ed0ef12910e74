"""Settings of an evaluation, which gin binds."""

from collections.abc import Callable

from brt.checks import Count, configurable
from brt.data.splits import check_split
from brt.evaluation.scores import Score
from brt.models.model import Model
from brt.training.settings import EvaluationSettings


@configurable
class Evaluation(EvaluationSettings):
    """Settings of an evaluation, in the loop of a training run and by `brt.evaluate`.

    Args:
        split: of the corpus; a plain name, never a path.
        tokens_per_step: rows times segment length; None takes as many rows as the trainer's tokens
            fill. Empty rows are added where the devices do not divide them.
        segment_length: None takes the trainer's.
        max_steps: read only so many segments of each row, in the loop of a training run.
        cleared: evaluate a second time with the state cleared at every segment, if the
            model has a state.
        score: a further `Score`, such as `@RecallScore()` or, of samples, `@FreeRunning()`; or
            None.
        meliad_scoring: leave out what google-research/meliad does not score: the first token of
            each segment, and id 0, which is padding there and the unknown token of its PG19
            vocabularies. For comparison with its figures; `scored_tokens` tells how many are
            left, and there are no bits per byte, and no other figure
            of the whole text.
        model: by reference, as `Trainer.model`, with the same parameters; its other settings may
            differ: `@evaluation/TransformerXL` takes bindings of that scope, such as a longer
            memory. None takes the trainer's.
        stride: evaluate by windows of one segment that are read from nothing, each `stride` tokens
            after the one before, and score what is new in each. 1 is how a model without memory
            is evaluated at its best, at the price of a whole window for every token
            (Transformer-XL, section 3.1). None reads segments one after another with memory.
    """

    def __init__(
        self,
        split: str = "validation",
        tokens_per_step: Count | None = None,
        segment_length: Count | None = None,
        max_steps: Count | None = None,
        cleared: bool = True,
        score: Score | None = None,
        meliad_scoring: bool = False,
        model: Callable[..., Model] | None = None,
        stride: Count | None = None,
    ):
        self.split = check_split(split, "Evaluation.split")
        self.max_steps = max_steps
        self.cleared = cleared
        self.score = score
        self.meliad_scoring = meliad_scoring
        self.model = model
        self.stride = stride
        self.tokens_per_step = tokens_per_step
        self.segment_length = segment_length
