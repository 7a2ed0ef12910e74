"""Loss on names from far back, and memories that the plan does not decide on (files, plan.md)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from results_page.files_entries import PREFIX, better_rates, entries_of, of_seeds
from results_page.gain_tables import NOTHING, shown
from results_page.gains import SPLIT, gradient_tokens, known
from results_page.memory_names import memory_name

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.model_settings import model_setting

OTHERS = "files_memories", "files_other_models"
"""Ladders of the memories that the plan's rules do not decide on."""
FAR = 320
"""Least bytes since a word's last occurrence of the last row."""
NAMES = "bits per token of words"
"""Label of the curves of `--study=compare` by the distance of a word's last occurrence."""


class Names(NamedTuple):
    """How much better a run is on repeated words than a plain stack, by the bytes since then.

    words, bytes: read in each bin.
    on_all, all_bytes: improvement on all text, and its bytes.
    documents: read.
    """

    label: str
    gained: dict[int, float]
    words: list[int]
    bytes: list[int]
    on_all: float
    all_bytes: int
    documents: int
    gradient: int

    @property
    def far(self) -> float:
        """Mean of the words last seen `FAR` bytes back or more, weighted by their bytes."""
        own = [(gain, size) for (at, gain), size in zip(self.gained.items(), self.bytes)
               if at >= FAR]  # fmt: skip
        return sum(gain * size for gain, size in own) / sum(size for _, size in own)


def names_of(ladders: Mapping[str, Sequence[Group]]) -> list[Names]:
    """Returns the studies of runs on files that say how many words each of their bins has."""
    groups = (group for name, own in ladders.items() if name.startswith(PREFIX) for group in own)
    found = {each.label: each for group in groups for each in _names(group)}
    return [found[label] for label in sorted(found)]


def _names(group: Group) -> Iterator[Names]:
    for run in group.runs:
        for study in run.studies.values():
            curves = {s["name"]: s for s in study.get("series", ()) if s["y_label"] == NAMES}
            own, other = curves.get("run"), curves.get("compared with")
            if own is None or other is None or "words" not in own:
                continue
            gained = dict(zip(own["x"], np.subtract(other["y"], own["y"]).tolist()))
            window = model_setting(run.settings, "window")
            label = f"{memory_name(run.settings)}, W = {window}"
            label += f", seed {run.settings.get('Trainer.seed', 0)}"
            numbers = study["numbers"]
            yield Names(label, gained, own["words"], own["tokens"], numbers["difference_bits"],
                        numbers["tokens"], len(study["documents"]),
                        gradient_tokens(run.settings))  # fmt: skip


def names_table(ladders: Mapping[str, Sequence[Group]]) -> Table | None:
    """Returns one row a distance: its words, and the improvement of each run; None without any."""
    found = names_of(ladders)
    if not found:
        return None
    first = found[0]
    rows = [
        [f"{at:,}", f"{words:,}", f"{size:,}",
         *(Cell(f"{each.gained[at]:.3f}") if at in each.gained else NOTHING for each in found)]
        for at, words, size in zip(first.gained, first.words, first.bytes)
    ]  # fmt: skip
    far = [number for number, at in enumerate(first.gained) if at >= FAR]
    words, size = (f"{sum(numbers[n] for n in far):,}" for numbers in (first.words, first.bytes))
    rows += [
        [f"{FAR}, all", words, size, *(Cell(f"{each.far:.3f}") for each in found)],
        ["all text", "–", f"{first.all_bytes:,}", *(Cell(f"{each.on_all:.3f}") for each in found)],
    ]
    titles = ["bytes since, at least", "words", "their bytes", *(each.label for each in found)]
    return plain_table("files_names", "Names from far back", _caption(found), titles, rows)


def names_plot(ladders: Mapping[str, Sequence[Group]]) -> Plot | None:
    """Returns the improvement by the distance of a word's last occurrence, one line a run."""
    found = names_of(ladders)
    lines = [Line(each.label, list(each.gained), [*each.gained.values()], "points")
             for each in found]  # fmt: skip
    if not lines:
        return None
    return Plot(
        "files_names",
        "Improvement on repeated words, by the distance of their last occurrence",
        "The improvements of the table.",
        "bytes since the word's last occurrence, at least",
        "improvement, bits per byte of words",
        lines,
        log_x=True,
    )


def _caption(found: Sequence[Names]) -> str:
    documents = max(each.documents for each in found)
    return (
        "Improvement over the plain stack with the same window and seed, bits per byte of words "
        f"that occurred before in the document, on all {documents} documents of {SPLIT}, by the "
        "bytes since then (32 to 99 in the row of 32, and so on). Rows of several distances are "
        f"weighted by bytes. Gradients crossed {max(each.gradient for each in found)} bytes in "
        "training."
    )


def memories_table(ladders: Mapping[str, Sequence[Group]]) -> Table | None:
    """Returns one row a memory with its shortest window, best first.

    Of the seeds that all have; None without the ladders `OTHERS`.
    """
    others = [entry for name in OTHERS for entry in entries_of(ladders.get(name, ()))]
    seeds = {run.settings.get("Trainer.seed", 0) for entry in others for run in entry.group.runs}
    better = better_rates(ladders).entries
    if not others or not better:
        return None
    shortest = min(entry.window for entry in better)
    entries = [*others, *(entry._replace(group=of_seeds(entry.group, seeds))
                          for entry in better if entry.window == shortest)]  # fmt: skip
    entries.sort(key=lambda entry: float(np.mean(known(entry.group))))
    rows = [[entry.memory, shown(known(entry.group)), shown(known(entry.group, "cleared_"))]
            for entry in entries]  # fmt: skip
    caption = (
        f"Bits per byte on {SPLIT}, documents read from their start, W = {shortest}; seed "
        f"{' and '.join(map(str, sorted(seeds)))}. The last three read segments of 8, pad "
        "documents less and read 0.8 % more text in as many steps."
    )
    titles = ("memory", "bits per byte", "cleared")
    return plain_table("every_memory", "Every memory", caption, titles, rows)
