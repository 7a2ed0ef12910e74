"""Relative times, of training steps and of evaluation, as `brt.benchmark --json` writes them."""

import json
import re


def read_step_times(paths) -> dict[str, float]:
    """System, as Table 1 spells it, to step time relative to the benchmark's baseline.

    Of `--evaluation_speed`, `vanilla 800` to how many times as long as with a memory of 800 tokens
    the vanilla model's evaluation takes.

    Raises:
        ValueError: a file that is none of `brt.benchmark --json`.
        FileNotFoundError: there is none.
    """
    times = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            if "evaluation_speed" in content:
                rows = content["evaluation_speed"]
                times |= {f"vanilla {r['attention_length']}": float(r["ratio"]) for r in rows}
            else:
                rows = content["configs"]
                times |= {system_of(row["name"]): float(row["ratio"]) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} holds no step times ({type(error).__name__}: {error}): make it with "
                "`python -m brt.benchmark --json=FILE --configs=...`"
            ) from None
    return times


def system_of(config_name: str) -> str:
    """`benchmark_rec_fixed_skip` is Rec:fixed:skip, `pg19_slide_13l` Slide:13L."""
    found = re.search(r"(rec|feedback)_(fixed|lstm)_(dual|single|skip)", config_name)
    if found:
        return f"{found[1].capitalize()}:{found[2]}:{found[3]}"
    if found := re.search(r"slide_(\d+)l", config_name):
        return f"Slide:{found[1]}L"
    if found := re.search(r"xl_(\d+)", config_name):
        return f"XL:{found[1]}"
    return config_name
