"""Questions about long texts, with their answers: SCROLLS, HotpotQA and MuSiQue, in their formats.

Sources: Shaham et al. 2022, SCROLLS, arXiv:2201.03533; Yang et al. 2018, HotpotQA,
arXiv:1809.09600; Trivedi et al. 2022, MuSiQue, arXiv:2108.00573.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gin

from brt.checks import Count, Name, Seed, configurable
from brt.data.order import permutation
from brt.data.sources.classification import check_classes
from brt.data.sources.labelled import Example, LabelledSource, class_number, records, text_of
from brt.data.vocabularies.base import Vocabulary

YES_NO = {"yes": 1, "no": 2}
"""Kinds of answers that are no part of the text."""


@configurable
class Scrolls(LabelledSource):
    """One task of SCROLLS, such as ContractNLI, QuALITY or Qasper: an input and what to write.

    A question that stands at the beginning of an input is text like the rest. In training every
    record is a document; elsewhere records of one `id` are one, with several answers.

    Args:
        path: of a split's file of one JSON record a line, with `id`, `input` and `output`.
        vocabulary: as of `LabelledSource`.
        classes: all outputs, where these are the names of classes, as in ContractNLI.
        splits: as of `LabelledSource`.

    Raises:
        ValueError: from `documents`, a record without an output.
    """

    def __init__(
        self,
        path: Name = gin.REQUIRED,
        vocabulary: Vocabulary | str = gin.REQUIRED,
        classes: Sequence[str] | None = None,
        splits: dict[str, str] | None = None,
    ):
        super().__init__(path, vocabulary, splits)
        if classes is not None:
            check_classes(classes, "Scrolls")
            self.classes = tuple(classes)

    def examples(self, split: str) -> Iterator[Example]:
        found = self._records(split)
        return found if split == "train" else iter(_joined(found))

    def _records(self, split: str) -> Iterator[Example]:
        for where, record in records(self._file(split)):
            if record.get("output") is None:
                raise ValueError(
                    f"{where} has no output, as in the published test split: read another split."
                )
            answer = text_of(record, "output", where)
            label = None
            if self.classes:
                label = class_number(answer.strip(), self.classes, where)
            text = text_of(record, "input", where)
            name = text_of(record, "id", where)
            yield Example(name, text, label=label, answers=(answer,))


def _joined(examples: Iterable[Example]) -> list[Example]:
    """Joins examples of one name, whose answers are all right."""
    found: dict[str, Example] = {}
    for example in examples:
        known = found.setdefault(example.name, example)
        if known is not example:
            answers = dict.fromkeys((*known.answers, *example.answers))
            found[example.name] = known._replace(answers=tuple(answers))
    return list(found.values())


class Paragraph(NamedTuple):
    """A part of a question's context; `supports` where the answer follows from it."""

    title: str
    text: str
    supports: bool


class _Questions(LabelledSource):
    """The base of both sources of questions with a context of paragraphs."""

    def __init__(
        self,
        path: str,
        vocabulary: Vocabulary | str,
        questions: int | None,
        seed: int,
        splits: dict[str, str] | None,
    ):
        super().__init__(path, vocabulary, splits)
        if questions is not None and questions < 1:
            raise ValueError(f"{type(self).__name__}.questions = {questions} must be at least 1.")
        self.questions = questions
        self.seed = seed

    def settings(self) -> dict:
        return {"questions": self.questions, "seed": self.seed}

    def examples(self, split: str) -> Iterator[Example]:
        found = [
            (where, record) for where, record in records(self._file(split)) if self.asked(record)
        ]
        if split == "train" and self.questions is not None and self.questions < len(found):
            order = permutation(len(found), self.seed, 0, 0, 7)[: self.questions]
            found = [found[number] for number in sorted(order.tolist())]
        for where, record in found:
            yield self.example(where, record)

    def asked(self, record: dict[str, Any]) -> bool:
        """Returns whether a question is among those that are read."""
        return True

    def example(self, where: str, record: dict[str, Any]) -> Example:
        """Returns the example of a record."""
        raise NotImplementedError


