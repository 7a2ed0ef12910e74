"""Recall of pairs (MQAR) by every memory, compared with the bytes that each carries."""

import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from results_page.gain_tables import NOTHING
from results_page.memory_names import WINDOW, memory_name

from brt.bindings.registry import default
from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.runs import Run

SHOWN = 6
"""Memories of a plot, without the window."""
BY_DISTANCE = "state kept, by distance"
OF_PAIRS = re.compile(r"state kept, (\d+) facts, by length")
ANSWERED = 0.9
RATE = "cosine.maximum"
TRAINING = "Trainer.", "CheckpointPolicy.", "Corpus.", "Evaluation.", "cosine."
"""Beginnings of settings that are not the model's."""


class Recall(NamedTuple):
    """The runs of one memory and size: carried bytes, and accuracies of each run.

    studies: of the runs that have one, the best with most pairs first: y by x of each series.
    numbers: of the same studies, the best run of training first.
    """

    memory: str
    carried_bytes: int
    in_training: list[float]
    studies: list[dict[str, dict[float, float]]]
    numbers: list[dict[str, float]]

    def at(self, pairs: int, length: float) -> list[float]:
        """Returns the share answered of so many pairs in documents of a length, of each run."""
        curves = (_by_length(study).get(pairs, {}) for study in self.studies)
        return [curve[length] for curve in curves if length in curve]

    @property
    def by_distance(self) -> dict[float, float]:
        """Of the best run."""
        return self.studies[0].get(BY_DISTANCE, {})

    def back(self, distance: float) -> list[float]:
        """Returns the share answered of pairs so many tokens back, of each run."""
        curves = (study.get(BY_DISTANCE, {}) for study in self.studies)
        return [curve[distance] for curve in curves if distance in curve]

    @property
    def reach(self) -> float:
        """The distance up to which the best run answers at least `ANSWERED`; 0 if none."""
        near = itertools.takewhile(lambda point: point[1] >= ANSWERED, self.by_distance.items())
        return max((distance for distance, _ in near), default=0)

    def held(self, length: float) -> int:
        """The most pairs of which the best run answers `ANSWERED` in documents of a length."""
        curves = _by_length(self.studies[0]).items()
        return max((n for n, curve in curves if curve.get(length, 0) >= ANSWERED), default=0)


class Cells(NamedTuple):
    """Numbers of pairs in the studies of all memories, and document lengths with most pairs."""

    pairs: list[int]
    lengths: list[float]

    @property
    def far(self) -> tuple[int, float]:
        """Most pairs, and the second length."""
        return self.pairs[-1], self.lengths[:2][-1]

    @property
    def distances(self) -> list[float]:
        """A quarter of the lengths that are longer than those of training."""
        return [length / 4 for length in self.lengths[1:3]]


def _by_length(study: Mapping[str, dict[float, float]]) -> dict[int, dict[float, float]]:
    """Returns the share answered by length, for each number of pairs."""
    named = ((OF_PAIRS.fullmatch(name), curve) for name, curve in study.items())
    return {int(match[1]): curve for match, curve in named if match}


def _cells(found: Iterable[Recall]) -> Cells | None:
    curves = [_by_length(study) for recall in found for study in recall.studies]
    pairs = sorted(set().union(*curves))
    if not pairs:
        return None
    return Cells(pairs, sorted(set().union(*(curve.get(pairs[-1], {}) for curve in curves))))


def searches(groups: Iterable[Group]) -> dict[str, dict[float, Run]]:
    """Returns the search of each memory's rate: runs with one seed and size, by rate.

    The seed is the first one, the size the one with the most rates. A memory with one rate has no
    search.
    """
    found: dict[str, dict[float, Run]] = {}
    for (name, *_), runs in _by_model(groups).items():
        first = min(map(_seed, runs))
        by_rate = {_rate(run): run for run in runs if _seed(run) == first}
        if len(by_rate) > max(1, len(found.get(name, ()))):
            found[name] = dict(sorted(by_rate.items()))
    return found


def chosen_rate(search: Mapping[float, Run]) -> float:
    """Returns the rate with the lowest loss on validation."""
    return min(search, key=lambda rate: search[rate].evaluations["validation"]["loss"])


def recalls(groups: Iterable[Group]) -> list[Recall]:
    """Returns the memories with the study `answers`, by name and carried bytes.

    Of a memory with a search of its rate, the runs with the chosen one.
    """
    groups = list(groups)
    chosen = {name: chosen_rate(search) for name, search in searches(groups).items()}
    found = []
    for (name, *_), all_runs in _by_model(groups).items():
        runs = [run for run in all_runs if _rate(run) == chosen.get(name, _rate(run))]
        runs.sort(key=_accuracy, reverse=True)
        studies = [run.studies["answers"] for run in runs if "answers" in run.studies]
        if not studies:
            continue
        series = [
            {s["name"]: dict(zip(s["x"], s["y"])) for s in study["series"]} for study in studies
        ]
        series.sort(key=_most_pairs, reverse=True)
        numbers = [study["numbers"] for study in studies]
        in_training = [_accuracy(run) for run in runs]
        size = int(numbers[0]["carried_bytes"])
        found.append(Recall(name, size, in_training, series, numbers))
    return sorted(found, key=lambda recall: recall[:2])


def _most_pairs(study):
    """Returns the share answered of most pairs in documents of the second length."""
    curves = sorted(_by_length(study).items())
    return [share for _, share in sorted(curves[-1][1].items())][:2][-1:] if curves else []


