"""Base of tasks whose documents are drawn one by one."""

import abc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from brt.checks import Count, Seed
from brt.data.sources.base import Document, Source


@dataclass(eq=False, kw_only=True)
class DrawnTask(Source):
    """Documents that are a function of (seed, split, number) and the settings."""

    num_documents: Count
    num_held_out: Count
    seed: Seed = 0

    def documents(self, split: str) -> Iterator[Document]:
        for number in range(self.count(split)):
            bits = np.random.Philox(np.random.SeedSequence([self.seed, number, *split.encode()]))
            document = self.draw(split, number, np.random.Generator(bits))
            yield document._replace(title=f"{split}-{number}")

    @abc.abstractmethod
    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        """Returns a document with tokens; `title` and `data` are empty."""

    def description(self, split: str) -> dict[str, Any]:
        settings = super().description(split)
        del settings["num_documents"], settings["num_held_out"]
        return settings | {"documents": self.count(split)}

    def count(self, split: str) -> int:
        return self.num_documents if split == "train" else self.num_held_out


@dataclass(eq=False, kw_only=True)
class GridTask(DrawnTask):
    """A task whose documents cycle through all pairs of a length and a number of facts.

    Args:
        lengths: of documents, in tokens; one or several.

    Attributes:
        facts: name of the setting with the number of facts, or with several.
        cells: all pairs of a length and a number of facts.
    """

    num_documents: Count = 10_000
    num_held_out: Count = 500
    lengths: Count | tuple[Count, ...] = 4096
    facts: ClassVar[str] = "num_facts"

    def __post_init__(self) -> None:
        self.cells = list(itertools.product(self._grid()["lengths"], self._grid()["num_facts"]))
        if not self.cells:
            name = type(self).__name__
            raise ValueError(f"{name}.lengths and {name}.{self.facts} need values.")

    def cell(self, number: int) -> tuple[int, int]:
        return self.cells[number % len(self.cells)]

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        settings.pop(self.facts, None)
        return settings | self._grid()

    def too_short(self, length: int, needed: int, what: str) -> ValueError:
        return ValueError(
            f"{type(self).__name__}.lengths = {length} is too short: {what} need {needed} tokens."
        )

    def _grid(self) -> dict[str, list[int]]:
        values = {"lengths": self.lengths, "num_facts": getattr(self, self.facts)}
        return {
            name: list(value) if isinstance(value, tuple | list) else [value]
            for name, value in values.items()
        }
