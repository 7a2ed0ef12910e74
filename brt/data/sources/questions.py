"""Questions about long texts: SCROLLS, HotpotQA and MuSiQue, in their formats.

Sources: Shaham et al. 2022, SCROLLS, arXiv:2201.03533; Yang et al. 2018, HotpotQA,
arXiv:1809.09600; Trivedi et al. 2022, MuSiQue, arXiv:2108.00573.
"""

import abc
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from brt.checks import Count, Seed, configurable
from brt.data.order import permutation
from brt.data.sources.labelled import Example, LabelledSource, class_number, records, text_of

YES_NO = {"yes": 1, "no": 2}


@configurable
@dataclass(eq=False)
class Scrolls(LabelledSource):
    """One task of SCROLLS: JSON records with `id`, `input` (question and text) and `output`.

    In training every record is a document; elsewhere records of one `id` are one document with
    several answers.

    Args:
        classes: all outputs, if they are the names of classes, as in ContractNLI.
    """

    classes: Sequence[str] | None = None

    def examples(self, split: str) -> Iterator[Example]:
        examples = self._records(split)
        if split == "train":
            return examples
        joined: dict[str, Example] = {}
        for example in examples:
            first = joined.setdefault(example.name, example)
            answers = tuple(dict.fromkeys((*first.answers, *example.answers)))
            joined[example.name] = first._replace(answers=answers)
        return iter(joined.values())

    def _records(self, split: str) -> Iterator[Example]:
        for where, record in records(self._file(split)):
            if record.get("output") is None:
                raise ValueError(
                    f"{where} has no output, as in the published test split: read another split."
                )
            name, text, answer = (text_of(record, key, where) for key in ("id", "input", "output"))
            label = class_number(answer.strip(), self.classes, where) if self.classes else None
            yield Example(name, text, label=label, answers=(answer,))


class Paragraph(NamedTuple):
    title: str
    text: str
    supports: bool


@dataclass(eq=False)
class _Questions(LabelledSource):
    questions: Count | None = None
    seed: Seed = 0

    def examples(self, split: str) -> Iterator[Example]:
        used = [record for record in records(self._file(split)) if self.is_used(record[1])]
        if split == "train" and self.questions is not None and self.questions < len(used):
            order = permutation(len(used), self.seed, 0, 0, 7)[: self.questions]
            used = [used[number] for number in sorted(order.tolist())]
        return itertools.starmap(self.example, used)

    def is_used(self, record: dict[str, Any]) -> bool:
        return True

    @abc.abstractmethod
    def example(self, where: str, record: dict[str, Any]) -> Example: ...


@configurable
@dataclass(eq=False)
class HotpotQA(_Questions):
    """HotpotQA in its distractor setting: ten paragraphs, two of which contain the answer.

    Args:
        path: of hotpot_train_v1.1.json or hotpot_dev_distractor_v1.json, with `{split}` for
            train_v1.1 and so on, to which `splits` maps.
        vocabulary, splits: as of `LabelledSource`.
        questions: number of training questions that are drawn; None for all.
        seed: of the draw.
    """

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
@dataclass(eq=False)
class MuSiQue(_Questions):
    """MuSiQue: twenty paragraphs, two to four of which contain the answer; skips unanswerable
    questions.

    Args:
        path: of the file of a split, as in musique_ans_v1.0_{split}.jsonl.
        vocabulary, questions, seed, splits: as of `HotpotQA`.
    """

    def is_used(self, record: dict[str, Any]) -> bool:
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
    """Returns the example of a question about paragraphs, each with its title.

    Searches the answer in the supporting paragraphs, then anywhere, then in any case.
    """
    parts = [f"{part.title}\n{part.text}" for part in paragraphs]
    text = "\n".join(parts)
    answer = answers[0].strip()
    kind = YES_NO.get(answer.lower(), 0)
    spans: list[tuple[int, int]] = []
    if kind == 0:
        ends = itertools.accumulate(len(part) + 1 for part in parts)
        supporting = [
            (end - len(part) - 1, end - 1)
            for end, part, paragraph in zip(ends, parts, paragraphs)
            if paragraph.supports
        ]
        everywhere = [(0, len(text))]
        spans = (
            _positions(text, answer, supporting)
            or _positions(text, answer, everywhere)
            or _positions(text, answer, everywhere, re.IGNORECASE)
        )
    return Example(name, text, question.strip(), None, tuple(answers), kind, tuple(spans))


def _positions(
    text: str, answer: str, ranges: Sequence[tuple[int, int]], flags: int = 0
) -> list[tuple[int, int]]:
    pattern = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", flags)
    return [match.span() for part in ranges for match in pattern.finditer(text, *part)]
