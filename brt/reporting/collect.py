"""Groups of runs that differ in their seed only, which share a cell."""

import math
from typing import Any, NamedTuple

from brt.bindings.read_bindings import differences
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.reporting.drawing.rounding import mean_and_spread
from brt.reporting.drawing.table import NOT_EVALUATED, NOT_RUN, Cell, measured
from brt.reporting.model_settings import model_setting
from brt.reporting.paper_positions import PaperPosition, paper_position
from brt.reporting.papers.published_tables import Quantity
from brt.reporting.runs import Run

PROPERTIES = ("parameters", "all_parameters", "vocabulary_size")
WITHOUT_EFFECT = ("Evaluation.split", "Evaluation.tokens_per_step", "Evaluation.max_steps")
"""Evaluation bindings without effect on the metrics of a whole split."""


def given_to(evaluation: dict) -> str:
    lines = map(str, evaluation.get("given", ()))
    return ", ".join(line for line in lines if not line.startswith(WITHOUT_EFFECT))


class Group(NamedTuple):
    """Runs that differ in their seed only, at least one: an entry of a report.

    position: in the papers' tables.
    variant: the bindings that distinguish it from others of the same position; or "".
    name: of an entry.
    """

    runs: list[Run]
    position: PaperPosition
    variant: str = ""
    name: str = ""

    @property
    def split(self) -> str:
        splits = ("test", "validation")
        splits = splits[::-1] if self.position.corpus == "GitHub" else splits
        evaluated = (s for s in splits if any(s in run.evaluations for run in self.runs))
        return next(evaluated, splits[0])

    def evaluations(self, split: str | None = None) -> list[dict]:
        split = split or self.split
        return [run.evaluations[split] for run in self.runs if split in run.evaluations]

    def quantity(self, quantity: Quantity) -> Cell:
        name, decimals = quantity.scalar, quantity.decimals
        values = [value / quantity.divisor for value in self._values(name, quantity.split)]
        if not values:
            if name.startswith("studies/"):
                return Cell(NOT_RUN)
            return Cell("–" if "/" in name or name in PROPERTIES else NOT_EVALUATED)
        if quantity.of == "mean":
            note = "" if name in PROPERTIES else self._note(len(values), quantity)
            return measured(values, decimals, note)
        if quantity.of == "spread":
            _, spread = mean_and_spread(values)
            return Cell("–") if spread is None else measured([spread], decimals, rounds_up=True)
        return measured([max(values) if quantity.of == "worst" else len(values)], decimals)

    def _values(self, name, split):
        if name in PROPERTIES:
            return [x for x in [getattr(self, name)] if not math.isnan(x)]
        if name.startswith("studies/"):
            _, study, number = name.split("/", 2)
            values = (run.study_number(study, number) for run in self.runs)
            return [value for value in values if value is not None]
        if "/" in name:
            series = (run.series(name)[1] for run in self.runs)
            return [max(values) for values in series if values]
        return [metrics[name] for metrics in self.evaluations(split) if name in metrics]

    @property
    def label(self) -> str:
        """Label where a table has no row for the group: `Slide:5L (5 layers, d 128)`."""
        label = " + ".join([self.position.system, *self.position.memories])
        label += f" ({self.dimensions})"
        if self.position.task:
            label += f", {self.position.task} {self.position.task_length}"
        return f"{label}, {self.variant}" if self.variant else label

    def apart_from(self, other: "Group") -> str:
        own = self.runs[0].identity()
        lines = differences(other.runs[0].identity(), own)
        names = (line.split(": ")[0] for line in lines)
        return ", ".join(f"{name} = {own.get(name, 'not bound')}" for name in names)

    @property
    def dimensions(self) -> str:
        layers, width = (self._setting(name) for name in ("num_layers", "width"))
        return f"{layers} layers, d {width}"

    def at(self, name: str) -> Any:
        return getattr(self if name in PROPERTIES else self.position, name)

    @property
    def vocabulary_size(self) -> int:
        return self._setting("vocabulary_size")

    @property
    def parameters(self) -> float:
        """Millions, without embeddings; NaN if the config no longer builds."""
        counts = self._counts()
        return counts.non_embedding / 1e6 if counts else math.nan

    @property
    def all_parameters(self) -> float:
        """Millions, with embeddings; NaN if the config no longer builds."""
        counts = self._counts()
        return (counts.non_embedding + counts.embedding) / 1e6 if counts else math.nan

    def _counts(self):
        run = self.runs[0]
        try:
            run.bind()
            return count_parameters(Experiment.from_gin().model)
        except Exception as error:  # of an older version, or with a missing class
            run.problems.append(f"{run.folder}/config.gin cannot be built: {error}")
            return None

    def _setting(self, name):
        return model_setting(self.runs[0].settings, name)

    def _note(self, count, quantity):
        split, notes = quantity.split or self.split, []
        of_study = quantity.scalar.startswith("studies/")
        for run in self.runs:
            if of_study and split in run.evaluations:
                study = quantity.scalar.split("/")[1]
                if (read := run.study_split(study)) not in (None, split):
                    notes.append(f"{run.name}: {study} of {read}, evaluated on {split}")
            evaluation = {} if of_study else run.evaluations.get(split, {})
            last = run.settings.get("Trainer.steps", 0)
            step = evaluation.get("step", last)
            if given := given_to(evaluation):
                notes.append(f"{run.name}: evaluated with {given}")
            if step < last:
                why = ", where it stopped early" if run.stopped_early and step == run.step else ""
                why = f", the best by {evaluation['best_by']}" if "best_by" in evaluation else why
                notes.append(f"{run.name}: evaluated at step {step:,} of {last:,}{why}")
        if count < len(self.runs):
            notes.append(f"{len(self.runs) - count} of {len(self.runs)} seeds not evaluated yet")
        if self.position.corpus.startswith("PG19") and split != "test":
            notes.append("validation split; the paper's is test")
        return "; ".join(notes)


def collect(runs: list[Run]) -> list[Group]:
    gathered: dict[str, list[Run]] = {}
    for run in runs:
        gathered.setdefault(run.entry_key(), []).append(run)
    groups = [Group(members, paper_position(members[0])) for members in gathered.values()]
    return [group._replace(variant=_variant(group, groups)) for group in groups]


def _variant(group, groups):
    others = (g for g in groups if g is not group and g.position == group.position)
    other = next(others, None)
    return group.apart_from(other) if other else ""
