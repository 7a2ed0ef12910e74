"""Relative times of training steps and of evaluation, from files of `brt.benchmark --json`."""

from collections.abc import Iterable

from brt.checks import Positive, check
from brt.reporting.run_files import read_shown

BASELINE = "Slide:13L"
"""The system whose training step is 1.00 in Table 1 of the Block-Recurrent paper."""
StepTimes = dict[str, tuple[float, str]]
"""Ratio and note, by system."""


def read_step_times(paths: Iterable[str]) -> StepTimes:
    times: StepTimes = {}
    for path in paths:
        try:
            content = read_shown(path, dict)
            if "evaluation_speed" in content:
                rows = {f"vanilla {r['attention_length']}": r for r in content["evaluation_speed"]}
                found = {name: (float(row["ratio"]), "") for name, row in rows.items()}
            else:
                rows = {row["name"]: row for row in content["configs"]}
                base = rows[content["baseline"]]
                found = {r["system"]: (float(r["ratio"]), _note(r, base)) for r in rows.values()}
            for name, row in rows.items():
                check(f"ratio of {name}", row["ratio"], Positive)
            times |= found
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} holds no step times ({type(error).__name__}: {error}): make it with "
                "`python -m brt.benchmark --json=FILE --configs=...`."
            ) from None
    return times


def _note(row, baseline):
    notes = [f"step times relative to {baseline['system']}"] * (baseline["system"] != BASELINE)
    if None in (row["size"], baseline["size"]):
        notes.append("step times of models of a size that the paper does not have")
    return "; ".join(notes)
