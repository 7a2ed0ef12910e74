"""Groups of runs that differ in their seed only: entries of a report, which share a cell."""

import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING
from typing import Any, NamedTuple

from brt.bindings.read_bindings import differences
from brt.reporting.drawing.rounding import mean_and_spread, rounded
from brt.reporting.drawing.table import NOT_EVALUATED, NOT_RUN, Cell, measured
from brt.reporting.model_settings import model_setting
from brt.reporting.paper_positions import PaperPosition, paper_position
from brt.reporting.papers.published_tables import Quantity
from brt.reporting.runs import Run
from brt.reporting.sweep_folder import SEED, Sweep

MOST_NAMED = 3
"""Settings in the name of an entry, at most."""
OF_SEED = r"[-_]?(seed)?_?\d+$"
"""End of a run's name."""
PROPERTIES = ("parameters", "all_parameters", "vocabulary_size")
WITHOUT_EFFECT = ("Evaluation.split", "Evaluation.tokens_per_step", "Evaluation.max_steps")
"""Evaluation bindings without effect on the metrics of a whole split."""


def given_to(evaluation: dict) -> str:
    lines = map(str, evaluation.get("given", ()))
    return ", ".join(line for line in lines if not line.startswith(WITHOUT_EFFECT))


class Group(NamedTuple):
    """Runs that differ in their seed only, at least one: an entry of a report.

    position: in the papers' tables.
    """

    name: str
    runs: list[Run]
    position: PaperPosition

    @property
    def split(self) -> str:
        splits = ("test", "validation")
        splits = splits[::-1] if self.position.corpus == "GitHub" else splits
        evaluated = (s for s in splits if any(s in run.evaluations for run in self.runs))
        return next(evaluated, splits[0])

    def quantity(self, quantity: Quantity) -> Cell:
        name, decimals = quantity.scalar, quantity.decimals
        if name in PROPERTIES:
            found = [self.at(name)]
        else:
            found = [run.number(name, quantity.split or self.split) for run in self.runs]
        values = [value / quantity.divisor for value in found if value is not None]
        if not values:
            if name.startswith("studies/"):
                return Cell(NOT_RUN)
            return Cell("–" if "/" in name or name in PROPERTIES else NOT_EVALUATED)
        if quantity.of == "mean":
            note = "" if name in PROPERTIES else self._note(len(values), quantity)
            return measured(values, decimals, note)
        if quantity.of == "spread":
            _, spread = mean_and_spread(values)
            if spread is None:
                return Cell("–")
            return Cell(rounded(spread, decimals or 0, ROUND_CEILING), (spread,))
        return measured([max(values) if quantity.of == "worst" else len(values)], decimals)

    @property
    def label(self) -> str:
        """Label where a table has no row for the group: `Slide:5L (5 layers, d 128)`."""
        task = f", {self.position.task} {self.position.task_length}" if self.position.task else ""
        names = " + ".join([self.position.system, *self.position.memories])
        return f"{names} ({self.dimensions}){task}"

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
        """Returns an attribute of the position, or one of `PROPERTIES`, None if it is unknown.

        parameters, all_parameters: millions, without and with embeddings.
        """
        if name not in PROPERTIES:
            return getattr(self.position, name)
        if name == "vocabulary_size":
            return self._setting(name)
        counts = self.runs[0].counts
        return counts and (counts.non_embedding + counts.embedding * (name != "parameters")) / 1e6

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


def collect(runs: Iterable[Run], sweep: Sweep | None = None) -> list[Group]:
    """Returns the entries in the order of the sweep, or of their first runs.

    Names the runs of sweeps by label and seed.
    """
    members: dict[str, list[Run]] = {name: [] for name in (sweep.labels if sweep else ())}
    for run in runs:
        name = run.folder.name.rpartition(SEED)[0] if sweep else run.entry_key()
        members.setdefault(name, []).append(run)
    groups = [
        Group(name, sorted(found, key=lambda run: run.seed), paper_position(found[0]))
        for name, found in members.items()
        if found
    ]
    labels = [sweep.labels.get(group.name, group.name) if sweep else "" for group in groups]
    if not sweep or labels == [group.name for group in groups]:  # which only repeat names
        labels = _labels(groups)
    for label, group in zip(labels, groups):
        for run in group.runs if sweep or group.runs[0].stands_for else ():
            run.name = f"{label}, seed {run.seed}"
    return [group._replace(name=label) for label, group in zip(labels, groups)]


def differing(groups: Sequence[Group]) -> list[str]:
    """Returns the names of the settings in which groups differ."""
    settings = [group.runs[0].identity() for group in groups]
    names = dict.fromkeys(name for bound in settings for name in bound)
    return [name for name in names if len({bound.get(name) for bound in settings}) > 1]


def _labels(groups):
    firsts, several = [group.runs[0] for group in groups], [len(group.runs) > 1 for group in groups]
    named = [re.sub(OF_SEED, "", run.name) if s else run.name for run, s in zip(firsts, several)]
    if len(groups) < 2 or not any([*several, *(run.stands_for for run in firsts)]):
        return named
    settings, differ = [run.identity() for run in firsts], differing(groups)
    # Without a recurrent layer, for example, a run does not bind the settings of its cell.
    of_all = [name for name in differ if all(name in bound for bound in settings)]
    for chosen in (of_all, differ):
        last = [name.rpartition(".")[2] for name in chosen]
        short = last if len(set(last)) == len(last) else chosen
        labels = [
            ", ".join(f"{s}={bound.get(n, '–')}".replace("'", "") for s, n in zip(short, chosen))
            for bound in settings
        ]
        if len(chosen) <= MOST_NAMED and len(set(labels)) == len(groups):
            return labels
    return named
