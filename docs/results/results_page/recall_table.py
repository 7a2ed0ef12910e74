"""Recall of pairs (MQAR) by every memory, compared with the bytes that each carries."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from results_page.gain_tables import NOTHING
from results_page.memory_names import WINDOW, memory_name

from brt.config import default
from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.runs import Run

TRAINED, PAIRS = 64, 16
"""Tokens of the longest documents in training, and most pairs of a document."""
LONGER = (1_024, 16_384)
"""Tokens of the longer documents of the test."""
FAR, SHOWN = LONGER[0], 6
"""Tokens of the documents of the plot against carried bytes, and its memories."""
BY_LENGTH = f"state kept, {PAIRS} facts, by length"
ANSWERED = 0.9
RATE = "cosine.maximum"
TRAINING = "Trainer.", "CheckpointPolicy.", "Corpus.", "Evaluation.", "cosine."
"""Beginnings of settings that are not the model's."""


class Recall(NamedTuple):
    """The runs of one memory and size: carried bytes, and accuracies of each run.

    studies: of the runs that have one, the best at `FAR` first: y by x of each series.
    numbers: of the same studies, the best run of training first.
    """

    memory: str
    carried_bytes: int
    in_training: list[float]
    studies: list[dict[str, dict[float, float]]]
    numbers: list[dict[str, float]]

    def at(self, length: int) -> list[float]:
        curves = (study.get(BY_LENGTH, {}) for study in self.studies)
        return [curve[length] for curve in curves if length in curve]

    @property
    def by_distance(self) -> dict[float, float]:
        """Of the best run."""
        return self.studies[0].get("state kept, by distance", {})

    @property
    def reach(self) -> float:
        """The distance up to which the best run answers at least `ANSWERED`; 0 if none."""
        near = itertools.takewhile(lambda point: point[1] >= ANSWERED, self.by_distance.items())
        return max((distance for distance, _ in near), default=0)


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
        series.sort(key=lambda study: study.get(BY_LENGTH, {}).get(FAR, 0.0), reverse=True)
        numbers = [study["numbers"] for study in studies]
        in_training = [_accuracy(run) for run in runs]
        size = int(numbers[0]["carried_bytes"])
        found.append(Recall(name, size, in_training, series, numbers))
    return sorted(found, key=lambda recall: recall[:2])


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
    rows: list[Sequence[Any]] = []
    for recall in recalls(groups):
        cells = map(by_run, [recall.in_training, *map(recall.at, (TRAINED, *LONGER))])
        reach = f"{recall.reach:,.0f}"
        rows.append([recall.memory, f"{recall.carried_bytes:,}", reach, *cells])
    titles = ["memory", "bytes carried", "reach", "as in training",
              *(f"{PAIRS} pairs, {n:,} tokens" for n in (TRAINED, *LONGER))]  # fmt: skip
    caption = (
        "Share of queries answered with the right value, one number a seed, the best first. As in "
        f"training: 2 to {PAIRS} pairs in 16 to {TRAINED} tokens. Later columns: {PAIRS} pairs, "
        "also in longer documents than training has; not measured for every run. Reach: tokens "
        f"since the pair (from powers of two) up to which the best run answers {ANSWERED:.0%}. "
        "Chance: 0.03."
    )
    return plain_table(name, "Pairs recalled", caption, titles, rows) if rows else None


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
    sizes: dict[str, list[Recall]] = {}
    for recall in recalls(groups):
        if recall.at(FAR):
            sizes.setdefault(recall.memory, []).append(recall)
    if not sizes:
        return []

    def far(recall):
        return statistics.mean(recall.at(FAR))

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
    return [
        Plot(
            f"{name}_bytes",
            f"Pairs recalled in {FAR:,} tokens, by carried bytes",
            f"Share of queries for {PAIRS} pairs in documents of {FAR:,} tokens that are answered "
            f"with the right value, mean over seeds. {which}",
            "carried bytes",
            "share answered",
            by_bytes,
            log_x=True,
            y_range=(0.0, 1.02),
        ),
        Plot(
            name,
            "Pairs recalled, by distance",
            f"Share of queries for 2 to {PAIRS} pairs that are answered with the right value, by "
            f"the tokens since the pair (from powers of two), in documents from {TRAINED} tokens "
            f"on. {which} Of each its better size, and the best run. Training has distances up to "
            f"{TRAINED}.",
            "distance, tokens",
            "share answered",
            by_distance,
            log_x=True,
            y_range=(0.0, 1.02),
        ),
    ]
