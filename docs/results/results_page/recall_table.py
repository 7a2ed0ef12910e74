"""Recall of pairs (MQAR) by every memory, compared with the bytes that each carries."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from results_page.gain_tables import NOTHING
from results_page.gains import gradient_tokens
from results_page.memory_names import WINDOW
from results_page.recall_runs import (
    ANSWERED,
    BY_DISTANCE,
    Cells,
    Recall,
    accuracy,
    cells_of,
    chosen_rate,
    recalls,
    searches,
)

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table

SHOWN = 6
"""Memories of a plot, without the window."""
BY_SEED = "one number a seed, in the order of seeds; – : not measured."


def recall_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory and size."""
    found = recalls(groups)
    cells = cells_of(found)
    if not cells:
        return None
    most, trained = cells.pairs[-1], cells.lengths[0]
    rows: list[Sequence[Any]] = []
    for recall in found:
        shares: list[Sequence[float | None]] = [recall.in_training]
        shares += [recall.at(most, length) for length in cells.lengths]
        start = recall.memory, f"{recall.carried_bytes:,}", str(recall.held(trained))
        back = [_of_queries(recall, distance) for distance in cells.distances]
        rows.append([*start, f"{recall.reach:,.0f}", *map(by_run, shares), *back])
    titles = ["memory", "bytes carried", "pairs", "reach", "as in training",
              *(f"{most} pairs, {length:,.0f} tokens" for length in cells.lengths),
              *(f"{distance:,.0f} tokens back" for distance in cells.distances)]  # fmt: skip
    caption = (
        f"Share of queries answered with the right value, {BY_SEED} As in training: "
        f"{cells.pairs[0]} to {most} pairs in at most {trained:,.0f} tokens. Later columns: {most} "
        "pairs, also in longer documents than training has. Most queries follow their pair soon; "
        "the last columns are of those for any number of pairs so many to twice so many tokens "
        "after it, with their number in brackets. Pairs: the most of which the best run answers "
        f"{ANSWERED:.0%} in documents of {trained:,.0f} tokens. Reach: tokens since the pair up to "
        f"which it answers {ANSWERED:.0%} of all queries; 32 means 32 to 63 tokens, and so on."
    )
    return plain_table(name, "Pairs recalled", caption, titles, rows)


def best_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row for each memory of the figure: pairs as trained, farther, and far back."""
    groups = list(groups)
    found, cells = _most_recalled(groups)
    if not cells:
        return None
    most = cells.pairs[-1]
    rows = [[recall.memory, f"{recall.carried_bytes:,}",
             *(by_run(recall.at(most, length)) for length in cells.lengths[:2]),
             *(_of_queries(recall, distance) for distance in cells.distances)]
            for recall in reversed(found)]  # fmt: skip
    titles = ["memory", "bytes carried",
              *(f"{most} pairs in {length:,.0f} tokens" for length in cells.lengths[:2]),
              *(f"{distance:,.0f} tokens back" for distance in cells.distances)]  # fmt: skip
    depth = max(gradient_tokens(run.settings) for group in groups for run in group.runs)
    caption = (
        f"Share of queries answered with the right value, {BY_SEED} Documents of training have at "
        f"most {cells.lengths[0]:,.0f} tokens, and gradients cross all of them ({depth:,}). "
        f"Tokens back: queries for {cells.pairs[0]} to {most} pairs by the tokens since the pair "
        "(so many to twice so many), with their number in brackets."
    )
    return plain_table(name, "Pairs recalled", caption, titles, rows)


def _of_queries(recall: Recall, distance: float) -> Cell:
    counts = [each.get(int(distance), 0) for each in recall.counts]
    return by_run(recall.back(distance), counts)


def rates_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory: the share answered with each rate of its search."""
    found = dict(sorted(searches(groups).items()))
    rates = sorted({rate for search in found.values() for rate in search})
    rows: list[Sequence[Any]] = []
    for memory, search in found.items():
        best = chosen_rate(search)
        cells = [Cell(f"{accuracy(search[r]):.2f}") if r in search else NOTHING for r in rates]
        rows.append([memory, *cells, f"{best:g}"])
    titles = ["memory", *(f"rate {rate:g}" for rate in rates), "chosen"]
    caption = (
        "Share of queries answered with the right value, as in training; smaller size, one seed. "
        "Chosen: the rate with the lowest loss."
    )
    return plain_table(name, "Rates", caption, titles, rows) if rows else None


