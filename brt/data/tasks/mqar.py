"""Multi-query associative recall (MQAR): pairs first, then each key once, whose value is predicted.

    k1 v1 k2 v2 ... kN vN  . . k2 v2 . . . . k1 v1 . .

Keys are ids of the lower half of the vocabulary, values of the upper half. Queries are at even
offsets 2 g after the pairs, with a probability proportional to (g + 1)^(power - 1). Only the values
after queries are scored. In the published task the inputs do not contain these values
(`Trainer.stream = "questions"`), and random fillers may be keys.

Source: Arora et al. 2023, arXiv:2312.04927 (Zoology), section 3 and appendix E.
"""

from dataclasses import dataclass

import numpy as np

from brt.checks import Count, Positive, Symbols, configurable
from brt.data.sources.base import Document
from brt.data.tasks.answers import Answer, Answers
from brt.data.tasks.drawn import GridTask
from brt.data.vocabularies.symbols import SymbolVocabulary

BLANK = 0


@configurable
@dataclass(eq=False, kw_only=True)
class MultiQueryRecall(GridTask):
    """MQAR documents.

    Args:
        num_pairs: one number or several; a document of each length has each that fits, at four
            tokens a pair.
        vocabulary_size: keys, values and the blank together.
        power: of the law of gaps; 1 for uniform gaps, near 0 for mostly short ones.
        random_fillers: fill gaps with random ids, which are not keys of the document, instead of
            blanks.
    """

    num_documents: Count = 100_000
    num_held_out: Count = 1000
    lengths: Count | tuple[Count, ...] = 256
    num_pairs: Count | tuple[Count, ...] = 8
    vocabulary_size: Symbols = 8192
    power: Positive = 0.01
    random_fillers: bool = True
    facts = "num_pairs"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first_value = self.vocabulary_size // 2
        fitting = [(length, pairs) for length, pairs in self.cells if length >= 4 * pairs]
        for length, pairs in self.cells:
            if not any(length == n for n, _ in fitting) or not any(pairs == n for _, n in fitting):
                raise self.too_short(length, 4 * pairs, f"{pairs} pairs and their queries")
            if pairs >= self.first_value:
                raise ValueError(
                    f"MultiQueryRecall.vocabulary_size = {self.vocabulary_size} must exceed "
                    f"{2 * pairs + 1}, because {pairs} pairs have different keys."
                )
        self.cells = fitting
        lengths = {length for length, _ in fitting}
        self.input_length = min(lengths) - 1 if len(lengths) == 1 else None
        symbols = [
            ".",
            *(f"k{key}" for key in range(1, self.first_value)),
            *(f"v{value}" for value in range(self.first_value, self.vocabulary_size)),
        ]
        name = f"mqar:{self.vocabulary_size}"
        self.vocabulary = SymbolVocabulary(name, symbols, {"blank": BLANK})

    def draw(self, split: str, number: int, random: np.random.Generator) -> Document:
        length, pairs = self.cell(number)
        keys = 1 + random.choice(self.first_value - 1, pairs, replace=False)
        num_values = self.vocabulary_size - self.first_value
        values = self.first_value + random.choice(num_values, pairs, replace=False)
        tokens = np.full(length, BLANK, np.int32)
        if self.random_fillers:
            fillers = np.setdiff1d(np.arange(1, self.vocabulary_size), keys)
            tokens = random.choice(fillers, length).astype(np.int32)
        odds = np.arange(1, (length - 2 * pairs) // 2 + 1, dtype=float) ** (self.power - 1)
        gaps = random.choice(len(odds), pairs, replace=False, p=odds / odds.sum())
        queries = 2 * pairs + 2 * gaps
        for first in (2 * np.arange(pairs), queries):
            tokens[first] = keys
            tokens[first + 1] = values
        weights = np.zeros(length, np.float32)
        weights[queries + 1] = 1
        answers = [
            Answer(query + 1, query + 2, 2 * pair + 1)
            for pair, query in enumerate(queries.tolist())
        ]
        annotation = Answers(length, pairs, sorted(answers)).annotation()
        return Document("", tokens=tokens, weights=weights, annotation=annotation)
