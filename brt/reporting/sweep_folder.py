"""The folder of a sweep: its entries in their order, and its run folders."""

import glob
import json
import os
from pathlib import Path
from typing import NamedTuple

from brt.reporting.run_files import read_shown
from brt.storage.json_files import Fields

SWEEP_FILE = "sweep.json"
"""Title, split and entries of a sweep."""
RUNS, CONFIGS = "runs", "configs"
SEED = "-seed"
"""Between the name of an entry and a seed in the name of a run folder."""

FIELDS = Fields({"title": str, "split": str, "entries": [Fields({"name": str, "label": str})]}, {})
AGAIN = "have the same `brt sweep` command write it again"


class Sweep(NamedTuple):
    """A sweep as its folder describes it.

    title: the list or the grid.
    split: on which runs are evaluated; None for the one that tables report.
    labels: of each entry, by its name.
    """

    title: str
    split: str | None
    labels: dict[str, str]


def sweep_json(sweep: Sweep) -> bytes:
    entries = [{"name": name, "label": label} for name, label in sweep.labels.items()]
    content = {"title": sweep.title, "split": sweep.split, "entries": entries}
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def is_sweep_folder(path: str | Path) -> bool:
    return (Path(path) / SWEEP_FILE).is_file()


def read_sweep(folder: Path) -> Sweep:
    path = folder / SWEEP_FILE
    content = read_shown(path, FIELDS, AGAIN)
    labels = {entry["name"]: entry["label"] for entry in content["entries"]}
    if outside := [name for name in labels if name != os.path.basename(name)]:
        raise ValueError(f"{path} is damaged, as {outside[0]!r:.60} is no name of a run: {AGAIN}.")
    return Sweep(content["title"], content["split"], labels)


def run_folders(folder: Path, sweep: Sweep) -> tuple[list[Path], list[str]]:
    """Returns the run folders of a sweep that have begun, and sentences on all others."""
    found, waiting = [], []
    for name in sweep.labels:
        for path in sorted((folder / RUNS).glob(f"{glob.escape(name)}{SEED}*")):
            if path.name.rpartition(SEED)[0] != name:
                continue
            if (path / "config.gin").is_file():
                found.append(path)
            else:
                waiting.append(path.name)
    if not found:
        raise FileNotFoundError(
            f"{folder} is a sweep of which no run has begun: start it with `brt sweep` first."
        )
    notes = [f"{len(waiting)} runs of {folder} have not begun: {', '.join(waiting)}"]
    return found, notes if waiting else []