def by_run(values: Sequence[float | None], counts: Sequence[int] = ()) -> Cell:
    """Returns the share of each run, a dash for None, with the number that it is of if known."""
    if all(value is None for value in values):
        return NOTHING
    shares = [NOTHING.text if value is None else f"{value:.2f}" for value in values]
    numbers = [f" ({count:,})" if count else "" for count in counts]
    if len(set(numbers)) == 1:
        return Cell(" / ".join(shares) + numbers[0])
    return Cell(" / ".join(map("".join, itertools.zip_longest(shares, numbers, fillvalue=""))))


def _most_recalled(groups: Iterable[Group]) -> tuple[list[Recall], Cells | None]:
    """Returns the `SHOWN` memories that recall most, each in its better size, and the window."""
    found = recalls(groups)
    cells = cells_of(found)
    if not cells:
        return [], None
    sizes: dict[str, Recall] = {}
    for recall in found:
        kept = sizes.get(recall.memory)
        if kept is None or (_far(recall, cells) or 0) > (_far(kept, cells) or 0):
            sizes[recall.memory] = recall
    best = [each for each in sizes.values() if _far(each, cells) is not None]
    best.sort(key=lambda recall: _far(recall, cells) or 0.0, reverse=True)
    return best[:SHOWN] + [each for each in best[SHOWN:] if each.memory == WINDOW], cells


def _far(recall: Recall, cells: Cells) -> float | None:
    shares = [share for share in recall.at(*cells.far) if share is not None]
    return statistics.mean(shares) if shares else None


def recall_plots(name: str, groups: Iterable[Group]) -> list[Plot]:
    """Returns the share recalled against the distance, and against the carried bytes.

    The latter if a memory has several sizes.
    """
    groups = list(groups)
    shown, cells = _most_recalled(groups)
    if not cells:
        return []
    sizes: dict[str, list[Recall]] = {}
    for recall in recalls(groups):
        if _far(recall, cells) is not None:
            sizes.setdefault(recall.memory, []).append(recall)
    which = f"The window and the {SHOWN} memories that recall most."
    several = any(len(some) > 1 for some in sizes.values())
    of_each = "Of each its better size. " if several else ""
    has_band = max(len(recall.studies) for recall in shown) <= 2
    band = "; the band reaches both" if has_band else ""
    plots = [
        Plot(
            name,
            "Pairs recalled, by distance",
            f"Share of queries for {cells.pairs[0]} to {cells.pairs[-1]} pairs that are answered "
            "with the right value, by the tokens since the pair (32 means 32 to 63), in "
            f"documents of {cells.lengths[0]:,.0f} tokens, the longest of training, and more. "
            f"{which} {of_each}Mean of the runs{band}.",
            "distance, tokens",
            "share answered",
            [_distance_line(recall, has_band) for recall in shown],
            log_x=True,
            y_range=(0.0, 1.02),
        )
    ]
    if several:
        by_bytes = [
            Line(r.memory, [s.carried_bytes for s in sizes[r.memory]],
                 [_far(s, cells) or 0.0 for s in sizes[r.memory]], "points")
            for r in shown
        ]  # fmt: skip
        plots.append(
            Plot(
                f"{name}_bytes",
                f"Pairs recalled in {cells.far[1]:,.0f} tokens, by carried bytes",
                f"Share of queries for {cells.far[0]} pairs in documents of {cells.far[1]:,.0f} "
                f"tokens that are answered with the right value, mean over seeds. {which}",
                "carried bytes",
                "share answered",
                by_bytes,
                log_x=True,
                y_range=(0.0, 1.02),
            )
        )
    return plots


def _distance_line(recall: Recall, has_band: bool) -> Line:
    """Returns the mean of the runs by distance, and half of the range of two as errors."""
    curves = [curve for study in recall.studies if (curve := study.get(BY_DISTANCE))]
    shared = sorted(set.intersection(*map(set, curves)))
    values = [[curve[x] for curve in curves] for x in shared]
    halves = [(max(some) - min(some)) / 2 for some in values]
    label = f"{recall.memory}, {recall.carried_bytes:,} bytes"
    return Line(label, shared, [*map(statistics.mean, values)], "points",
                errors=halves if has_band and len(curves) > 1 else None)  # fmt: skip
