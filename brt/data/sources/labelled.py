"""The base of sources of labelled documents: texts with a class, or questions with answers.

Such a source makes tokens itself, because a question and its text are stored one after the other,
and the annotation of a stored document counts tokens:

    id          of the question or document; several answers of one id are one question
    label       the class, from 0
    labels      the classes, where a text may have several or none
    classes     names of all classes
    question    how many of the document's first tokens are the question, where there is one
    answers     texts that are right
    words       tokens of the first of them, and what the tokenizer puts behind a text
    kind        of answer: 0 a part of the text, 1 yes, 2 no
    spans       where the answer stands, in tokens of the text: first, and one behind the last
"""

import abc
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.data.sources.base import Document, Source, absolute
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary
from brt.storage.json_files import bad_text
from brt.storage.regular_files import open_regular


class Example(NamedTuple):
    """One labelled text.

    name: its id, or what names it in its file.
    text: what is read.
    question: read before it, in every segment; "" for none.
    label: number of its class; None for none.
    answers: texts that are right.
    kind: of the answer: 0 a part of the text, 1 yes, 2 no; None where spans are not asked for.
    spans: characters of the text that are the answer: first, and one behind the last.
    labels: numbers of its classes, where there may be several; None where there is one at most.
    """

    name: str
    text: str
    question: str = ""
    label: int | None = None
    answers: tuple[str, ...] = ()
    kind: int | None = None
    spans: tuple[tuple[int, int], ...] = ()
    labels: tuple[int, ...] | None = None


class LabelledSource(Source):
    """A source of labelled documents.

    Args:
        path: of the file or folder, `{split}` in it stands for the split's name; `~` and
            environment variables are expanded.
        vocabulary: of the tokens, a vocabulary or the string that names one; bind
            Corpus.vocabulary to None.
        splits: from a split's name here to its name there, where they differ.

    Attributes:
        vocabulary: as above.
        classes: names of the classes; empty where there are none.
    """

    vocabulary: Vocabulary
    classes: tuple[str, ...] = ()

    def __init__(self, path: str, vocabulary: Vocabulary | str, splits: dict[str, str] | None):
        self.path = path
        self.vocabulary = as_vocabulary(vocabulary)
        self.splits = dict(splits or {})

    @abc.abstractmethod
    def examples(self, split: str) -> Iterator[Example]:
        """Yields the examples of a split, in the same order every time."""

    def settings(self) -> dict[str, Any]:
        """Returns further settings that decide the documents, as JSON."""
        return {}

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents, with `path` as it was given."""
        return {
            "source": type(self).__name__,
            "split": split,
            "path": self.path,
            "splits": self.splits,
            "classes": list(self.classes),
            **self.settings(),
        }

    def documents(self, split: str) -> Iterator[Document]:
        """Yields the documents of a split, with their tokens and annotations.

        Raises:
            FileNotFoundError, ValueError: naming the file and the record.
        """
        for example in self.examples(split):
            yield self._document(example)

    def _document(self, example: Example) -> Document:
        question = self._encoded(example.question, example.name)
        found = self.vocabulary.spans(example.text)
        if found is None:
            text, characters = self._encoded(example.text, example.name), None
        else:
            text, characters = found
        if not len(text):
            raise ValueError(
                f"Document {example.name!r} of {self.path} has no text: remove it, because a "
                "model would have nothing to read."
            )
        annotation: dict[str, Any] = {"id": example.name}
        if example.question:
            annotation["question"] = len(question)
        if example.label is not None:
            annotation["label"] = example.label
            annotation["classes"] = len(self.classes)
        if example.labels is not None:
            annotation["labels"] = list(example.labels)
            annotation["classes"] = len(self.classes)
        if example.answers:
            annotation["answers"] = list(example.answers)
            words = self._encoded(example.answers[0], example.name).tolist()
            annotation["words"] = [*words, *self.vocabulary.frame.after]
        if example.kind is not None:
            annotation["kind"] = example.kind
            if characters is None and example.kind == 0:
                raise ValueError(
                    f"{type(self).__name__}.vocabulary = {self.vocabulary.name!r} does not tell "
                    "where its tokens stand in a text, which answers need: bind it to "
                    '"pretrained:FOLDER".'
                )
            if characters is not None:
                spans = (token_span(characters, *span) for span in example.spans)
                annotation["spans"] = [span for span in spans if span is not None]
        data = f"{example.question}\n{example.text}" if example.question else example.text
        tokens = np.concatenate([question, text])
        return Document(example.name, data.encode(), tokens, annotation=annotation)

    def _encoded(self, text: str, name: str) -> np.ndarray:
        return self.vocabulary.encode(text.encode(), name)

    def _file(self, split: str) -> str:
        """Path of a split's file.

        Raises:
            FileNotFoundError: there is none.
        """
        path = absolute(self.path.replace("{split}", self.splits.get(split, split)))
        if not os.path.isfile(path):
            name = type(self).__name__
            raise FileNotFoundError(
                f"No file is at {path}: bind {name}.path to where it is, with {{split}} for the "
                f"split's name, and {name}.splits where the name there is not {split!r}."
            )
        return path


def token_span(characters: np.ndarray, start: int, stop: int) -> tuple[int, int] | None:
    """Returns the tokens of a part of a text: first, and one behind the last; None for no token.

    Args:
        characters: int64 (tokens, 2), of each token, as of `Vocabulary.spans`.
        start, stop: first character, and one behind the last.
    """
    inside = (characters[:, 1] > start) & (characters[:, 0] < stop)
    found = np.flatnonzero(inside)
    if not len(found):
        return None
    return int(found[0]), int(found[-1]) + 1


def records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of a file, of one JSON object a line, or of one list of objects.

    Yields:
        Where the record is, for errors, and its keys.

    Raises:
        ValueError: a record is not JSON, or holds no keys; the file is empty.
    """
    with open_regular(path) as file:
        first = file.read(64).lstrip()[:1]
        file.seek(0)
        if first == b"[":
            found = _json(file.read(), path)
            for number, record in enumerate(found):
                yield _keys(record, f"{path}, record {number}")
            return
        empty = True
        for number, line in enumerate(file, 1):
            if line.strip():
                empty = False
                where = f"{path}, line {number}"
                yield _keys(_json(line, where), where)
    if empty:
        raise ValueError(f"{path} holds no record: bind the path to another file.")


