"""Relative times, of training steps and of evaluation, as `brt.benchmark --json` writes them."""

from collections.abc import Iterable
from typing import NamedTuple

from brt.checks import Positive, check
from brt.storage.json_files import bad_text, read_json

BASELINE = "Slide:13L"
"""The system whose training step is 1.00 in Table 1 of the Block-Recurrent paper."""


class StepTime(NamedTuple):
    """A time relative to another, and what a reader has to know of the two; empty if nothing."""

    ratio: float
    note: str = ""


def read_step_times(paths: Iterable[str]) -> dict[str, StepTime]:
    """Reads step times by system, as Table 1 spells it, relative to the benchmark's baseline.

    A note says so where that is not the paper's, or where the models have sizes of their own.
    Of `--evaluation_speed`, `vanilla 800` to how many times as long as with a memory of 800 tokens
    the vanilla model's evaluation takes.

    Raises:
        ValueError: a file that is none of `brt.benchmark --json`.
        FileNotFoundError: there is none.
    """
    times: dict[str, StepTime] = {}
    for path in paths:
        try:
            content = read_json(path, dict, "make it again")
            if wrong := bad_text(content):
                raise ValueError(wrong)
            if "evaluation_speed" in content:
                for row in content["evaluation_speed"]:
                    name = f"vanilla {row['attention_length']}"
                    times[name] = StepTime(_ratio(row, name))
            else:
                times |= _of_steps(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} holds no step times ({type(error).__name__}: {error}): make it with "
                "`python -m brt.benchmark --json=FILE --configs=...`."
            ) from None
    return times


def _of_steps(content):
    rows = {row["name"]: row for row in content["configs"]}
    baseline = rows[content["baseline"]]
    times = {}
    for row in rows.values():
        notes = []
        if baseline["system"] != BASELINE:
            notes.append(f"step times relative to {baseline['system']}")
        if None in (row["size"], baseline["size"]):
            notes.append("step times of models of a size that the paper does not have")
        times[row["system"]] = StepTime(_ratio(row, row["system"]), "; ".join(notes))
    return times


def _ratio(row, name):
    check(f"ratio of {name}", row["ratio"], Positive)
    return float(row["ratio"])
