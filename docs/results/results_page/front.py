"""The first table of the page: windows, states and compressors on one text."""

import csv
from collections.abc import Sequence
from pathlib import Path

from results_page.gain_tables import INTERVAL, NOTHING, shown
from results_page.gains import Gain, known, num_states
from results_page.overview import GATES
from results_page.systems import StepTimes

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.model_settings import model_setting

BYTES = 4
"""Of a float32."""
METHODS = ("gzip -9", "xz -9", "4-gram")
"""Compressors that are shown."""


def front_table(
    name: str,
    ladder: str,
    found: Sequence[Gain],
    longer: Sequence[Group],
    times: StepTimes,
    compressors: Path,
) -> Table | None:
    """Returns plain stacks by window, recurrent ones of the shortest window, and compressors.

    Args:
        ladder: of the comparisons `found`, by which step times are looked up.
        longer: runs of the plain stack for as long a time as a recurrent one takes.
        compressors: CSV file with their bits per byte.
    """
    plain = {gain.regime.window or 0: gain.plain for gain in found if gain.plain}
    if not plain:
        return None
    shortest = min(plain)
    rows = []
    for window, group in sorted(plain.items()):
        equal = longer[0] if longer and window == shortest else None
        rows.append(_row(f"Slide, W = {window}", group, equal, ladder, times))
    for gain in found:
        if gain.regime.window == shortest and gain.recurrent.position.system in GATES:
            gate = GATES[gain.recurrent.position.system]
            label = f"Rec, {gate} gate, W = {shortest}"
            rows.append(_row(label, gain.recurrent, gain.recurrent, ladder, times))
    if compressors.is_file():
        with compressors.open(encoding="utf-8", newline="") as file:
            own = [row for row in csv.DictReader(file) if row["text"] == found[0].regime.corpus]
        rows += [[row["method"], Cell(row["bits per byte"]), *[NOTHING] * 3]
                 for row in own if row["method"] in METHODS]  # fmt: skip
    titles = ("system", "bits per byte", "at equal time", "step time", "bytes carried")
    caption = (
        f"Validation, less is better; three seeds, W = {max(plain)} one. {INTERVAL} Equal time: "
        f"Slide, W = {shortest}, for 1.21 times the steps, longer than Rec takes. Step time: one "
        "core, relative to the first row. Bytes carried: keys and values of windows, and states. "
        "4-gram: of as much training text."
    )
    return plain_table(name, "Windows, states and compressors", caption, titles, rows)


def _row(label, group, equal, ladder, times):
    settings = group.runs[0].settings
    layers, width, window = (model_setting(settings, name)
                             for name in ("num_layers", "width", "window"))  # fmt: skip
    carried = BYTES * width * (2 * layers * window + num_states(group))
    return [
        label,
        shown(known(group)),
        shown(known(equal)) if equal else NOTHING,
        times.of(ladder, group)[0],
        f"{carried:,}",
    ]