def text_of(record: dict[str, Any], key: str, where: str, empty: bool = False) -> str:
    """Returns the text at a key.

    Raises:
        ValueError: there is none, or it is empty, unless `empty` allows that.
    """
    value = record.get(key)
    if not isinstance(value, str) or not (value.strip() or empty):
        has = "has no key" if key not in record else "has no text at"
        raise ValueError(f"{where} {has} {key!r}: correct the record or the name of the key.")
    return value


def paragraphs_of(record: dict[str, Any], key: str, where: str) -> str:
    """Returns the text at a key, or the texts of a list there, a line each.

    Raises:
        ValueError: as `text_of`.
    """
    value = record.get(key)
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        record = {key: "\n".join(value)}
    return text_of(record, key, where)


def class_number(value: Any, classes: Sequence[str], where: str) -> int:
    """Returns the number of a class by its name, or by its number as text.

    Raises:
        ValueError: it is none of the classes.
    """
    name = json.dumps(value) if isinstance(value, (bool, int)) else value
    if name not in classes:
        raise ValueError(
            f"{where} has label {value!r}, which is none of the classes {', '.join(classes)}: "
            "bind the classes of the source to all labels of its files."
        )
    return list(classes).index(name)


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}): copy the file again.") from None


def _keys(record: Any, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(record, dict):
        raise ValueError(f"{where} is no record with keys: correct it.")
    if wrong := bad_text(record, nul_is_bad=False):
        raise ValueError(f"{where} is damaged, as {wrong}: correct the record.")
    return where, record
