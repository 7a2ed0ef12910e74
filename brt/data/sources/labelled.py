"""Labelled documents: texts with a class, or questions with answers.

A question and its text are one document, whose annotation counts tokens:

    id          of the question or document; several answers of one id are one question
    label       the class, from 0; or labels, the classes, if there may be several or none
    classes     number of all classes
    question    number of tokens of the question, which come first
    answers     correct texts
    words       tokens of the first answer, with the tokens after a text
    kind        of answer: 0 a part of the text, 1 yes, 2 no
    spans       of the answer, in tokens of the text: first, and one after the last
"""

import abc
import codecs
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from brt.checks import Name
from brt.data.sources.base import Document, Source, absolute
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary
from brt.storage.json_files import bad_text, parse_json
from brt.storage.regular_files import open_regular


class Example(NamedTuple):
    """One labelled text; lengths are in characters, other fields as of the annotation.

    question: comes before the text in every segment; "" for none.
    """

    name: str
    text: str
    question: str = ""
    label: int | None = None
    answers: tuple[str, ...] = ()
    kind: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] | None = None


@dataclass(eq=False)
class LabelledSource(Source):
    """A source of labelled documents.

    Args:
        path: of the file or folder; `{split}` is replaced by the name of the split.
        vocabulary: of the tokens, or its name; bind Corpus.vocabulary to None.
        splits: from the name of a split to its name in the path, if they differ.
    """

    path: Name
    vocabulary: Vocabulary | str = field()
    splits: dict[str, str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.vocabulary = as_vocabulary(self.vocabulary)
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes):
            raise ValueError(
                f"{type(self).__name__}.classes = {self.classes!r} must be two or more different "
                'texts, such as ("no", "yes").'
            )

    @abc.abstractmethod
    def examples(self, split: str) -> Iterator[Example]: ...

    def settings(self) -> dict[str, Any]:
        named = {"splits": self.splits or {}, "classes": list(self.classes or ())}
        return super().settings() | named

    def documents(self, split: str) -> Iterator[Document]:
        return map(self._document, self.examples(split))

    def _document(self, example: Example) -> Document:
        vocabulary = as_vocabulary(self.vocabulary)
        question, text, answer = (
            vocabulary.encode(text.encode(), example.name)
            for text in (example.question, example.text, "".join(example.answers[:1]))
        )
        if not len(text):
            raise ValueError(
                f"Document {example.name!r} of {self.path} has no text: remove it, because a "
                "model would have nothing to read."
            )
        annotation: dict[str, Any] = {"id": example.name}
        if example.question:
            annotation["question"] = len(question)
        if example.label is not None:
            annotation |= {"label": example.label, "classes": len(self.classes or ())}
        if example.labels is not None:
            annotation |= {"labels": list(example.labels), "classes": len(self.classes or ())}
        if example.answers:
            annotation["answers"] = list(example.answers)
            annotation["words"] = [*answer.tolist(), *vocabulary.frame.after]
        if example.kind is not None:
            annotation["kind"] = example.kind
            if (spans := vocabulary.spans(example.text)) is not None:
                text, characters = spans
                tokens_of = (token_span(characters, *span) for span in example.spans)
                annotation["spans"] = [span for span in tokens_of if span is not None]
            elif example.kind == 0:
                raise ValueError(
                    f"{type(self).__name__}.vocabulary = {vocabulary.name!r} does not tell where "
                    "its tokens stand in a text, which answers need: bind it to "
                    '"pretrained:FOLDER".'
                )
        data = f"{example.question}\n{example.text}" if example.question else example.text
        tokens = np.concatenate([question, text])
        return Document(example.name, data.encode(), tokens, annotation=annotation)

    def _file(self, split: str) -> str:
        path = absolute(self.path.replace("{split}", self.original_split(split)))
        if not os.path.isfile(path):
            name = type(self).__name__
            raise FileNotFoundError(
                f"No file is at {path}: bind {name}.path to it, with {{split}} for the name of the "
                f"split, and {name}.splits if its name there is not {split!r}."
            )
        return path


def token_span(characters: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """Returns the tokens of a part of a text: first, and one after the last; None for no token."""
    inside = np.flatnonzero((characters[:, 1] > start) & (characters[:, 0] < stop))
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else None


def records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields location (for messages) and content of JSON objects: one per line, or a list."""
    count = 0
    for where, record in _located(path):
        count += 1
        if wrong := bad_text(record, nul_is_bad=False):
            raise ValueError(f"{where} is damaged, as {wrong}: correct the record.")
        yield where, record
    if not count:
        raise ValueError(f"{path} holds no record: bind the path to another file.")


def _located(path):
    advice = "copy the file again"
    with open_regular(path) as file:
        first = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        file.seek(0)
        if first == b"[":
            for number, record in enumerate(parse_json(file.read(), list[dict], path, advice)):
                yield f"{path}, record {number}", record
            return
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, parse_json(line, dict, where, advice)


def text_of(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        has = "has no key" if key not in record else "has no text at"
        raise ValueError(f"{where} {has} {key!r}: correct the record or the name of the key.")
    return value


def paragraphs_of(record: dict[str, Any], key: str, where: str) -> str:
    """Returns the text at a key, or the lines of a list of texts there."""
    value = record.get(key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        record = {key: "\n".join(value)}
    return text_of(record, key, where)


def class_number(value: Any, classes: Sequence[str], where: str) -> int:
    """Returns the number of a class, which a file has as a name, a number or a truth value."""
    name = json.dumps(value) if isinstance(value, (bool, int)) else value
    if name not in classes:
        raise ValueError(
            f"{where} has label {value!r}, which is none of the classes {', '.join(classes)}: "
            "bind the classes of the source to all labels of its files."
        )
    return list(classes).index(name)
