"""Archived runs in groups that differ in their seed only, and their measurements."""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from results_page.memory_names import memory_name

from brt.reporting.archive import ENDING, unpack
from brt.reporting.collect import Group, collect
from brt.reporting.model_settings import model_name, model_setting
from brt.reporting.runs import Run, open_runs

SPLIT, TEST = SPLITS = "validation", "test"
FRESH = 0.2
"""Last share of the steps of training, whose batches count as fresh text."""
USUAL = {
    "RecurrentCell.gate_biases": "small",
    "TransformerXL.encoding": "relative",
    "TransformerXL.memory": "HiddenMemory",
    "TransformerXL.norm": "post",
}
"""Settings that a system's name has only where they differ."""
Measure = Callable[[Run], float | None]


class Entry(NamedTuple):
    """Runs of one ladder (a folder of archives) that differ in their seed only.

    fields: settings that tables show and patterns name.
    key: LADDER/SYSTEM and the fields: `small/Slide:13L W=8 N=64 S=– rate=0.004 steps=3000`.
    """

    ladder: str
    group: Group
    memory: str
    system: str
    fields: dict[str, Any]
    key: str

    @property
    def runs(self) -> list[Run]:
        return self.group.runs

    @property
    def settings(self) -> dict[str, Any]:
        return self.runs[0].settings

    @property
    def carries(self) -> bool:
        """Whether it is a recurrent cell or a gated delta memory."""
        return self.memory.startswith(("Rec", "gated"))

    @property
    def carried_bytes(self) -> int:
        """Of the keys and values of all windows, and of the memory; for stacks of blocks."""
        names = "num_layers", "num_heads", "head_size", "window"
        layers, heads, size, window = (model_setting(self.settings, name) for name in names)
        numbers = 2 * layers * window * heads * size
        if "GatedDeltaMemory" in str(model_setting(self.settings, "memories", ())):
            numbers += heads * size**2
        elif self.group.position.states:
            numbers += self.fields["S"] * model_setting(self.settings, "width")
        return 4 * numbers  # of float32

    def of_seeds(self, seeds: Sequence[int]) -> "Entry":
        runs = [run for run in self.runs if not seeds or run.seed in seeds]
        return self._replace(group=self.group._replace(runs=runs))

    def values(self, measure: Measure) -> tuple[float, ...]:
        """Returns the measurements, one number a run."""
        return tuple(value for run in self.runs if (value := measure(run)) is not None)

    def below(self, other: "Entry | None", measure: Measure) -> tuple[float, ...]:
        """Returns by how much each run is below the other's of the same seed and data."""
        found = []
        for run, its in pairs(self, other) if other else ():
            values = measure(its), measure(run)
            if None not in values:
                found.append(values[0] - values[1])  # type: ignore[operator]  # not None
        return tuple(found)


def entry_of(ladder: str, group: Group) -> Entry:
    settings = group.runs[0].settings
    fields = {
        "W": model_setting(settings, "window") or "–",
        "N": settings["Trainer.segment_length"],
        "S": settings.get("RecurrentCell.num_states", 0) if group.position.states else "–",
        "rate": f"{settings.get('cosine.maximum', 0):g}",
        "steps": settings.get("Trainer.steps", 0),
    }
    system = _system(group, settings)
    named = " ".join(f"{name}={value}" for name, value in fields.items())
    key = f"{ladder}/{system} {named}"
    return Entry(ladder, group, memory_name(settings), system, fields, key)


def _system(group: Group, settings: dict[str, Any]) -> str:
    """Returns the published name, `Slide:13L`, or the name with its layers, `Slide:7L`."""
    name, layers = group.position.system, f":{group.position.layers}L"
    name = memory_name(settings) if name == model_name(settings) else name
    if group.position.layers == model_setting(settings, "num_layers"):
        name += "" if name.endswith(layers) else layers
        found = settings.get("BlockRecurrentTransformer.recurrent_layers", ())
        name += f", layer {' and '.join(str(n + 1) for n in found)}" if found else ""
    for setting, usual in USUAL.items():
        value = str(settings.get(setting, usual)).strip("@()'\"")
        name += "" if value == usual else f", {setting.split('.')[1]} = {value}"
    return name


