"""The base of tasks whose documents are drawn one by one."""

import abc
from collections.abc import Iterator

import numpy as np

from brt.data.sources.base import Document, Source


class DrawnTask(Source):
    """Documents that are a function of (seed, split, number) and the settings.

    `num_documents` of split `train`, and `num_held_out` of every other split.
    """

    def __init__(self, num_documents: int, num_held_out: int, seed: int, settings: dict):
        self.num_documents = num_documents
        self.num_held_out = num_held_out
        self.seed = seed
        self._settings = settings

    def documents(self, split: str) -> Iterator[Document]:
        for number in range(self.count(split)):
            bits = np.random.Philox(np.random.SeedSequence([self.seed, number, *split.encode()]))
            document = self.draw(split, number, np.random.Generator(bits))
            yield document._replace(title=f"{split}-{number}")

    @abc.abstractmethod
    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        """Returns a document with tokens; `title` and `data` are empty."""

    def description(self, split: str) -> dict:
        counts = {"source": type(self).__name__, "split": split, "documents": self.count(split)}
        return counts | self._settings | {"seed": self.seed}

    def count(self, split: str) -> int:
        return self.num_documents if split == "train" else self.num_held_out
