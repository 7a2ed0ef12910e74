"""Answers in a document: the scored tokens, and the statements that they depend on.

Tasks write them to the annotation of a document.
"""

from typing import Any, NamedTuple


class Answer(NamedTuple):
    """One answer.

    start, stop: its tokens in the document, the first and one after the last.
    needed: last token of the earliest statement that it depends on; None for the whole text.
    rank: number of words of its kind that the statements name after it; None: unknown. A rule that
        always names the word of one rank does not read the question.
    """

    start: int
    stop: int
    needed: int | None = None
    rank: int | None = None

    @property
    def distance(self) -> int | None:
        return None if self.needed is None else self.start - self.needed


class Answers(NamedTuple):
    """The answers of a document.

    length: tokens of its cell, of the task's `lengths`.
    facts: number of statements.
    """

    length: int
    facts: int
    answers: list[Answer]

    def annotation(self) -> dict[str, Any]:
        answers = [list(a[:3] if a.rank is None else a) for a in self.answers]
        return {**self._asdict(), "answers": answers}


def answers_of(annotation: dict[str, Any] | None) -> Answers | None:
    if annotation is None or "answers" not in annotation or "length" not in annotation:
        return None
    answers = [Answer(*answer) for answer in annotation["answers"]]
    return Answers(annotation["length"], annotation["facts"], answers)