def _by_model(groups: Iterable[Group]) -> dict[tuple, list[Run]]:
    """Returns the runs with evaluated answers by their memory and the settings of their model."""
    found: dict[tuple, list[Run]] = {}
    for run in (run for group in groups for run in group.runs):
        if "answer_accuracy" not in run.evaluations.get("validation", {}):
            continue
        model = [(name, str(value)) for name, value in sorted(run.settings.items())
                 if not name.startswith(TRAINING) and value != default(name)]  # fmt: skip
        found.setdefault((memory_name(run.settings), *model), []).append(run)
    return found


def _rate(run: Run) -> float:
    return run.settings.get(RATE, 0.0)


def _seed(run: Run) -> int:
    return run.settings.get("Trainer.seed", 0)


def _accuracy(run: Run) -> float:
    return run.evaluations["validation"]["answer_accuracy"]


def recall_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory and size."""
    found = recalls(groups)
    cells = _cells(found)
    if not cells:
        return None
    most, trained = cells.pairs[-1], cells.lengths[0]
    rows: list[Sequence[Any]] = []
    for recall in found:
        shares = [recall.in_training, *(recall.at(most, length) for length in cells.lengths)]
        shares += map(recall.back, cells.distances)
        start = recall.memory, f"{recall.carried_bytes:,}", str(recall.held(trained))
        rows.append([*start, f"{recall.reach:,.0f}", *map(by_run, shares)])
    titles = ["memory", "bytes carried", "pairs", "reach", "as in training",
              *(f"{most} pairs, {length:,.0f} tokens" for length in cells.lengths),
              *(f"{distance:,.0f} tokens back" for distance in cells.distances)]  # fmt: skip
    caption = (
        "Share of queries answered with the right value, one number a seed, the best first. As in "
        f"training: {cells.pairs[0]} to {most} pairs in at most {trained:,.0f} tokens. Later "
        f"columns: {most} pairs, also in longer documents than training has; not measured for "
        "every run. Most queries follow their pair soon; the last columns are of those for any "
        "number of pairs so many to twice so many tokens after it. Pairs: the most of which the "
        f"best run answers {ANSWERED:.0%} in documents of "
        f"{trained:,.0f} tokens. Reach: tokens since the pair up to which it answers "
        f"{ANSWERED:.0%} of all queries; 32 means 32 to 63 tokens, and so on."
    )
    return plain_table(name, "Pairs recalled", caption, titles, rows)


def rates_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory: the share answered with each rate of its search."""
    found = dict(sorted(searches(groups).items()))
    rates = sorted({rate for search in found.values() for rate in search})
    rows: list[Sequence[Any]] = []
    for memory, search in found.items():
        best = chosen_rate(search)
        cells = [Cell(f"{_accuracy(search[r]):.2f}") if r in search else NOTHING for r in rates]
        rows.append([memory, *cells, f"{best:g}"])
    titles = ["memory", *(f"rate {rate:g}" for rate in rates), "chosen"]
    caption = (
        "Share of queries answered with the right value, as in training; smaller size, one seed. "
        "Chosen: the rate with the lowest loss."
    )
    return plain_table(name, "Rates", caption, titles, rows) if rows else None


def by_run(values: Sequence[float]) -> Cell:
    return Cell(" / ".join(f"{value:.2f}" for value in values)) if values else NOTHING


def recall_plots(name: str, groups: Iterable[Group]) -> list[Plot]:
    """Returns the share recalled against the carried bytes, and against the distance."""
    found = recalls(groups)
    cells = _cells(found)
    if not cells:
        return []
    sizes: dict[str, list[Recall]] = {}
    for recall in found:
        if recall.at(*cells.far):
            sizes.setdefault(recall.memory, []).append(recall)

    def far(recall):
        return statistics.mean(recall.at(*cells.far))

    best = sorted((max(some, key=far) for some in sizes.values()), key=far, reverse=True)
    shown = best[:SHOWN] + [recall for recall in best[SHOWN:] if recall.memory == WINDOW]
    by_bytes = [
        Line(r.memory, [s.carried_bytes for s in sizes[r.memory]], [*map(far, sizes[r.memory])],
             "points")
        for r in shown
    ]  # fmt: skip
    by_distance = [
        Line(f"{r.memory}, {r.carried_bytes:,} bytes", list(r.by_distance),
             list(r.by_distance.values()), "points")
        for r in shown
    ]  # fmt: skip
    which = f"The window and the {SHOWN} memories that recall most."
    of_each = "its better size, and " if any(len(some) > 1 for some in sizes.values()) else ""
    return [
        Plot(
            f"{name}_bytes",
            f"Pairs recalled in {cells.far[1]:,.0f} tokens, by carried bytes",
            f"Share of queries for {cells.far[0]} pairs in documents of {cells.far[1]:,.0f} tokens "
            f"that are answered with the right value, mean over seeds. {which}",
            "carried bytes",
            "share answered",
            by_bytes,
            log_x=True,
            y_range=(0.0, 1.02),
        ),
        Plot(
            name,
            "Pairs recalled, by distance",
            f"Share of queries for {cells.pairs[0]} to {cells.pairs[-1]} pairs that are answered "
            "with the right value, by the tokens since the pair (32 means 32 to 63), in "
            f"documents of {cells.lengths[0]:,.0f} tokens, the longest of training, and more. "
            f"{which} Of each {of_each}the best run.",
            "distance, tokens",
            "share answered",
            by_distance,
            log_x=True,
            y_range=(0.0, 1.02),
        ),
    ]
