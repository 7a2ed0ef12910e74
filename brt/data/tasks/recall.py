"""The recall task: facts are stated early in a document, and each is asked for once, much later.

A fact is the tokens DEFINE key value; a question is ASK key, and the next token, the answer, is the
value. All other tokens are filler. The distance of an answer is its position minus that of the
value in the definition.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Count, CountFrom0, Symbols, configurable
from brt.data.sources.base import Document
from brt.data.tasks.drawn import DrawnTask
from brt.data.vocabularies.symbols import SymbolVocabulary

DEFINE, ASK, FIRST_KEY = 0, 1, 2
"""Ids; keys, values and fillers follow one another."""


@configurable
@dataclass(eq=False, kw_only=True)
class RecallTask(DrawnTask):
    """Recall documents; loss weights are 1 on answers and 0 elsewhere.

    The range of distances is divided, on a logarithmic scale, into num_facts equal parts, one for
    each fact.

    Args:
        document_length: in tokens, or a pair (shortest, longest) to draw lengths from.
        min_distance, max_distance: range of the distances, in tokens.
    """

    num_documents: Count = 2000
    num_held_out: Count = 100
    document_length: Count | tuple[Count, Count] = 1024
    num_facts: Count = 4
    num_keys: Symbols = 16
    num_values: Symbols = 16
    num_fillers: Symbols = 16
    min_distance: CountFrom0 = 8
    max_distance: CountFrom0 = 768

    def __post_init__(self) -> None:
        shortest, longest = self.lengths = np.broadcast_to(self.document_length, 2).tolist()
        if self.num_keys < self.num_facts:
            raise ValueError(
                f"RecallTask.num_keys = {self.num_keys} must be at least num_facts = "
                f"{self.num_facts}, because each fact of a document needs its own key."
            )
        if not 3 <= self.min_distance <= self.max_distance:
            raise ValueError(
                f"RecallTask.min_distance = {self.min_distance} must be at least 3, and "
                f"max_distance = {self.max_distance} not below it."
            )
        needed = self.max_distance + 3 + 20 * (self.num_facts - 1)
        if not needed <= shortest <= longest:
            raise ValueError(
                f"RecallTask.document_length = {self.document_length} is too short: "
                f"{self.num_facts} facts and distances up to {self.max_distance} need at least "
                f"{needed} tokens."
            )
        symbols = [
            *("define", "ask"),
            *(f"k{key}" for key in range(self.num_keys)),
            *(f"v{value}" for value in range(self.num_values)),
            *("." for _ in range(self.num_fillers)),
        ]
        name = f"recall:{self.num_keys},{self.num_values},{self.num_fillers}"
        self.vocabulary = SymbolVocabulary(name, symbols, {"define": DEFINE, "ask": ASK})

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "document_length": self.lengths}

    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        length = int(random.integers(self.lengths[0], self.lengths[1], endpoint=True))
        first_value = FIRST_KEY + self.num_keys
        first_filler = first_value + self.num_values
        tokens = first_filler + random.integers(0, self.num_fillers, length, np.int32)
        keys = FIRST_KEY + random.permutation(self.num_keys)[: self.num_facts]
        values = first_value + random.integers(0, self.num_values, self.num_facts)
        weights = np.zeros(length, np.float32)
        free = np.ones(length, bool)
        for key, value, distance in zip(keys, values, self._distances(random)):
            defined = self._free_position(random, free, distance)
            for position, opening in ((defined, DEFINE), (defined + distance, ASK)):
                tokens[position - 2 : position + 1] = opening, key, value
                free[position - 2 : position + 1] = False
            weights[defined + distance] = 1
        return Document("", tokens=tokens, weights=weights)

    def _distances(self, random: np.random.Generator) -> np.ndarray:
        shares = (np.arange(self.num_facts) + random.random(self.num_facts)) / self.num_facts
        ratio = (self.max_distance + 1) / self.min_distance
        distances = np.floor(self.min_distance * ratio**shares).astype(int)
        return np.minimum(distances, self.max_distance)

    def _free_position(self, random: np.random.Generator, free: np.ndarray, distance: int) -> int:
        ends = free[2:] & free[1:-1] & free[:-2]  # the two positions before are free, too
        # Leaves room for the longest distance.
        last = len(free) - self.max_distance - 2
        # A triple blocks at most 5 positions, as do its counterpart and, shifted by the distance,
        # both: 20 per fact. The document is long enough for one more.
        return 2 + int(random.choice(np.flatnonzero(ends[:last] & ends[distance:][:last])))


def answer_distances(tokens: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns positions and distances of the answers in a whole document: int64 (answers,) each."""
    tokens = np.asarray(tokens)
    defined = {int(tokens[at + 1]): at + 2 for at in np.flatnonzero(tokens == DEFINE).tolist()}
    positions = np.flatnonzero(tokens == ASK) + 2
    distances = []
    for position in positions.tolist():
        key = int(tokens[position - 1])
        if defined.get(key, position) >= position:
            raise ValueError(
                f"Token {position - 1} asks for key {key}, which is not defined before it: give "
                "one whole document of RecallTask."
            )
        distances.append(position - defined[key])
    return positions, np.array(distances, np.int64)
