"""Relative times of training steps and of evaluation, from files of `brt.benchmark --json`."""

from collections.abc import Iterable
from typing import NamedTuple

from brt.checks import Positive, check
from brt.storage.json_files import bad_text, read_json

BASELINE = "Slide:13L"
"""The system whose training step is 1.00 in Table 1 of the Block-Recurrent paper."""


class StepTime(NamedTuple):
    ratio: float
    note: str = ""


def read_step_times(paths: Iterable[str]) -> dict[str, StepTime]:
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
