"""Run folders as a report reads them, finished or still being written."""

import os
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from brt import config
from brt.reporting.gin_text import read_gin_file, resolved
from brt.reporting.model_settings import model_name
from brt.reporting.run_files import (
    check_settings,
    read_evaluation,
    read_stands_for,
    read_study,
    replace_extremes,
)
from brt.training.checkpoints.policy import stopped_early
from brt.training.records.run_folder import read_metrics
from brt.training.settings import FREE_TO_CHANGE

STANDS_FOR_FILE = "stands_for.json"
"""In the run folder of a ladder: what the run stands for in the paper's tables."""

REQUIRED = ("Trainer.segment_length",)
OF_BLOCKS = ("BlockRecurrentTransformer.num_layers", "BlockRecurrentTransformer.window")
"""Settings that every run has, and every run of a Block-Recurrent stack."""

EVALUATED_BY = ("Evaluation.segment_length", "Evaluation.stride", "Evaluation.meliad_scoring")
"""Settings of an evaluation that its figures depend on; `Evaluation.model` is bound in a scope."""

MOST_RECORDS = 20_000
"""Lines of metrics.jsonl that curves are drawn from."""

SHARE = 0.01
"""Of the loss: what a state has to be worth, to count as used."""


class Run:
    """The content of a run folder.

    Args:
        folder: of the run; none of its code is run.
        allow_imports: modules outside brt that its config may import, where its model is built.

    Attributes:
        folder: `pathlib.Path` of it.
        name: the folder's name, with as much of the path as tells the runs of a report apart.
        records: metrics.jsonl, oldest first; of a long run about `MOST_RECORDS` of them.
        settings: every value in force, `BlockRecurrentTransformer.window` to 512; references as
            `Reference`.
        evaluations: split to the content of evaluation_<split>.json; and of models with a state
            "uses_state", 1 or 0: whether the loss grows by `SHARE` where the state is cleared.
        studies: name to the content of studies/<name>.json.
        recordings: folders of recordings that have a manifest, those with the state kept first.
        rows: of each study of several runs, here or in another run of the report, what its table
            says of this one.
        entry: what a ladder wrote beside it; empty for other runs.
        problems: sentences about files that are torn or missing.

    Raises:
        FileNotFoundError: it is no run folder.
    """

    def __init__(self, folder: str | Path, allow_imports: Sequence[str] = ()):
        self.folder = Path(folder)
        self.allow_imports = allow_imports
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"There is no run folder at {folder}: name folders of `brt.train`."
            )
        self.name = _shown_name(self.folder.resolve().name)
        self.problems: list[str] = []
        self.settings = self._read_settings()
        self.records = read_metrics(str(self.folder), self.problems, MOST_RECORDS)
        self._check_numbers()
        evaluations = sorted(self.folder.glob("evaluation_*.json"))
        self.evaluations = self._read_all(
            evaluations,
            lambda path: read_evaluation(path, self.problems),
            lambda path: _shown_name(path.stem.split("_", 1)[1]),
        )
        for found in self.evaluations.values():
            if "cleared_loss" in found:
                grown = found["cleared_loss"] - found["loss"]
                found["uses_state"] = int(grown >= SHARE * found["cleared_loss"])
        studies = sorted(self.folder.glob("studies/*.json"))
        self.studies = self._read_all(studies, read_study, lambda p: _shown_name(p.stem))
        found = [path.parent for path in self.folder.glob("recordings/*/manifest.json")]
        self.recordings = sorted(found, key=lambda path: (not path.name.endswith("kept"), path))
        self.rows: dict[str, dict[str, Any]] = {}
        entries = list(self.folder.glob(STANDS_FOR_FILE))
        read = self._read_all(entries, read_stands_for, lambda p: "entry")
        self.stands_for = read.get("entry", {})

    def _check_numbers(self):
        """Replaces numbers of the records that cannot be shown; names the first of each name."""
        first: dict[str, str] = {}
        for record in self.records:
            for name, what in replace_extremes(record).items():
                first.setdefault(name, f"step {record['step']:,}: {what}")
        path = self.folder / "metrics.jsonl"
        self.problems += [f"{path}, {what}" for what in first.values()]

    def _read_settings(self):
        for name in ("operative_config.gin", "config.gin"):
            path = self.folder / name
            if path.exists():
                return self._settings_of(path)
        raise FileNotFoundError(
            f"{self.folder} is not a run folder: it has no config.gin. Name folders given to "
            "`brt.train` as --workdir."
        )

    def _settings_of(self, path):
        try:
            settings = resolved(read_gin_file(path))
        except (SyntaxError, ValueError, KeyError, RecursionError, tokenize.TokenError) as error:
            reason = str(error).split("\n")[0][:200]
            raise ValueError(
                f"{path} is no gin config ({reason}): copy it anew, or leave the run out."
            ) from None
        check_settings(path, settings)
        of_blocks = model_name(settings) == "BlockRecurrentTransformer"
        for name in (*REQUIRED, *(OF_BLOCKS if of_blocks else ())):
            if name not in settings:
                raise ValueError(
                    f"{path} does not bind {name}: copy the file anew, or leave the run out."
                )
        return settings

    def _read_all(self, paths, read, key):
        found = {}
        for path in paths:
            try:
                found[key(path)] = read(path)
            except (ValueError, OSError) as error:
                self.problems.append(
                    f"{path} was left out: it is being written, or was cut short ({error})"
                )
        return found

    def bind(self) -> None:
        """Binds gin to the run's config.

        Raises:
            brt.config.ConfigError: as `brt.config.parse`.
        """
        config.parse([str(self.folder / "config.gin")], allow_imports=self.allow_imports)

    @property
    def paper_settings(self) -> dict:
        """Settings with the dimensions that the run stands for at the paper's scale."""
        return self.settings | self.stands_for.get("settings", {})

    @property
    def is_scaled(self) -> bool:
        """True if the model it stands for has other dimensions than its own."""
        own = {name: self.settings.get(name) for name in self.stands_for.get("settings", {})}
        # JSON has lists for tuples.
        return any(
            list(value) != list(own[name] or ()) if isinstance(value, list) else value != own[name]
            for name, value in self.stands_for.get("settings", {}).items()
            if name != "Trainer.steps"
        )

    @property
    def step(self) -> int:
        """The last step recorded; 0 before the first."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def stopped_early(self) -> bool:
        return stopped_early(self.records)

    @property
    def finished(self) -> bool:
        return self.stopped_early or self.step >= self.settings.get("Trainer.steps", 0)

    @property
    def corpus(self) -> str:
        """Name of the folder of its token stores; `mixture` where there are several."""
        if "Corpus.store" in self.settings:
            return os.path.basename(str(self.settings["Corpus.store"]).rstrip("/"))
        return "mixture"

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Returns steps and values of one scalar."""
        pairs = [(r["step"], r[name]) for r in self.records if isinstance(r.get(name), int | float)]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def study_number(self, study: str, name: str) -> Any:
        """Returns a number of a study of this run, or of one that has a row for it; None without.

        `at/450` is the y at x = 450 of a study with one series.
        """
        for found in self.studies.values():
            if found.get("study") != study:
                continue
            if name in found.get("numbers", {}):
                return found["numbers"][name]
            if name.startswith("at/") and len(found.get("series", [])) == 1:
                (series,) = found["series"]
                points = dict(zip(series.get("x", []), series.get("y", [])))
                return points.get(float(name.removeprefix("at/")))
        return self.rows.get(study, {}).get(name)

    def study_split(self, study: str) -> str | None:
        """Returns the split that a study of this run has read; None without the study."""
        found = (entry for entry in self.studies.values() if entry.get("study") == study)
        return next((entry.get("split") for entry in found), None)

    def identity(self) -> dict:
        """Returns the settings that decide the figures, apart from the seed.

        The steps are among them, which may change when a run is resumed.
        """
        return {
            name: repr(value)
            for name, value in self.settings.items()
            if name in ("Trainer.steps", *EVALUATED_BY)
            or (name != "Trainer.seed" and not _is_free(name.rpartition("/")[2]))
        }


