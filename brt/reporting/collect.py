"""Runs gathered by what they compute, so that seeds of one experiment share a cell."""

from typing import NamedTuple

from brt import config
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.reporting.places import Place, place
from brt.reporting.runs import Run
from brt.reporting.table import NOT_EVALUATED, Cell, measured


class Group(NamedTuple):
    """Runs that differ in their seed only.

    Attributes:
        runs: at least one.
        place: where the paper would put them.
        variant: the bindings that tell it from others with the same place; empty if it is alone.
    """

    runs: list[Run]
    place: Place
    variant: str

    @property
    def split(self) -> str:
        """The split the tables report: test, as the paper does, or validation for GitHub."""
        wanted = ("validation", "test") if self.place.corpus == "GitHub" else ("test", "validation")
        found = (s for s in wanted if any(s in run.evaluations for run in self.runs))
        return next(found, wanted[0])

    def evaluations(self) -> list[dict]:
        """The evaluations of all runs that have one of the split."""
        return [run.evaluations[self.split] for run in self.runs if self.split in run.evaluations]

    def cell(self, name: str = "bits_per_token", decimals: int | None = None) -> Cell:
        """A scalar of the evaluations, over seeds."""
        values = [found[name] for found in self.evaluations() if name in found]
        if not values:
            return Cell(NOT_EVALUATED)
        return measured(values, decimals, self._note(len(values)))

    @property
    def label(self) -> str:
        """What it is, for a table that has no row for it: `Slide:5L (5 layers, d 128)`."""
        layers, width = (self._setting(f"LanguageModel.{n}") for n in ("num_layers", "width"))
        label = f"{self.place.system} ({layers} layers, d {width})"
        return f"{label}, {self.variant}" if self.variant else label

    @property
    def vocabulary_size(self) -> int:
        return self._setting("LanguageModel.vocabulary_size")

    @property
    def parameters(self) -> float:
        """Millions, without embeddings."""
        config.parse([str(self.runs[0].folder / "config.gin")])
        return count_parameters(Experiment.from_gin().abstract_params).non_embedding / 1e6

    def _setting(self, name):
        return self.runs[0].settings.get(name)

    def _note(self, count):
        notes = []
        for run in self.runs:
            last = run.settings.get("Trainer.steps", 0)
            step = run.evaluations.get(self.split, {}).get("step", last)
            if step < last:
                notes.append(f"{run.name}: evaluated at step {step:,} of {last:,}")
        if count < len(self.runs):
            notes.append(f"{len(self.runs) - count} of {len(self.runs)} seeds not evaluated yet")
        if self.place.corpus.startswith("PG19") and self.split != "test":
            notes.append("validation split; the paper's is test")
        return "; ".join(notes)


def collect(runs: list[Run]) -> list[Group]:
    """Gathers runs into groups, in the order given."""
    gathered: list[tuple[dict, list[Run]]] = []
    for run in runs:
        identity = run.identity()
        for other, members in gathered:
            if identity == other and run.rung.get("settings") == members[0].rung.get("settings"):
                members.append(run)
                break
        else:
            gathered.append((identity, [run]))
    places = [place(members[0]) for _, members in gathered]
    return [
        Group(members, places[i], _variant(i, places, gathered))
        for i, (_, members) in enumerate(gathered)
    ]


def _variant(i, places, gathered):
    """What sets group i apart from the first other group with its place."""
    own = gathered[i][0]
    for j, (other, _) in enumerate(gathered):
        if j != i and places[j] == places[i]:
            names = (line.split(": ")[0] for line in config.differences(other, own))
            return ", ".join(f"{name} = {own.get(name, 'not bound')}" for name in names)
    return ""