@configurable
class HotpotQA(_Questions):
    """HotpotQA in its distractor setting: ten paragraphs, two of which tell the answer.

    Args:
        path: of a split's file, hotpot_train_v1.1.json or hotpot_dev_distractor_v1.json: bind
            `splits` to what stands in the place of `{split}`.
        vocabulary: as of `LabelledSource`.
        questions: training questions that are drawn; None for all.
        seed: of what is drawn.
        splits: as of `LabelledSource`.
    """

    def __init__(
        self,
        path: Name = gin.REQUIRED,
        vocabulary: Vocabulary | str = gin.REQUIRED,
        questions: Count | None = None,
        seed: Seed = 0,
        splits: dict[str, str] | None = None,
    ):
        super().__init__(path, vocabulary, questions, seed, splits)

    def example(self, where: str, record: dict[str, Any]) -> Example:
        try:
            supporting = {title for title, _ in record["supporting_facts"]}
            paragraphs = [
                Paragraph(title, "".join(sentences), title in supporting)
                for title, sentences in record["context"]
            ]
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{where} has no context and supporting_facts in HotpotQA's form, pairs of a title "
                "and sentences, or of a title and a number: use its distractor files."
            ) from None
        answer = text_of(record, "answer", where)
        name = text_of(record, "_id", where)
        return question_example(name, text_of(record, "question", where), paragraphs, (answer,))


@configurable
class MuSiQue(_Questions):
    """MuSiQue: twenty paragraphs, two to four of which tell the answer.

    Questions that the paragraphs do not answer are left out.

    Args:
        path: of a split's file, as in musique_ans_v1.0_{split}.jsonl.
        vocabulary: as of `LabelledSource`.
        questions, seed, splits: as of `HotpotQA`.
    """

    def __init__(
        self,
        path: Name = gin.REQUIRED,
        vocabulary: Vocabulary | str = gin.REQUIRED,
        questions: Count | None = None,
        seed: Seed = 0,
        splits: dict[str, str] | None = None,
    ):
        super().__init__(path, vocabulary, questions, seed, splits)

    def asked(self, record: dict[str, Any]) -> bool:
        return record.get("answerable", True) is not False

    def example(self, where: str, record: dict[str, Any]) -> Example:
        try:
            paragraphs = [
                Paragraph(part["title"], part["paragraph_text"], bool(part["is_supporting"]))
                for part in record["paragraphs"]
            ]
            aliases = [str(alias) for alias in record.get("answer_aliases") or ()]
        except (KeyError, TypeError):
            raise ValueError(
                f"{where} has no paragraphs in MuSiQue's form, each with title, paragraph_text and "
                "is_supporting: use its files."
            ) from None
        answers = (text_of(record, "answer", where), *aliases)
        name = text_of(record, "id", where)
        return question_example(name, text_of(record, "question", where), paragraphs, answers)


def question_example(
    name: str, question: str, paragraphs: Sequence[Paragraph], answers: Sequence[str]
) -> Example:
    """Returns the example of a question about paragraphs, each read as its title and its text.

    The answer is looked for where it is told, then anywhere, then whatever the case of its letters.
    """
    parts = [f"{part.title}\n{part.text}" for part in paragraphs]
    text = "\n".join(parts)
    kind = YES_NO.get(answers[0].strip().lower(), 0)
    spans: list[tuple[int, int]] = []
    if kind == 0:
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part) + 1)
        told = [
            (start, start + len(part))
            for start, part, paragraph in zip(starts, parts, paragraphs)
            if paragraph.supports
        ]
        everywhere = [(0, len(text))]
        answer = answers[0].strip()
        spans = (
            _places(text, answer, told)
            or _places(text, answer, everywhere)
            or _places(text, answer, everywhere, re.IGNORECASE)
        )
    return Example(name, text, question.strip(), None, tuple(answers), kind, tuple(spans))


def _places(
    text: str, answer: str, ranges: Sequence[tuple[int, int]], flags: int = 0
) -> list[tuple[int, int]]:
    """Returns where an answer stands as words of their own, within some ranges of a text."""
    pattern = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", flags)
    found = []
    for start, stop in ranges:
        found += [match.span() for match in pattern.finditer(text, start, stop)]
    return found
