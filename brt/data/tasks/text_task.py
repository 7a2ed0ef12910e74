"""The base of tasks in text: a prompt, statements among filler, a question and scored answers.

The parts of a document are encoded one by one, so that answers begin and end between tokens.
"""

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brt.checks import NotNegative
from brt.data.sources.base import Document
from brt.data.tasks.answers import Answer, Answers
from brt.data.tasks.drawn import GridTask
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary

Ids = np.ndarray


class Prompt(NamedTuple):
    """A document in parts.

    answers: each with the index of the earliest part that it needs; None for the whole context.
    facts: number of statements.
    rank: as of an `Answer`.
    """

    parts: list[Ids]
    question: str
    answers: Sequence[tuple[str, int | None]]
    facts: int
    rank: int | None = None


@dataclass(eq=False, kw_only=True)
class TextTask(GridTask):
    """A task in text; documents have at most the length of their cell, and are never cut.

    Args:
        text_weight: loss weight of all tokens outside the answers.
    """

    vocabulary: Vocabulary | str = "bytes"
    text_weight: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.vocabulary = as_vocabulary(self.vocabulary)

    @abc.abstractmethod
    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        """Draws a document of at most `length` tokens, with as much filler as fits."""

    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        length, facts = self.cell(number)
        prompt = self.prompt(length, facts, split, random)
        tail = list(self._tail(prompt.question, [text for text, _ in prompt.answers]))
        tokens = np.concatenate([*prompt.parts, *tail])
        ends = np.cumsum([len(part) for part in (*prompt.parts, *tail)]).tolist()
        if len(tokens) > length:
            raise self.too_short(length, len(tokens), f"{facts} facts and the question")
        weights = np.full(len(tokens), self.text_weight, np.float32)
        answers = []
        for index, (_, part) in enumerate(prompt.answers):
            at = len(prompt.parts) + 1 + 2 * index
            needed = None if part is None else ends[part] - 1
            answers.append(Answer(ends[at - 1], ends[at], needed, prompt.rank))
            weights[ends[at - 1] : ends[at]] = 1
        annotation = Answers(length, prompt.facts, answers).annotation()
        return Document("", tokens=tokens, weights=weights, annotation=annotation)

    def room(
        self, length: int, statements: list[Ids], question: str, answers: list[str], what: str
    ) -> int:
        """Returns the tokens left for filler; `what` names the statements in the error of none."""
        needed = sum(map(len, (*statements, *self._tail(question, answers))))
        if needed > length:
            raise self.too_short(length, needed, f"{what} and the question")
        return length - needed

    def _tail(self, question: str, answers: list[str]) -> Iterator[Ids]:
        yield self.ids(question)
        for index, answer in enumerate(answers):
            yield self.ids(f" {answer}")
            yield self.ids("." if index == len(answers) - 1 else ",")

    @functools.cached_property
    def ids(self) -> Callable[[str], Ids]:
        vocabulary = as_vocabulary(self.vocabulary)
        return functools.lru_cache(2**12)(lambda text: vocabulary.encode(text.encode(), text))


def scattered(
    random: np.random.Generator, statements: list[Ids], filler: list[Ids]
) -> tuple[list[Ids], list[int]]:
    """Puts statements at random positions between filler, in their order.

    Returns:
        All parts, and the number of each statement among them.
    """
    at = np.sort(random.integers(0, len(filler), len(statements), endpoint=True))
    numbers = at + np.arange(len(statements))
    parts, rest, own = [], iter(filler), dict(zip(numbers.tolist(), statements))
    for number in range(len(filler) + len(statements)):
        parts.append(own[number] if number in own else next(rest))
    return parts, numbers.tolist()


def new_word(random: np.random.Generator, used: set[str]) -> str:
    while True:
        consonants = random.integers(0, 16, 3)
        vowels = random.integers(0, 5, 3)
        word = "".join("bdfghjklmnprstvz"[c] + "aeiou"[v] for c, v in zip(consonants, vowels))
        if word not in used:
            used.add(word)
            return word
