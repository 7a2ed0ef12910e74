"""Time of traced steps by named scope."""

import glob
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from brt.benchmarks import hlo, hlo_costs
from brt.benchmarks.tables import Column, aligned
from brt.training.profiling import STEP_TEXT, newest_trace

CONTAINERS = {"while", "conditional", "call"}
"""Instructions whose time is that of the instructions inside."""


class ScopeTimes(NamedTuple):
    """Seconds by named scope, the longest first, and the number of traced operations."""

    seconds: dict[str, float]
    operations: int


def scope_times(events: Iterable[dict[str, Any]], program: hlo.Program) -> ScopeTimes:
    """Sums the durations (microseconds) of a trace in Chrome's format by scope.

    An event is identified by `hlo_op` among its arguments, or by its name.
    """
    scopes = hlo_costs.Scopes(program)
    by_name = program.instructions()
    seconds: Counter[str] = Counter()
    operations = 0
    for event in events:
        name = (event.get("args") or {}).get("hlo_op") or event.get("name") or ""
        instruction = by_name.get(name)
        if event.get("ph") != "X" or instruction is None or instruction.opcode in CONTAINERS:
            continue
        seconds[scopes.of(instruction) or hlo_costs.OTHER] += event.get("dur", 0) / 1e6
        operations += 1
    return ScopeTimes(dict(seconds.most_common()), operations)


def newest_times(folder: str) -> ScopeTimes:
    trace = newest_trace(folder)
    events = newest_events(folder)
    text = os.path.join(trace, STEP_TEXT)
    if not events or not os.path.exists(text):
        raise FileNotFoundError(
            f"{trace} holds no {STEP_TEXT if events else '*.trace.json.gz'}: the run was stopped "
            "while it was traced. Trace other steps."
        )
    with gzip.open(text, "rt", encoding="utf-8") as file:
        program = hlo.parse(file.read())
    times = scope_times(events, program)
    if not times.operations:
        raise ValueError(f"{trace} holds no operation of the training step.")
    return times


def newest_events(folder: str) -> list[dict[str, Any]]:
    """Returns the events of the newest trace in Chrome's format; none if unfinished."""
    events = []
    for name in glob.glob(os.path.join(newest_trace(folder), "*.trace.json.gz")):
        with gzip.open(name, "rt", encoding="utf-8") as file:
            events += json.load(file)["traceEvents"]
    return events


def table(times: ScopeTimes, most: int = 20) -> str:
    total = sum(times.seconds.values())
    rows = [{"name": scope, "seconds": seconds, "share": seconds / total}
            for scope, seconds in list(times.seconds.items())[:most]]  # fmt: skip
    columns = Column("seconds", "seconds", "{:.4f}"), Column("share", "share", "{:.1%}")
    return "\n".join(aligned(rows, columns))
