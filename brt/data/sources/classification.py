"""Texts with classes: JSON records, and Hyperpartisan news.

Source: Kiesel et al. 2019, SemEval-2019 task 4, for the format and the labels of Hyperpartisan.
"""

import glob
import json
import os
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from absl import logging

from brt.checks import Seed, configurable
from brt.data.order import permutation
from brt.data.sources.base import absolute, check_known_split
from brt.data.sources.labelled import (
    Example,
    LabelledSource,
    class_number,
    paragraphs_of,
    records,
    text_of,
)
from brt.storage.regular_files import open_regular

SPLITS = ("train", "validation", "test")
PUBLISHED = 645
HELD_OUT = {"test": 65, "validation": 64}
"""Of the 645 published articles; 516 are for training (Longformer, appendix)."""


@configurable
@dataclass(eq=False)
class LabelledTexts(LabelledSource):
    """Texts with one class or several, in files of JSON records.

    Args:
        classes: all labels, by number; numbers as texts, as in ("0", "1").
        text_key, label_key: keys of a record; a text may be a list of paragraphs.
        second_key: of a second text, which follows the first and the tokenizer's separator.
        several: whether a label is a list of classes, which may be empty.
    """

    classes: Sequence[str] = field()
    text_key: str = "text"
    label_key: str = "label"
    second_key: str | None = None
    several: bool = False

    def examples(self, split: str) -> Iterator[Example]:
        path = self._file(split)
        for number, (where, record) in enumerate(records(path)):
            if self.label_key not in record:
                raise ValueError(
                    f"{where} has no key {self.label_key!r}: bind LabelledTexts.label_key."
                )
            labels = self._labels(record[self.label_key], where)
            texts = [paragraphs_of(record, self.text_key, where)]
            if self.second_key is not None:
                texts.append(paragraphs_of(record, self.second_key, where))
            text, question = texts[-1], texts[0] if len(texts) == 2 else ""
            name = str(record.get("id", f"{split}-{number}"))
            if self.several:
                yield Example(name, text, question, labels=labels)
            else:
                yield Example(name, text, question, labels[0], answers=(self.classes[labels[0]],))

    def _labels(self, value: Any, where: str) -> tuple[int, ...]:
        if not self.several:
            return (class_number(value, self.classes, where),)
        if not isinstance(value, list):
            raise ValueError(
                f"{where} has {value!r} at {self.label_key!r}, and LabelledTexts.several = True "
                "takes a list of classes: correct the record or the binding."
            )
        return tuple(sorted({class_number(one, self.classes, where) for one in value}))


@configurable
@dataclass(eq=False)
class Hyperpartisan(LabelledSource):
    """Hyperpartisan news, by article: 645 articles, 238 of them hyperpartisan.

    Args:
        path: the folder of the two published XML files; or a file of JSON records with `text`,
            `label` and, unless the path has `{split}`, `split`.
        vocabulary, splits: as of `LabelledSource`; "validation" may be "dev" in a file.
        split_file: JSON, from splits to lists of ids of articles, such as hp-splits.json of
            Longformer's authors. None draws as many by `seed`.
    """

    classes = ("false", "true")
    split_file: str | None = None
    seed: Seed = 0
    title: bool = True

    def examples(self, split: str) -> Iterator[Example]:
        check_known_split(self, split, SPLITS)
        if self.path.endswith((".json", ".jsonl")):
            yield from self._of_records(split)
        else:
            articles = self._articles()
            yield from (articles[name] for name in self._chosen(split, list(articles)))

    def _of_records(self, split: str) -> list[Example]:
        path = self._file(split)
        names = (split, self.original_split(split), *["dev"] * (split == "validation"))
        examples = []
        for number, (where, record) in enumerate(records(path)):
            if "{split}" not in self.path and text_of(record, "split", where) not in names:
                continue
            label = class_number(record.get("label"), (*self.classes, "0", "1"), where) % 2
            name = str(record.get("id", number))
            examples.append(self._example(name, text_of(record, "text", where), label))
        if not examples:
            raise ValueError(f"{path} has no record whose 'split' is {split!r}: add some.")
        return examples

    def _example(self, name: str, text: str, label: int) -> Example:
        return Example(name, text, label=label, answers=(self.classes[label],))

    def _articles(self) -> dict[str, Example]:
        folder = absolute(self.path)
        articles, truths = (_xml_file(folder, kind) for kind in ("articles", "ground-truth"))
        labels = {
            truth.get("id"): class_number(truth.get("hyperpartisan"), self.classes, truths)
            for truth in _parsed(truths).iter("article")
        }
        examples = {}
        for element in _parsed(articles).iter("article"):
            name = element.get("id") or ""
            if name not in labels:
                raise ValueError(
                    f"{articles} has article {name!r}, and {truths} has no label of it: use files "
                    "that belong together."
                )
            text = article_text(element)
            if self.title:
                text = f"{element.get('title', '').strip()}\n{text}"
            examples[name] = self._example(name, text, labels[name])
        if not examples:
            raise ValueError(f"{articles} holds no article: copy the file again.")
        return examples

    def _chosen(self, split: str, names: list[str]) -> list[str]:
        if self.split_file is None:
            logging.info(
                "Hyperpartisan.split_file is not bound: articles are divided by seed %d, and not "
                "as in published figures",
                self.seed,
            )
            return divided(names, self.seed)[split]
        path = absolute(self.split_file)
        try:
            with open_regular(path) as file:
                lists = json.load(file)
            key = self.original_split(split)
            if key not in lists and split == "validation":
                key = "dev"
            by_number = {int(name): name for name in names}
            return [by_number[int(number)] for number in lists[key]]
        except FileNotFoundError:
            raise FileNotFoundError(
                f"No file is at {path}: bind Hyperpartisan.split_file to the list of splits, or to "
                "None to draw them."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} holds no list of articles of {self.path} for split {split!r} ({error!r}): "
                "it should have a key of that name, with ids."
            ) from None


def divided(names: Sequence[str], seed: int) -> dict[str, list[str]]:
    order = permutation(len(names), seed, 0, 0, 6)
    numbers_of = {}
    start = 0
    for split, count in HELD_OUT.items():
        stop = start + max(1, round(len(names) * count / PUBLISHED))
        numbers_of[split] = sorted(order[start:stop].tolist())
        start = stop
    numbers_of["train"] = sorted(order[start:].tolist())
    return {split: [names[number] for number in numbers] for split, numbers in numbers_of.items()}


def article_text(element: xml.Element) -> str:
    pieces = [element.text or ""]
    for part in element:
        boundary = "\0" * (part.tag == "p")  # NUL does not occur in XML
        pieces += [boundary, *part.itertext(), boundary, part.tail or ""]
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\0"))
    return "\n".join(filter(None, lines))


def _xml_file(folder: str, kind: str) -> str:
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), f"{kind}-*.xml")))
    if len(paths) != 1:
        raise FileNotFoundError(
            f"{folder} should hold one file {kind}-*.xml and holds {len(paths)}: get articles-"
            "training-byarticle-20181122.xml and its ground truth from "
            "https://doi.org/10.5281/zenodo.5776081, and bind Hyperpartisan.path to their folder."
        )
    return paths[0]


def _parsed(path: str) -> xml.Element:
    try:
        return xml.parse(path).getroot()
    except xml.ParseError as error:
        raise ValueError(f"{path} is not XML ({error}): copy the file again.") from None
