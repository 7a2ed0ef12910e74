"""Runs on recall of pairs (MQAR) by memory and size, and the search of their rates."""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from results_page.memory_names import memory_name

from brt.bindings.registry import default
from brt.data.sources.answers import answers_of
from brt.data.sources.mqar import MultiQueryRecall
from brt.reporting.collect import Group
from brt.reporting.runs import Run

BY_DISTANCE, BY_LENGTH = "state kept, by distance", "state kept, by length"
TASK, OF_STUDY = "MultiQueryRecall.", ("lengths", "num_held_out")
"""Beginning of the task's settings, and those that a study has of its own."""
OF_PAIRS = re.compile(r"state kept, (\d+) facts, by length")
ANSWERED = 0.9
RATE = "cosine.maximum"
TRAINING = "Trainer.", "CheckpointPolicy.", "Corpus.", "Evaluation.", "cosine."
"""Beginnings of settings that are not the model's."""


class Recall(NamedTuple):
    """The runs of one memory and size, by seed: carried bytes, and accuracies of each run.

    in_training: share answered.
    studies: y by x of each series; empty of a run without the study.
    numbers: of the same studies.
    counts: queries by their distance.
    """

    memory: str
    carried_bytes: int
    in_training: list[float]
    studies: list[dict[str, dict[float, float]]]
    numbers: list[dict[str, float]]
    counts: list[dict[int, int]]

    def at(self, pairs: int, length: float) -> list[float | None]:
        """Returns the share answered of so many pairs in documents of a length, of each run."""
        return [_by_length(study).get(pairs, {}).get(length) for study in self.studies]

    def back(self, distance: float) -> list[float | None]:
        """Returns the share answered of pairs so many tokens back, of each run."""
        return [study.get(BY_DISTANCE, {}).get(distance) for study in self.studies]

    @property
    def best(self) -> dict[str, dict[float, float]]:
        """The study that answers most for most pairs in documents of the second length."""
        return max((study for study in self.studies if study), key=_most_pairs)

    @property
    def reach(self) -> float:
        """The distance up to which the best run answers at least `ANSWERED`; 0 if none."""
        points = self.best.get(BY_DISTANCE, {}).items()
        near = itertools.takewhile(lambda point: point[1] >= ANSWERED, points)
        return max((distance for distance, _ in near), default=0)

    def held(self, length: float) -> int:
        """The most pairs of which the best run answers `ANSWERED` in documents of a length."""
        curves = _by_length(self.best).items()
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


def cells_of(found: Iterable[Recall]) -> Cells | None:
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
        runs.sort(key=_seed)
        answers = [run.studies.get("answers", {}) for run in runs]
        if not any(answers):
            continue
        studies = [
            {each["name"]: dict(zip(each["x"], each["y"])) for each in study.get("series", ())}
            for study in answers
        ]
        numbers = [study.get("numbers", {}) for study in answers]
        size = next(int(each["carried_bytes"]) for each in numbers if each)
        counts = [_counts(run, study) for run, study in zip(runs, answers)]
        shares = [accuracy(run) for run in runs]
        found.append(Recall(name, size, shares, studies, numbers, counts))
    return sorted(found, key=lambda recall: recall[:2])


def _counts(run: Run, study: Mapping[str, Any]) -> dict[int, int]:
    """Returns the queries of a study by their distance, from powers of two; of this task only.

    Studies keep shares alone, so their documents are drawn again.
    """
    lengths = next((s["x"] for s in study.get("series", ()) if s["name"] == BY_LENGTH), ())
    settings = {name.removeprefix(TASK): value for name, value in run.settings.items()
                if name.startswith(TASK) and not name.endswith(OF_STUDY)}  # fmt: skip
    if not lengths or not settings or "documents" not in study:
        return {}
    return _drawn(tuple(map(int, lengths)), tuple(study["documents"]), *settings.items())


@functools.cache
def _drawn(lengths, documents, *settings):
    held_out = max(documents) + 1
    task = MultiQueryRecall(**dict(settings), lengths=lengths, num_held_out=held_out)
    counts: Counter[int] = Counter()
    for number, document in enumerate(task.documents("validation")):
        found = answers_of(document.annotation)
        if number in documents and found is not None:
            distances = (answer.distance or 0 for answer in found.answers)
            counts.update(1 << (distance.bit_length() - 1) for distance in distances)
    return dict(counts)


def _most_pairs(study):
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


def accuracy(run: Run) -> float:
    return run.evaluations["validation"]["answer_accuracy"]
