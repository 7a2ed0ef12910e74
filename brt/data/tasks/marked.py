"""A task with two classes: one mark near the beginning of a text determines its class.

All other tokens are filler, independent of the class.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from brt.checks import Count, Symbols, configurable
from brt.data.sources.base import Document
from brt.data.tasks.drawn import DrawnTask
from brt.data.vocabularies.base import Frame
from brt.data.vocabularies.symbols import SymbolVocabulary

OPEN, END = 1, 2
"""Ids before and after a text; 0 is padding."""
WORDS = ("padding", "open", "end", "no", "yes", "mark_no", "mark_yes")
CLASSES = ("no", "yes")


@configurable
@dataclass(eq=False, kw_only=True)
class MarkTask(DrawnTask):
    """Marked texts with their class, and with its name as an answer.

    Args:
        mark_within: the mark is among this many first tokens.
        opened: whether a token comes before a text, as [CLS] does; False for T5.
    """

    num_documents: Count = 20_000
    num_held_out: Count = 4000
    length: Count
    mark_within: Count
    num_fillers: Symbols = 20
    opened: bool = True
    classes = CLASSES

    def __post_init__(self) -> None:
        if self.mark_within > self.length:
            raise ValueError(
                f"MarkTask.mark_within = {self.mark_within} must not exceed MarkTask.length = "
                f"{self.length}."
            )
        symbols = [*WORDS, *(f"f{number}" for number in range(self.num_fillers))]
        self.vocabulary = SymbolVocabulary(
            f"marked:{self.num_fillers},{self.opened}",
            symbols,
            {name: number for number, name in enumerate(WORDS[:3])},
            json.dumps([symbols, self.opened]),
            frame=Frame((OPEN,) if self.opened else (), (END,)),
        )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "classes": CLASSES}

    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        tokens = len(WORDS) + random.integers(0, self.num_fillers, self.length, np.int32)
        label = int(random.integers(len(CLASSES)))
        tokens[random.integers(self.mark_within)] = WORDS.index(f"mark_{CLASSES[label]}")
        annotation = {
            "id": f"{split}-{number}",
            "label": label,
            "classes": len(CLASSES),
            "answers": [CLASSES[label]],
            "words": [WORDS.index(CLASSES[label]), END],
        }
        return Document("", tokens=tokens, annotation=annotation)
