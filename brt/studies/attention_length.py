"""The attention length at evaluation: a longer memory for the same parameters, while it helps.

Source: Transformer-XL, section 1: "until no further noticeable improvement (about 0.1 % relative
gains)", which is 1,600 on WikiText-103 and 3,800 on enwik8; the columns of Table 5, "PPL best" and
"Attn Len".
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from brt.evaluation.reading import SegmentReader
from brt.evaluation.recorded_run import RecordedRun

THRESHOLD = 0.001
"""Of the perplexity: a length that gains less ends the sweep."""


class Sweep(NamedTuple):
    """The lengths tried and their losses in nats; the last one tried did not help, if it ended.

    best: the shortest length after which nothing was gained.
    ended: whether the sweep ended by itself; if not, a longer one may help more.
    """

    lengths: list[int]
    losses: list[float]
    best: int
    ended: bool


class AttentionLength(NamedTuple):
    """The setting that was lengthened, `TransformerXL.memory_length`, and its lengths in tokens."""

    binding: str
    sweep: Sweep


def sweep(loss_of: Callable[[int], float], lengths: Iterable[int]) -> Sweep:
    """Tries lengths in order until one gains less than `THRESHOLD` over the one before.

    Args:
        loss_of: from a length to a loss in nats a token.
        lengths: rising, at least one.
    """
    tried, losses = [], []
    for length in lengths:
        tried.append(int(length))
        losses.append(float(loss_of(int(length))))
        if len(losses) > 1 and 1 - math.exp(losses[-1] - losses[-2]) < THRESHOLD:
            return Sweep(tried, losses, tried[-2], True)
    return Sweep(tried, losses, tried[-1], False)


def attention_length(
    run: RecordedRun, documents: np.ndarray, step: int, longest: int, binding: str
) -> AttentionLength:
    """Evaluates a run with one length of its memory after the other.

    Args:
        run: one that can be rebuilt.
        documents: to read, where the stream marks any; else all is read.
        step, longest: lengths tried after training's own are multiples of the step, in tokens.
        binding: the setting that is lengthened, `TransformerXL.memory_length`; at evaluation only.

    Raises:
        ValueError: the run's model reads no such whole number, or has other parameters with it.
    """
    binding = binding.removeprefix("evaluation/")
    initial, model, scope = _in_force(run, binding)
    longer = range((initial // step + 1) * step, longest + 1, step)

    def loss_of(length):
        lengthened = f"Evaluation.model = @{scope}/{model}", f"{scope}/{binding} = {length}"
        experiment = run.rebuild(lengthened)
        return _loss(run, experiment, run.stream(documents), f"{binding} = {length:,}")

    return AttentionLength(binding, sweep(loss_of, [initial, *longer]))


def _in_force(run: RecordedRun, binding: str) -> tuple[int, str, str]:
    """Finds the value training has read for a setting, and the scope that evaluation binds it in.

    Returns:
        The length, the name of the model's configurable, and the scope that `Evaluation.model`
        is to be built in. Settings bound in the run's own scope of evaluation stay in force.
    """
    read = run.experiment.bindings
    own = type(run.experiment.model).__name__
    trained_scope, trained = _reference(read.get("Trainer.model"), own)
    evaluated_scope, evaluated = _reference(read.get("Evaluation.model"), trained)
    length = read.get(f"{trained_scope}/{binding}".lstrip("/"), "")
    if not length.isdigit():
        raise ValueError(
            f"--lengthened={binding} is no length that {run.workdir} reads, whose model is {own}: "
            "name the setting of its memory's length, if it has one."
        )
    return int(length), evaluated, evaluated_scope or f"{trained_scope}/evaluation".lstrip("/")


def _reference(value: str | None, default: str) -> tuple[str, str]:
    """Returns scope and name of a reference as gin writes it, `@evaluation/TransformerXL`."""
    if value is None or not value.startswith("@"):
        return "", default
    scope, _, name = value.strip("@()").rpartition("/")
    return scope, name


def _loss(run, experiment, stream, label):
    """Returns nats a token of the run's parameters in another experiment's model."""
    reader = SegmentReader(experiment, run.mesh, run.rows, run.segment_length)
    nats = weight = 0.0
    for segment in reader.read(run.params, stream, label=None if run.quiet else label):
        weights_BT = segment.batch.weights_KBT[0].astype(np.float64)
        nats += float(np.where(weights_BT > 0, segment.nats_BT * weights_BT, 0.0).sum())
        weight += float(weights_BT.sum())
    return nats / max(weight, 1e-6)
