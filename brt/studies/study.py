"""Studies: questions about a run (`brt.evaluate --study=NAME`). A study is a file of this folder,
named like the study, with one subclass of `Study`. Parameters of its constructor are gin bindings,
as in `Reach.tokens`.
"""

import abc
import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from brt.data.order import permutation
from brt.data.stores.layout import token_difference
from brt.data.stores.token_store import TokenStore
from brt.evaluation.recorded_run import RecordedRun
from brt.storage.paths import is_remote

Content = dict[str, Any]
"""A study's file: "numbers", "series", "summary", and more of some studies."""
Runs = Mapping[str, RecordedRun]
LN2 = math.log(2)


def content(numbers: dict[str, Any], series: list[dict], summary: str, **more: Any) -> Content:
    return {"numbers": numbers, "series": series, "summary": summary, **more}


def curve(
    name: str, x: Sequence, y: Sequence, x_label: str, y_label: str, **more: Any
) -> dict[str, Any]:
    """Returns one entry of "series"; `more` may have "borders" (boundaries) or "errors"."""
    labels = {"x_label": x_label, "y_label": y_label}
    return {"name": name, "x": list(x), "y": list(y), **labels, **more}


def add_map(
    study: Content,
    name: str,
    values: np.ndarray,
    title: str,
    caption: str,
    labels: tuple[str, str],
    ends: tuple[Sequence[float], Sequence[float]],
    borders: tuple[Sequence[int], Sequence[int]] = ((), ()),
    **more: Any,
) -> None:
    """Adds a heat map to a study's "arrays" and "maps", as `HeatMap` of the report draws it.

    labels, ends, borders: pairs, for x and for y.
    """
    study["arrays"][name] = values.astype(np.float32)
    entry: dict[str, Any] = {"array": name, "title": title, "caption": caption}
    for axis, label, end, at in zip("xy", labels, ends, borders):
        entry |= {f"{axis}_label": label, f"{axis}_ends": [*end], f"{axis}_borders": [*at]}
    study["maps"].append(entry | more)


class Study(abc.ABC):
    """A question about a run, and perhaps further runs; title and caption are for the report.

    any_stream: whether it also reads streams that mark no documents.
    """

    title: ClassVar[str]
    caption: ClassVar[str]
    most_others: ClassVar[float] = 0
    any_stream: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        """Returns the content of the study's file.

        Args:
            others: further runs, at most `most_others`.
        """


def studies() -> dict[str, type[Study]]:
    """Returns all studies by name, and registers them with gin."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"brt.studies.{module.name}")
    return {_name(study): study for study in sorted(Study.__subclasses__(), key=_name)}


def _name(study: type[Study]) -> str:
    return study.__module__.rpartition(".")[2]


def settings() -> list[str]:
    return [
        f"{study.__name__}.{name}"
        for study in studies().values()
        if "__init__" in vars(study)
        for name in list(inspect.signature(study.__init__).parameters)[1:]
    ]


def run_study(
    study: Study,
    run: RecordedRun,
    others: Runs | None = None,
    number: int | None = None,
    seed: int = 0,
) -> Content:
    others, name = others or {}, _name(type(study))
    if len(others) > study.most_others:
        allowed = "leave --other out" if not study.most_others else "name one run with --other"
        raise ValueError(f"--study={name} cannot read {len(others)} further runs: {allowed}.")
    for other in others.values():
        if why := token_difference(run.store.manifest, other.store.manifest):
            raise ValueError(f"{run.store.folder} and {other.store.folder} {why}.")
        if _resolved(other.workdir) == _resolved(run.workdir):
            raise ValueError(f"--other={other.workdir} is the run itself: name another one.")
    documents = np.array(choose_documents(run.store, number or run.store.num_documents, seed))
    head: Content = {"study": name, "run": str(run.workdir), "step": run.step, "split": run.split}
    head["store"] = str(run.store.folder)
    if study.most_others > 1:
        head["others"] = list(map(str, others))
    elif others:
        head["other"] = str(next(iter(others)))
    head["documents"] = documents.tolist()
    return head | study.measure(run, others, documents, seed)


def choose_documents(store: TokenStore, number: int, seed: int = 0) -> list[int]:
    """Returns documents drawn by a seed, rising; all if there are no more."""
    return sorted(permutation(store.num_documents, seed, 0, 0, 4)[:number].tolist())


def _resolved(folder: str) -> str:
    return str(folder) if is_remote(folder) else str(Path(folder).resolve())


def scored_weights(store: TokenStore, documents: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    weights = [store.weights(int(document)).astype(np.float64) for document in documents]
    if not any((weights_T > 0).any() for weights_T in weights):
        raise ValueError(
            f"No token of the chosen documents of {store.folder} is scored: raise --documents."
        )
    return weights


def weighted(values_T: np.ndarray, weights_T: np.ndarray) -> np.ndarray:
    """Returns values times weights, float64; those of unscored tokens need not be finite."""
    return np.where(weights_T > 0, values_T, 0.0) * weights_T


def sums_by_position(by_document: Iterable[np.ndarray], length: int) -> np.ndarray:
    """Returns the sums over documents of values by position, float64 (length,)."""
    total = np.zeros(length)
    for values in by_document:
        total[: len(values)] += values
    return total


def ratio_and_error(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Returns sum(values) / sum(weights) and its standard error; 0 for a single pair."""
    total, count = float(weights.sum()), len(values)
    ratio = float(values.sum()) / total
    if count < 2:
        return ratio, 0.0
    squares = np.square(values - ratio * weights).sum()
    return ratio, math.sqrt(count / (count - 1) * squares) / total
