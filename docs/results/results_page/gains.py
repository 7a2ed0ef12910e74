"""Improvements of recurrent runs over plain runs on the same tokens.

A pair is a recurrent run and a plain one with the same seed and the same data checksum.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from brt.reporting.collect import Group
from brt.reporting.model_settings import model_setting
from brt.reporting.runs import Run

SPLIT = "validation"
"""On which everything is chosen and compared."""
TEST = "test"
"""Split that is evaluated once, after all choices."""
PLAIN = ("Slide", "XL")
"""Systems of the baselines."""
FRESH = 0.2
"""Share of the steps, at the end of training, whose batches count as fresh text."""

Measure = Callable[[Run], float | None]


class Regime(NamedTuple):
    """Settings that both sides of a comparison share; lengths in tokens."""

    corpus: str
    vocabulary: str
    optimizer: str
    window: int | None
    segment_length: int
    tokens_per_step: int
    steps: int


class Gain(NamedTuple):
    """A recurrent group and the best plain group of its regime with one layer more.

    Attributes:
        recurrent, plain: runs that differ in their seed only; None without a plain one.
        plain_bits: bits per byte of the plain runs of the seeds of both.
        gains: improvement in bits per byte on the validation split, for each seed of both.
        fresh: the same on fresh training text (`fresh_bits`).
    """

    regime: Regime
    recurrent: Group
    plain: Group | None
    plain_bits: tuple[float, ...] = ()
    gains: tuple[float, ...] = ()
    fresh: tuple[float, ...] = ()


def regime(group: Group) -> Regime:
    """Returns the regime of a group, at its own scale."""
    settings = group.runs[0].settings
    return Regime(
        group.position.corpus,
        group.position.vocabulary,
        str(settings.get("Trainer.optimizer", "")).strip("@()"),
        model_setting(settings, "window"),
        settings["Trainer.segment_length"],
        settings.get("Trainer.tokens_per_step", 0),
        settings.get("Trainer.steps", 0),
    )


def gradient_tokens(settings: Mapping[str, Any]) -> int:
    """Returns the tokens of a batch element that the gradients of one step cross."""
    segments = settings.get("Trainer.segments_per_step", 1)
    depth = settings.get("Trainer.bptt_depth")  # memories crossed; None for all of a step
    crossed = segments if depth is None else min(segments, depth + 1)
    return settings["Trainer.segment_length"] * crossed


def num_states(group: Group) -> int:
    """Returns S of a group's own model; 0 without a recurrent layer."""
    settings = group.runs[0].settings
    return settings.get("RecurrentCell.num_states", 0) if group.position.states else 0


def bits(run: Run, prefix: str = "", split: str = SPLIT) -> float | None:
    """Returns bits per byte on a whole split; None before its evaluation after the last step.

    prefix: "cleared_" for those with the state cleared at every segment.
    """
    found = run.evaluations.get(split, {})
    if found.get("step", 0) < run.settings.get("Trainer.steps", 0):
        return None
    return found.get(f"{prefix}bits_per_byte")


def test_bits(run: Run) -> float | None:
    """Returns bits per byte on the whole test split."""
    return bits(run, split=TEST)


def fresh_bits(run: Run, end: float = 1.0) -> float | None:
    """Returns the mean bits per byte of the batches of a fifth of training, the last one.

    A batch is scored before its update and no text is read twice, so the text is unseen, and the
    states are those of training. Bytes per token are those of the validation split.

    end: share of the steps at which the fifth ends.
    """
    last = end * run.settings.get("Trainer.steps", 0)
    first = last - FRESH * run.settings.get("Trainer.steps", 0)
    steps, values = run.series("train/bits_per_token")
    late = [value for step, value in zip(steps, values) if first < step <= last]
    found = run.evaluations.get(SPLIT, {})
    if not late:
        return None
    return float(np.mean(late)) * found.get("tokens", 1) / found.get("bytes", 1)


def read_the_same(run: Run, other: Run) -> bool:
    """Returns whether two runs have the same data checksum."""
    ledgers = [
        {record["step"]: record["data/ledger"] for record in one.records if "data/ledger" in record}
        for one in (run, other)
    ]
    shared = set(ledgers[0]) & set(ledgers[1])
    return bool(shared) and all(ledgers[0][step] == ledgers[1][step] for step in shared)


def gains(groups: Iterable[Group]) -> list[Gain]:
    """Returns a `Gain` for each recurrent group that was evaluated, by regime and states."""
    evaluated = [group for group in groups if any(bits(run) is not None for run in group.runs)]
    plain = [group for group in evaluated if group.position.system.startswith(PLAIN)]
    found = []
    for group in evaluated:
        if not group.position.states:
            continue
        best = Gain(regime(group), group, None)
        for other in plain:
            both = measured_pairs(group, other, bits)
            if regime(other) != regime(group) or not is_one_layer_more(other, group) or not both:
                continue
            its = tuple(bits_of for _, bits_of in both)
            if best.plain is None or np.mean(its) < np.mean(best.plain_bits):
                best = Gain(regime(group), group, other, its, paired(group, other, bits),
                            paired(group, other, fresh_bits))  # fmt: skip
        found.append(best)
    return sorted(found, key=lambda gain: (*gain.regime, num_states(gain.recurrent)))


def is_one_layer_more(other: Group, group: Group) -> bool:
    """Returns whether a group's model is as wide as another's and one layer deeper.

    A recurrent layer takes about as much time (section 4 of the paper: Slide:13L).
    """
    (layers, width), (own_layers, own_width) = (
        [model_setting(one.runs[0].settings, name) for name in ("num_layers", "width")]
        for one in (other, group)
    )
    return width == own_width and layers == own_layers + 1


def paired(group: Group, other: Group, measure: Measure = bits) -> tuple[float, ...]:
    """Returns by how many bits per byte each run of a group is below its pair."""
    return tuple(its - own for own, its in measured_pairs(group, other, measure))


def measured_pairs(group: Group, other: Group, measure: Measure) -> list[tuple[float, float]]:
    """Returns the bits per byte of both runs of each pair that was measured."""
    return [
        (own, its)
        for run, plain in pairs(group, other)
        if (own := measure(run)) is not None and (its := measure(plain)) is not None
    ]


def pairs(group: Group, other: Group) -> Iterator[tuple[Run, Run]]:
    """Yields runs of two groups with the same seed and data checksum."""
    for run in group.runs:
        for plain in other.runs:
            seeds = {one.settings.get("Trainer.seed", 0) for one in (run, plain)}
            if len(seeds) == 1 and read_the_same(run, plain):
                yield run, plain


def known(group: Group, prefix: str = "", split: str = SPLIT) -> list[float]:
    """Returns the bits per byte of the runs of a group that were evaluated on a split."""
    return [value for run in group.runs if (value := bits(run, prefix, split)) is not None]


def in_training(group: Group, prefix: str = "") -> list[float]:
    """Returns bits per byte of each run's evaluation in training after its last step.

    Empty for tokens other than bytes.
    """
    if group.position.vocabulary_family != "bytes":
        return []
    found = (run.series(f"eval/{prefix}bits_per_token") for run in group.runs)
    ends = (run.settings["Trainer.steps"] for run in group.runs)
    return [values[-1] for (steps, values), end in zip(found, ends) if steps and steps[-1] == end]
