"""A source of texts whose class is told by one mark, near their beginnings: two classes.

All other tokens are filler, drawn independently of the class. So a model that has forgotten the
segment with the mark cannot do better than chance, and one that carries it along can be perfect.
"""

import hashlib
import json
from collections.abc import Iterator

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Count, Seed, Symbols, configurable
from brt.data.sources.base import Document, Source
from brt.data.vocabularies.base import Frame, Vocabulary, checked_ids

OPEN, END = 1, 2
"""Ids before and after a text; 0 is for padding."""
WORDS = ("padding", "open", "end", "no", "yes", "mark_no", "mark_yes")
CLASSES = ("no", "yes")


class MarkVocabulary(Vocabulary):
    """Ids of marked texts: padding, `open`, `end`, the names of the classes, marks, fillers.

    Args:
        num_fillers: ids of filler.
        opened: whether `open` stands before a text, as [CLS] does; else texts only have an end.
    """

    is_text = False

    def __init__(self, num_fillers: int, opened: bool):
        self.words = [*WORDS, *(f"f{number}" for number in range(num_fillers))]
        self.opened = opened
        self._name = f"marked:{num_fillers},{opened}"

    @property
    def size(self) -> int:
        """Number of ids of all kinds."""
        return len(self.words)

    @property
    def name(self) -> str:
        """`marked:`, the number of fillers, and whether texts are opened."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """sha256 of the words in their order, and of what stands around a text."""
        return hashlib.sha256(json.dumps([self.words, self.opened]).encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids that are no piece of text."""
        return {name: number for number, name in enumerate(WORDS[:3])}

    @property
    def frame(self) -> Frame:
        """`open` before a text, if texts are opened, and `end` after it."""
        return Frame((OPEN,) if self.opened else (), (END,))

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the ids of words such as `f3 mark_yes f0`, int32.

        Raises:
            ValueError: a word that is none of the vocabulary's.
        """
        ids = {word: number for number, word in enumerate(self.words)}
        words = data.decode("utf-8", errors="replace").split()
        unknown = [word for word in words if word not in ids]
        if unknown:
            raise ValueError(
                f"Document {title!r} has the word {unknown[0]!r}: write only "
                f"{', '.join(WORDS[3:])} and f0 to f{len(self.words) - len(WORDS) - 1}."
            )
        return np.array([ids[word] for word in words], np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Returns words with spaces between them.

        Raises:
            ValueError: an id outside [0, size).
        """
        return " ".join(self.words[i] for i in checked_ids(ids, self.size, self.name))


@configurable
class MarkTask(Source):
    """A source of marked texts with their class, and with its name as an answer.

    A document follows from (seed, split, its number) and the settings.

    Args:
        num_documents: documents of split `train`.
        num_held_out: documents of every other split.
        length: tokens of a text.
        mark_within: tokens at the beginning, among which the mark is.
        num_fillers: ids of filler.
        opened: as of `MarkVocabulary`; true for encoders, false for T5.
        seed: not negative.

    Attributes:
        vocabulary: of the tokens.
        classes: names of the classes.

    Raises:
        ValueError: sizes below 1, a negative seed, or a mark behind the text's end.
    """

    vocabulary: MarkVocabulary
    classes = CLASSES

    def __init__(
        self,
        num_documents: Count = 20_000,
        num_held_out: Count = 4000,
        length: Count = gin.REQUIRED,
        mark_within: Count = gin.REQUIRED,
        num_fillers: Symbols = 20,
        opened: bool = True,
        seed: Seed = 0,
    ):
        if not 1 <= mark_within <= length:
            raise ValueError(
                f"MarkTask.mark_within = {mark_within} must lie between 1 and MarkTask.length = "
                f"{length}."
            )
        self.num_documents = num_documents
        self.num_held_out = num_held_out
        self.length = length
        self.mark_within = mark_within
        self.num_fillers = num_fillers
        self.seed = seed
        self.vocabulary = MarkVocabulary(num_fillers, opened)

    def documents(self, split: str) -> Iterator[Document]:
        """Yields documents with tokens, int32, and annotations; `data` stays empty."""
        fillers = len(WORDS), self.vocabulary.size
        for number in range(self.count(split)):
            bits = np.random.Philox(np.random.SeedSequence([self.seed, number, *split.encode()]))
            random = np.random.Generator(bits)
            tokens = random.integers(*fillers, self.length, np.int32)
            label = int(random.integers(len(CLASSES)))
            tokens[random.integers(self.mark_within)] = WORDS.index(f"mark_{CLASSES[label]}")
            name = f"{split}-{number}"
            annotation = {
                "id": name,
                "label": label,
                "classes": len(CLASSES),
                "answers": [CLASSES[label]],
                "words": [WORDS.index(CLASSES[label]), END],
            }
            yield Document(name, tokens=tokens, annotation=annotation)

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents of a split."""
        return {
            "source": "MarkTask",
            "split": split,
            "documents": self.count(split),
            "length": self.length,
            "mark_within": self.mark_within,
            "num_fillers": self.num_fillers,
            "opened": self.vocabulary.opened,
            "classes": list(CLASSES),
            "seed": self.seed,
        }

    def count(self, split: str) -> int:
        """Returns the number of documents of a split."""
        return self.num_documents if split == "train" else self.num_held_out
