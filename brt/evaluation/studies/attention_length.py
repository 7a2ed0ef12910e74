"""The attention length at evaluation: a longer memory for the same parameters, while it helps.

Source: Transformer-XL, section 1: "until no further noticeable improvement (about 0.1 % relative
gains)", which is 1,600 on WikiText-103 and 3,800 on enwik8; the columns of Table 5, "PPL best" and
"Attn Len".
"""

import math
from typing import NamedTuple

import numpy as np

from brt.data.streams.documents import DocumentPass
from brt.data.streams.select import evaluation_pass
from brt.evaluation.reading import SegmentReader

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


def sweep(loss_of, lengths) -> Sweep:
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


def attention_length(run, documents, step, longest, binding: str):
    """Evaluates a run with one length of its memory after the other.

    Args:
        run: a `RecordedRun` that can be rebuilt.
        documents: to read, where the stream marks any; else all is read.
        step, longest: lengths tried after training's own are multiples of the step, in tokens.
        binding: the setting that is lengthened, `TransformerXL.memory_length`; at evaluation only.

    Returns:
        "numbers", "series" and "verdict" of a study.

    Raises:
        ValueError: the run's model has no such setting, or other parameters with it.
    """
    binding = binding.removeprefix("evaluation/")
    model, _, setting = binding.rpartition(".")
    if model != type(run.experiment.model).__name__:
        raise ValueError(
            f"--lengthened={binding} is no setting of {run.workdir}, whose model is "
            f"{type(run.experiment.model).__name__}: name the length of its memory, if it has one."
        )
    own_length = getattr(run.experiment.model, setting)
    longer = range((own_length // step + 1) * step, longest + 1, step)

    def loss_of(length):
        lengthened = f"Evaluation.model = @evaluation/{model}", f"evaluation/{binding} = {length}"
        return _loss(run, run.rebuild(lengthened), documents, f"{binding} = {length:,}")

    found = sweep(loss_of, [own_length, *longer])
    perplexities = [math.exp(loss) for loss in found.losses]
    best = perplexities[found.lengths.index(found.best)]
    numbers = {
        "initial_length": found.lengths[0],
        "initial_perplexity": perplexities[0],
        "best_length": found.best,
        "best_perplexity": best,
        "ended": int(found.ended),
    }
    series = {"name": binding, "x": found.lengths, "y": perplexities}
    series |= {"x_label": "attention length at evaluation, tokens", "y_label": "perplexity"}
    after = "longer ones were not tried"
    if found.ended:
        after = f"{found.lengths[-1]:,} gains less than {THRESHOLD:.1%} more"
    verdict = (
        f"Perplexity is {perplexities[0]:,.4f} with an attention length of "
        f"{found.lengths[0]:,}, as in training; {after}."
        if found.best == found.lengths[0]
        else f"Perplexity falls from {perplexities[0]:,.4f} with an attention length of "
        f"{found.lengths[0]:,} to {best:,.4f} with {found.best:,}; {after}."
    )
    return {"numbers": numbers, "series": [series], "verdict": verdict}


def _loss(run, experiment, documents, label):
    """Nats a token of the run's parameters in another experiment's model."""
    reader = SegmentReader(experiment, run.mesh, run.rows, run.segment_length)
    shape, kind = (run.store, run.rows, run.segment_length), experiment.trainer.stream
    if kind == "documents":
        stream = DocumentPass(*shape, documents=documents)
    else:
        stream = evaluation_pass(kind, *shape)
    nats, weight = 0.0, 0.0
    for segment in reader.read(run.params, stream, label=None if run.quiet else label):
        weights_BT = segment.batch.weights_KBT[0].astype(np.float64)
        nats += float(np.where(weights_BT > 0, segment.nats_BT * weights_BT, 0.0).sum())
        weight += float(weights_BT.sum())
    return nats / max(weight, 1e-6)