def open_archives(folder: Path) -> list[Entry]:
    """Returns the runs of the archives LADDER/RUN below a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        ladders: dict[str, list[Path]] = {}
        for archive in sorted(folder.glob(f"*/*{ENDING}")):
            runs = ladders.setdefault(archive.parent.name, [])
            runs.append(unpack(archive, Path(scratch) / archive.parent.name))
        if not ladders:
            raise ValueError(f"There is no LADDER/RUN{ENDING} below {folder}: nothing was written.")
        return [entry_of(name, group) for name, runs in ladders.items()
                for group in collect(open_runs(runs))]  # fmt: skip


def select(entries: Sequence[Entry], *patterns: str) -> list[Entry]:
    """Returns the entries whose key matches a pattern (`small/Rec* W=8 *`), by pattern."""
    return [entry for pattern in patterns for entry in entries if fnmatchcase(entry.key, pattern)]


def bits(run: Run, prefix: str = "", split: str = SPLIT) -> float | None:
    """Returns bits per byte on a whole split; None before its evaluation after the last step.

    prefix: "cleared_" for those with the state cleared at every segment.
    """
    found = run.evaluations.get(split, {})
    if found.get("step", 0) < run.settings.get("Trainer.steps", 0):
        return None
    return found.get(f"{prefix}bits_per_byte")


cleared, test = partial(bits, prefix="cleared_"), partial(bits, split=TEST)
test_cleared = partial(bits, prefix="cleared_", split=TEST)


def fresh(run: Run, end: float = 1.0) -> float | None:
    """Returns the mean bits per byte of the batches of a fifth of training, the last one.

    A batch is scored before its update and no text is read twice, so the text is unseen. Bytes per
    token are those of the validation split.

    end: share of the steps at which the fifth ends.
    """
    steps = run.settings.get("Trainer.steps", 0)
    logged = zip(*run.series("train/bits_per_token"))
    late = [value for step, value in logged if (end - FRESH) * steps < step <= end * steps]
    found = run.evaluations.get(SPLIT, {})
    return float(np.mean(late)) * found.get("tokens", 1) / found.get("bytes", 1) if late else None


fresh_early = partial(fresh, end=0.4)


def in_training(run: Run, prefix: str = "") -> float | None:
    """Returns the bits per token of training's last evaluation."""
    steps, values = run.series(f"eval/{prefix}bits_per_token")
    return values[-1] if steps and steps[-1] == run.settings["Trainer.steps"] else None


def accuracy(run: Run) -> float | None:
    """Returns the share of questions answered, or of correct characters of a task."""
    found = run.evaluations.get(SPLIT, {}).get("answer_accuracy")
    return run.evaluations.get(TEST, {}).get("task_accuracy") if found is None else found


def read_the_same(run: Run, other: Run) -> bool:
    """Returns whether two runs have the same data checksum at all steps that both logged."""
    ledgers = [{record["step"]: record["data/ledger"] for record in one.records
                if "data/ledger" in record} for one in (run, other)]  # fmt: skip
    shared = set(ledgers[0]) & set(ledgers[1])
    return bool(shared) and all(ledgers[0][step] == ledgers[1][step] for step in shared)


def pairs(entry: Entry, other: Entry) -> Iterator[tuple[Run, Run]]:
    """Returns runs of two entries with the same seed and the same data."""
    return ((run, its) for run in entry.runs for its in other.runs
            if run.seed == its.seed and read_the_same(run, its))  # fmt: skip


def fastest_step(entry: Entry) -> float:
    """Returns the seconds of a step in the fastest report of all runs, or NaN."""
    seconds = [value for run in entry.runs for value in run.series("perf/step_seconds")[1]]
    return min(seconds, default=math.nan)
