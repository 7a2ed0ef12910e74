"""The longest segment whose training step fits into a memory budget (Transformer-XL, Table 8).

The bytes are the compiler's; nothing is run.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from brt.experiment import Configuration, Experiment
from brt.models.model import LanguageModel
from brt.training.over_time.mesh import divided
from brt.training.records.metrics import compiled_bytes
from brt.training.sharding import make_mesh

UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
STEP = 4
"""Tokens between lengths for a model that takes any length; published ones are multiples."""
MOST_STEPS = 2**20


class LongestFitting(NamedTuple):
    """The longest segment that fits in tokens (0: none), and bytes by the tried lengths."""

    segment_length: int
    tried: dict[int, int]


def parse_bytes(text: str) -> int:
    """Returns the bytes of a text such as "16GiB", "900 MB" or "1e9"."""
    match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([KMG]i?B|)", text.strip(), re.I)
    if not match or not float(match[1]):
        raise ValueError(f"--memory_budget = {text!r}: give bytes, like 16GiB or 900MB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def longest_fitting(bytes_of: Callable[[int], int], budget: int, interval: int) -> LongestFitting:
    """Finds the longest multiple of `interval` that fits, by interpolation, then bisection."""
    tried: dict[int, int] = {}

    def fits(number):
        length = number * interval
        tried[length] = bytes_of(length)
        return tried[length] <= budget

    if not fits(1):
        return LongestFitting(0, tried)
    short, long = 1, MOST_STEPS
    number, step = 2, 1
    while long - short > 1:
        if fits(number):
            short, next_number = number, number + step
        else:
            long, next_number = number, number - step
        if number == 2:
            per_interval = max(1, tried[2 * interval] - tried[interval])
            more = max(1, (budget - tried[2 * interval]) // per_interval)
            next_number = min(2 + more, MOST_STEPS - 1)
        else:
            step *= 2
        number = next_number if short < next_number < long else (short + long) // 2
    if long == MOST_STEPS:
        raise ValueError(f"{short * interval:,} tokens fit, and more: the budget is no limit.")
    return LongestFitting(short * interval, dict(sorted(tried.items())))


def step_bytes(experiment: Experiment) -> int:
    trainer = experiment.trainer
    mesh = divided(trainer, experiment.model, make_mesh(trainer.mesh))
    experiment.check_mesh(mesh)
    with jax.set_mesh(mesh):
        state = experiment.abstract_state(mesh)
        batch = experiment.abstract_batch()
        size = compiled_bytes(experiment.jit_step(mesh).lower(state, batch).compile())
    if size is None:
        raise ValueError(
            "The compiler does not report the bytes of a step on this device: use another one."
        )
    return size


def longest_segment(
    build: Callable[[Sequence[str]], Experiment],
    budget: int,
    also: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> LongestFitting:
    """Returns the longest segment whose training step fits, with the config's batch size.

    budget: bytes per device. also: bindings that get the same length.
    """
    experiment = build(())
    per_row = experiment.trainer.rows * experiment.trainer.segments_per_step
    # With a memory update per segment, the interval is the segment's length.
    model = experiment.model.for_segments(STEP)
    interval = STEP
    if isinstance(model, LanguageModel) and not any(name.endswith(".window") for name in also):
        interval = math.lcm(STEP, model.period)

    def bytes_of(length):
        lengths = [f"{name} = {length}" for name in ("Trainer.segment_length", *also)]
        lengths.append(f"Trainer.tokens_per_step = {length * per_row}")
        # Evaluation is not part of the step and must not refuse the length.
        lengths += [f"Evaluation.{name} = None" for name in ("segment_length", "tokens_per_step")]
        lengths.append("Evaluation.stride = None")
        size = step_bytes(build(lengths))
        report(f"{length:>9,} tokens  {size / 2**20:>12,.1f} MiB")
        return size

    return longest_fitting(bytes_of, budget, interval)


def show(
    configurations: Sequence[Configuration], budget: int, also: Sequence[str]
) -> dict[str, Any]:
    longest = {}
    for configuration in configurations:
        file = configuration.files[0]
        print(f"{file}, training steps of at most {budget / 2**20:,.0f} MiB a device", flush=True)
        longest[file] = longest_segment(configuration.experiment, budget, also)._asdict()
    width = max(map(len, longest))
    print(f"\n{'':<{width}}  longest segment  {'MiB':>10}")
    for file, (length, tried) in ((file, entry.values()) for file, entry in longest.items()):
        size = f"{tried[length] / 2**20:,.1f}" if length else ""
        print(f"{file:<{width}}  {length:>15,}  {size:>10}")
    return longest
