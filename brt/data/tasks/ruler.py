"""RULER's tasks that need no other text: needles, variable tracking, common and frequent words.

    niah_single_1     NeedleInHaystack
    niah_multikey_2   NeedleInHaystack.haystack = "needles"
    niah_multikey_3   the same, and NeedleInHaystack.keys = "codes"
    vt, cwe, fwe      VariableTracking, CommonWords, FrequentWords

Words and sentences are made up, and there are no worked examples, so scores are not comparable with
published ones. Several answers have a fixed order, so that each can be scored.

Source: Hsieh et al. 2024, arXiv:2404.06654 (RULER), section 3 and appendix B.
"""

import itertools
import math
import string
from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from brt.checks import Count, CountFrom0, OneOf, Positive, configurable
from brt.data.tasks.text_task import Ids, Prompt, TextTask, new_word, scattered

NOISE = "Rain falls on the roof. A clock ticks in the hall. We walk on, and we turn back. "
NUMBERS = 10**6, 10**7


@configurable
@dataclass(eq=False, kw_only=True)
class NeedleInHaystack(TextTask):
    """One statement among others: which number has this key?

    Args:
        num_needles: different keys in the noise, of which one is asked for; one number or several.
        haystack: "noise" repeats the same sentences; "needles" has needles alone, as many as fit.
        keys: "words", with numbers as values; "codes", with codes as values.
    """

    num_needles: Count | tuple[Count, ...] = 1
    haystack: Annotated[str, OneOf(("noise", "needles"))] = "noise"
    keys: Annotated[str, OneOf(("words", "codes"))] = "words"
    facts = "num_needles"

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        used: set[str] = set()
        needles = [self._needle(random, used) for _ in range(facts)]
        queried = int(random.integers(facts))
        key, value = needles[queried]
        question = f"\nWhich {self._kind()} has {key}?\nAnswer:"
        statements = [self._statement(*needle) for needle in needles]
        room = self.room(length, statements, question, [value], f"{facts} needles")
        if self.haystack == "noise":
            noise = self.ids(NOISE)
            filler = [noise] * (room // len(noise))
        else:
            filler = []
            while room >= 0:
                filler.append(self._statement(*self._needle(random, used)))
                room -= len(filler[-1])
            filler.pop()
            facts += len(filler)
        parts, numbers = scattered(random, statements, filler)
        return Prompt(parts, question, [(value, numbers[queried])], facts)

    def _kind(self) -> str:
        return "number" if self.keys == "words" else "code"

    def _needle(self, random: np.random.Generator, used: set[str]) -> tuple[str, str]:
        if self.keys == "words":
            return new_word(random, used), str(random.integers(*NUMBERS))
        return _code(random), _code(random)

    def _statement(self, key: str, value: str) -> Ids:
        return self.ids(f"The {self._kind()} of {key} is {value}. ")


def _code(random: np.random.Generator) -> str:
    digits = random.bytes(16).hex()
    return "-".join(digits[a:b] for a, b in itertools.pairwise((0, 8, 12, 16, 20, 32)))


@configurable
@dataclass(eq=False, kw_only=True)
class VariableTracking(TextTask):
    """Chains of assignments among noise: which variables have this value, in their order?

    Args:
        num_chains: of which one is asked for; one number or several.
        num_hops: assignments of a variable to the next one, in each chain.
    """

    num_chains: Count | tuple[Count, ...] = 1
    num_hops: CountFrom0 = 4
    facts = "num_chains"

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        links = self.num_hops + 1
        letters = random.integers(0, 26, (2 * facts * links + 99, 5))
        names = ["".join(string.ascii_uppercase[i] for i in row) for row in letters.tolist()]
        names = list(dict.fromkeys(names))[: facts * links]
        values = 10_000 + random.choice(90_000, facts, replace=False)
        # The chains are interleaved, each in its own order.
        owners = random.permutation(np.repeat(np.arange(facts), links)).tolist()
        chains: list[list[str]] = [[] for _ in range(facts)]
        statements, queried = [], int(random.integers(facts))
        for owner, name in zip(owners, names):
            chain = chains[owner]
            right = f"VAR {chain[-1]}" if chain else str(values[owner])
            statements.append(self.ids(f"VAR {name} = {right}. "))
            chain.append(name)
        question = f"\nWhich variables have the value {values[queried]}, in order?\nAnswer:"
        room = self.room(length, statements, question, chains[queried], f"{facts} chains")
        noise = self.ids(NOISE)
        parts, numbers = scattered(random, statements, [noise] * (room // len(noise)))
        # A variable is known by all assignments of its chain before it.
        needed = numbers[owners.index(queried)]
        answers = [(name, needed) for name in chains[queried]]
        return Prompt(parts, question, answers, facts * links)


@configurable
@dataclass(eq=False, kw_only=True)
class CommonWords(TextTask):
    """A numbered list of words: which occur most often, in alphabetical order?

    Args:
        num_common: words that occur often; one number or several.
    """

    lengths: Count | tuple[Count, ...] = 8192
    num_common: Count | tuple[Count, ...] = 10
    common_count: Count = 30
    other_count: Count = 3
    facts = "num_common"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.common_count <= self.other_count:
            raise ValueError(
                f"CommonWords.common_count = {self.common_count} must exceed other_count = "
                f"{self.other_count}."
            )

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        used: set[str] = set()
        common = sorted(new_word(random, used) for _ in range(facts))
        question = f"\nWhich {facts} words are most common, in alphabetical order?\nAnswer:"
        words = [word for word in common for _ in range(self.common_count)]
        listed = self._listed(words)
        room = self.room(length, listed, question, common, f"{facts} common words")
        while True:
            others = [new_word(random, used)] * self.other_count
            room -= sum(map(len, self._listed(others, len(words))))
            if room < 0:
                break
            words += others
        random.shuffle(words)
        return Prompt(self._listed(words), question, [(word, None) for word in common], facts)

    def _listed(self, words: list[str], before: int = 0) -> list[Ids]:
        numbered = enumerate(words, before + 1)
        return [self.ids(text) for n, word in numbered for text in (f"{n}.", f" {word} ")]


@configurable
@dataclass(eq=False, kw_only=True)
class FrequentWords(TextTask):
    """Words with counts by a zeta law, the first of them dots: which three follow, by frequency?

    Args:
        power: of the law; the word of rank k occurs in proportion to k^-power.
    """

    power: Positive = 2.0
    ASKED = 3
    facts = "ASKED"

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        question = f"\nWhich {facts} words are most frequent, after the dots?\nAnswer:"
        used: set[str] = set()
        # No less frequent word occurs in a document of this length.
        ranks = facts + 2 + min(length, math.ceil(length ** (1 / self.power)))
        words = ["......", *(new_word(random, used) for _ in range(ranks - 1))]
        room = self.room(length, [], question, words[1 : facts + 1], f"{facts} words")
        costs = np.array([len(self.ids(f"{word} ")) for word in words])
        share = np.arange(1, ranks + 1) ** -self.power

        def counts(total):
            return np.floor(total * share / share.sum()).astype(int)

        def cost(total):
            return int((counts(total) * costs).sum())

        def differ(total):
            return np.all(np.diff(counts(total)[1 : facts + 2]) < 0)

        # A word has a token or more, and counts are rounded down.
        total = bisect_right(range(room + ranks), room, key=cost) - 1
        if not differ(total):
            needed = length - room + cost(next(filter(differ, itertools.count(1))))
            raise self.too_short(length, needed, f"{facts} words of different counts")
        parts = [self.ids(f"{word} ") for word in np.repeat(words, counts(total)).tolist()]
        order = random.permutation(len(parts))
        answers = [(word, None) for word in words[1 : facts + 1]]
        return Prompt([parts[i] for i in order], question, answers, facts)
