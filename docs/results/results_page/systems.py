"""All systems of a ladder on the same tokens, compared with the deepest sliding window."""

from collections.abc import Sequence

import numpy as np
from results_page.gain_tables import shown, system
from results_page.gains import SPLIT, known, num_states, paired, regime, worth

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Table, plain_table

BASELINE = "Slide"
"""Prefix of the baseline's system."""


def systems_table(name: str, groups: Sequence[Group], split: str = SPLIT) -> Table | None:
    """Returns one row a system, the best first; None without two systems, one a sliding window.

    A system on other tokens than the baseline, or not evaluated, has no row.
    """
    slides = [group for group in groups if group.position.system.startswith(BASELINE)]
    baseline = max(
        (group for group in slides if known(group, split=split)),
        key=lambda group: group.position.layers,
        default=None,
    )
    if baseline is None:
        return None
    rows = []
    for group in groups:
        below = paired(group, baseline, split)
        if not below:
            continue
        own, kept = regime(group), known(group, split=split)
        texts = (system(group), own.window or "–", own.segment_length, num_states(group) or "–",
                 len(kept))  # fmt: skip
        numbers = (kept, known(group, "cleared_", split), () if group is baseline else below,
                   worth(group, split))  # fmt: skip
        rows.append((np.mean(kept), [*texts, *map(shown, numbers)]))
    if len(rows) < 2:
        return None
    titles = ["system", "window", "segment", "states", "seeds", "bits/byte", "state cleared"]
    titles += [f"below {system(baseline)}", "worth of the state"]
    caption = (
        f"Bits per byte, all of the {split} split; ± is the deviation over seeds, rounded up. "
        f"Below {system(baseline)}: by how much, seed by seed, after the same tokens in the same "
        "order. Worth: what clearing the state costs."
    )
    ordered = [row for _, row in sorted(rows, key=lambda found: found[0])]
    return plain_table(name, "All systems", caption, titles, ordered)
