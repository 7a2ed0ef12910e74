"""Attention length at evaluation: a longer memory for the same parameters, while it helps.

Source: Transformer-XL, section 1 ("about 0.1 % relative gains") and Table 5, "PPL best", "Attn
    Len".
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brt.checks import Count, Name, configurable
from brt.data.token_scores import Sums
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.scores import TokenSums
from brt.evaluation.segment_reader import SegmentReader
from brt.studies.study import Content, Runs, Study, content, curve

THRESHOLD = 0.001


class Sweep(NamedTuple):
    """Lengths tried and their losses in nats.

    best: the shortest length after which nothing improved.
    ended: whether the sweep ended by itself; if not, a longer one may help more.
    """

    lengths: list[int]
    losses: list[float]
    best: int
    ended: bool


def sweep(loss_of: Callable[[int], float], lengths: Iterable[int]) -> Sweep:
    """Tries rising lengths until one improves by less than `THRESHOLD`."""
    swept, losses = [], []
    for length in lengths:
        swept.append(int(length))
        losses.append(float(loss_of(int(length))))
        if len(losses) > 1 and 1 - math.exp(losses[-1] - losses[-2]) < THRESHOLD:
            return Sweep(swept, losses, swept[-2], True)
    return Sweep(swept, losses, swept[-1], False)


@configurable
@dataclass(eq=False)
class AttentionLength(Study):
    """Evaluation with rising lengths of the memory, while they help.

    Args:
        setting: the length, an integer setting of the run's model.
        step, longest: lengths after that of training are multiples of the step, in tokens.
    """

    title = "A longer memory at evaluation"
    caption = "The same parameters, until a longer memory takes less than 0.1 % off the perplexity."
    any_stream = True

    setting: Name = "TransformerXL.memory_length"
    step: Count = 100
    longest: Count = 1000

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        binding = self.setting.removeprefix("evaluation/")
        initial, model, scope = _in_force(run, binding)
        longer = range((initial // self.step + 1) * self.step, self.longest + 1, self.step)

        def loss_of(length):
            lengthened = f"Evaluation.model = @{scope}/{model}", f"{scope}/{binding} = {length}"
            assert run.rebuild is not None  # set for studies
            experiment = run.rebuild(lengthened)
            return _loss(run, experiment, run.stream(documents), f"{binding} = {length:,}")

        lengths, losses, best, ended = sweep(loss_of, [initial, *longer])
        perplexities = list(map(math.exp, losses))
        best_perplexity = perplexities[lengths.index(best)]
        numbers = {
            "initial_length": initial,
            "initial_perplexity": perplexities[0],
            "best_length": best,
            "best_perplexity": best_perplexity,
            "ended": int(ended),
        }
        labels = "attention length at evaluation, tokens", "perplexity"
        after = "longer ones were not tried"
        if ended:
            after = f"{lengths[-1]:,} gains less than {THRESHOLD:.1%} more"
        own = f"{perplexities[0]:,.4f} with an attention length of {initial:,}"
        text = f"Perplexity falls from {own} to {best_perplexity:,.4f} with {best:,}; {after}."
        if best == initial:
            text = f"Perplexity is {own}, as in training; {after}."
        return content(numbers, [curve(binding, lengths, perplexities, *labels)], text)


def _in_force(run: RecordedRun, binding: str) -> tuple[int, str, str]:
    read = run.experiment.bindings
    own = type(run.experiment.model).__name__
    trained_scope, trained = _reference(read.get("Trainer.model"), own)
    evaluated_scope, evaluated = _reference(read.get("Evaluation.model"), trained)
    length = read.get(f"{trained_scope}/{binding}".lstrip("/"), "")
    if not length.isdigit():
        raise ValueError(
            f"AttentionLength.setting = {binding!r} is not a length that {run.workdir} reads, "
            f"whose model is {own}: name the setting of its memory's length, if it has one."
        )
    return int(length), evaluated, evaluated_scope or f"{trained_scope}/evaluation".lstrip("/")


def _reference(value: str | None, default: str) -> tuple[str, str]:
    if value is None or not value.startswith("@"):
        return "", default
    scope, _, name = value.strip("@()").rpartition("/")
    return scope, name


def _loss(run, experiment, stream, label):
    reader = SegmentReader(experiment, run.mesh, run.rows, run.segment_length)
    sums: Sums = {}
    for segment in reader.read(run.params, stream, label=run.label(label)):
        TokenSums().add(sums, run.store, segment)
    return sums["nats"] / max(sums["weight"], 1e-6)