def _shown_name(name):
    """Returns the name of a file as text; bytes of it that are not UTF-8 become U+FFFD."""
    return os.fsencode(name).decode("utf-8", "replace")


def _is_free(name):
    return f"{name}:".startswith(FREE_TO_CHANGE)


def open_runs(folders: Iterable[str | Path], allow_imports: Sequence[str] = ()) -> list[Run]:
    """Opens the runs of a report, each with a name of its own.

    allow_imports: modules outside brt that their configs may import; see `brt.config.parse`.

    Raises:
        FileNotFoundError, ValueError: a folder is no run folder, or is named twice.
    """
    runs = [Run(folder, allow_imports) for folder in folders]
    paths = [run.folder.resolve() for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"{path} is named twice: name each run once.")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    for run, path in zip(runs, paths):
        run.name = _shown_name("/".join(path.parts[-depth:]))
    _share_rows(runs)
    return runs


def _share_rows(runs):
    """Gives each run the rows that tables of studies have for it, whoever's folder holds them."""
    for study in (found for run in runs for found in run.studies.values()):
        for row in study.get("table", []):
            named = Path(str(row.get("run", "")))
            same = [r for r in runs if os.path.realpath(r.folder) == os.path.realpath(named)]
            # A folder that was moved is still known by its name, if no other has it.
            same = same or [run for run in runs if run.folder.resolve().name == named.name]
            if len(same) == 1:
                same[0].rows.setdefault(study.get("study"), {}).update(row)
