"""Run folders of a report, finished or in training."""

import functools
import json
import os
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from brt import config
from brt.experiment import Experiment
from brt.models.counts import ParameterCounts, count_parameters
from brt.reporting.gin_text import read_gin_file, resolved
from brt.reporting.model_settings import model_name
from brt.reporting.run_files import (
    check_settings,
    read_evaluation,
    read_stands_for,
    read_study,
)
from brt.training.checkpoints.policy import stopped_early
from brt.training.records.run_folder import check_run_folder, read_metrics
from brt.training.resume import FREE_TO_CHANGE

STANDS_FOR_FILE = "stands_for.json"
"""File of a scaled run: the settings of the published model."""

REQUIRED = ("Trainer.segment_length",)
OF_BLOCKS = ("BlockRecurrentTransformer.num_layers", "BlockRecurrentTransformer.window")

EVALUATED_BY = ("Evaluation.segment_length", "Evaluation.stride", "Evaluation.meliad_scoring")
"""Settings of an evaluation that change its metrics."""

MOST_RECORDS = 20_000

SHARE = 0.01
"""Least relative cost of clearing a state that counts as used."""


class Run:
    """The content of a run folder; runs no code of it.

    name: the folder's name, with as much of the path as distinguishes the runs of a report.
    records: metrics.jsonl, oldest first; of a long run about `MOST_RECORDS` lines.
    settings: every value in force, `BlockRecurrentTransformer.window` to 512.
    evaluations: by split, with "uses_state" (0 or 1). studies: by the name of their file.
    rows: by study, the run's row in the table of a study of several runs.
    problems: sentences about damaged or missing files.
    """

    def __init__(self, folder: str | Path, allow_imports: Sequence[str] = ()):
        self.folder = Path(folder)
        self.allow_imports = allow_imports
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"There is no run folder at {folder}: name folders of `brt.train`."
            )
        check_run_folder(self.folder)
        self.name = _shown_name(self.folder.resolve().name)
        self.problems: list[str] = []
        self.settings = self._read_settings()
        self.records = read_metrics(str(self.folder), self.problems, MOST_RECORDS)
        evaluations = self._read_all("evaluation_*.json", read_evaluation)
        self.evaluations = {name.split("_", 1)[1]: found for name, found in evaluations.items()}
        for found in self.evaluations.values():
            if {"loss", "cleared_loss"} <= found.keys():
                cost = found["cleared_loss"] - found["loss"]
                found["uses_state"] = int(cost >= SHARE * found["cleared_loss"])
        self.studies = self._read_all("studies/*.json", read_study)
        folders = (path.parent for path in self.folder.glob("recordings/*/manifest.json"))
        self.recordings = sorted(folders, key=lambda path: (not path.name.endswith("kept"), path))
        self.rows: dict[str, dict[str, Any]] = {}
        self.stands_for: dict[str, Any]
        (self.stands_for,) = self._read_all(STANDS_FOR_FILE, read_stands_for).values() or ({},)

    def _read_all(self, pattern, read):
        contents = {}
        for path in sorted(self.folder.glob(pattern)):
            try:
                contents[_shown_name(path.stem)] = read(path)
            except (ValueError, OSError) as error:
                self.problems.append(
                    f"{path} was left out: it is being written, or was cut short ({error})"
                )
        return contents

    def _read_settings(self):
        names = ("operative_config.gin", "config.gin")
        path = next((p for name in names if (p := self.folder / name).exists()), None)
        if path is None:
            raise FileNotFoundError(
                f"{self.folder} is not a run folder: it has no config.gin. Name folders given to "
                "`brt.train` as --workdir."
            )
        try:
            settings = resolved(read_gin_file(path))
        except (SyntaxError, ValueError, KeyError, RecursionError, tokenize.TokenError) as error:
            reason = str(error).split("\n")[0][:200]
            raise ValueError(
                f"{path} is not a gin config ({reason}): copy it again, or leave the run out."
            ) from None
        check_settings(path, settings)
        of_blocks = model_name(settings) == "BlockRecurrentTransformer"
        for name in (*REQUIRED, *(OF_BLOCKS if of_blocks else ())):
            if name not in settings:
                raise ValueError(
                    f"{path} does not bind {name}: copy the file again, or leave the run out."
                )
        return settings

    def bind(self) -> None:
        config.parse([str(self.folder / "config.gin")], allow_imports=self.allow_imports)

    @functools.cached_property
    def counts(self) -> ParameterCounts | None:
        """The parameters of the model; None, and a problem, if the config no longer builds."""
        try:
            self.bind()
            return count_parameters(Experiment.from_gin().model)
        except Exception as error:  # of an older version, or with a missing class
            self.problems.append(f"{self.folder}/config.gin cannot be built: {error}")
            return None

    @property
    def paper_settings(self) -> dict:
        return self.settings | self.stands_for.get("settings", {})

    @property
    def is_scaled(self) -> bool:
        def listed(value):  # JSON has lists for tuples
            return list(value) if isinstance(value, tuple) else value

        published = self.stands_for.get("settings", {})
        return any(
            listed(value) != listed(self.settings.get(name, [] if value == [] else None))
            for name, value in published.items()
            if name != "Trainer.steps"
        )

    @property
    def step(self) -> int:
        return max((record["step"] for record in self.records), default=0)

    @property
    def seed(self) -> Any:
        return self.settings.get("Trainer.seed", 0)

    @property
    def stopped_early(self) -> bool:
        return stopped_early(self.records)

    @property
    def stores(self) -> tuple[str, ...]:
        """The folders of its token stores, several of a mixture, in the order of their names."""
        names = (name for name in self.settings if name.rpartition("/")[2] == "Corpus.store")
        return tuple(sorted(str(self.settings[name]) for name in names))

    @property
    def corpus(self) -> str:
        """Name of the folder of its token stores; `mixture` for several."""
        if len(self.stores) == 1:
            return os.path.basename(self.stores[0].rstrip("/"))
        return "mixture"

    def series(self, name: str) -> tuple[list[int], list[float]]:
        pairs = [(r["step"], r[name]) for r in self.records if isinstance(r.get(name), int | float)]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def number(self, name: str, split: str) -> Any:
        """Returns a number of an evaluation, or None; see `Quantity.scalar` for others."""
        if not name.startswith("studies/"):
            return max(self.series(name)[1], default=self.evaluations.get(split, {}).get(name))
        _, study, name = name.split("/", 2)
        for content in self.studies.values():
            if content.get("study") != study:
                continue
            if name in content.get("numbers", {}):
                return content["numbers"][name]
            if name.startswith("at/") and len(content.get("series", [])) == 1:
                (series,) = content["series"]
                points = dict(zip(series.get("x", []), series.get("y", [])))
                return points.get(float(name.removeprefix("at/")))
        return self.rows.get(study, {}).get(name)

    def study_split(self, study: str) -> str | None:
        studies = (entry for entry in self.studies.values() if entry.get("study") == study)
        return next((entry.get("split") for entry in studies), None)

    def entry_key(self) -> str:
        """Returns a text that is the same for runs which differ in their seeds alone."""
        return json.dumps([self.identity(), self.stands_for.get("settings")], sort_keys=True)

    def identity(self) -> dict:
        return {
            name: repr(value)
            for name, value in self.settings.items()
            if name in ("Trainer.steps", *EVALUATED_BY)
            or not f"{name.rpartition('/')[2]}:".startswith(("Trainer.seed:", *FREE_TO_CHANGE))
        }


def _shown_name(name):
    return os.fsencode(name).decode("utf-8", "replace")


def open_runs(folders: Iterable[str | Path], allow_imports: Sequence[str] = ()) -> list[Run]:
    runs = [Run(folder, allow_imports) for folder in folders]
    paths = [run.folder.resolve() for run in runs]
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len({*paths}):
        depth += 1
    for run, path in zip(runs, paths):
        run.name = _shown_name("/".join(path.parts[-depth:]))
    _share_rows(runs)
    return runs


def _share_rows(runs):
    for study in (study for run in runs for study in run.studies.values()):
        for row in study.get("table", []):
            named = Path(str(row.get("run", "")))
            same = [r for r in runs if os.path.realpath(r.folder) == os.path.realpath(named)]
            # A moved folder is still known by its name, if it is unique.
            same = same or [run for run in runs if run.folder.resolve().name == named.name]
            if len(same) == 1:
                same[0].rows.setdefault(study.get("study"), {}).update(row)
