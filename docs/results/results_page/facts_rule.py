"""The rule "the place that was named last" on the facts of BABILong's first task.

It never reads the question, so an accuracy shows that a model knows who is where only above it.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from brt.data.sources.small_world import ROOMS_OF_PEOPLE, story

TASK = "qa1"
STORIES = 20_000
"""Of each number of facts."""
CHANCE = 1 / len(ROOMS_OF_PEOPLE)


@functools.cache
def right_by_fact(facts: int) -> dict[int, tuple[int, int]]:
    """Returns stories, and those in which the rule is right, by the fact that is asked for."""
    random = np.random.default_rng(facts)
    asked, right = Counter[int](), Counter[int]()
    for _ in range(STORIES):
        tale = story(TASK, facts, random)
        asked[tale.support[0]] += 1
        right[tale.support[0]] += tale.facts[-1].endswith(f" {tale.answer}.")
    return {fact: (number, right[fact]) for fact, number in sorted(asked.items())}


def share(numbers_of_facts: Sequence[int]) -> float:
    """Returns the share of stories in which the rule is right; each number of facts as often."""
    counts = [right for facts in numbers_of_facts for _, right in right_by_fact(facts).values()]
    return sum(counts) / STORIES / len(numbers_of_facts)


def share_by_distance(numbers_of_facts: Sequence[int], lengths: Sequence[int]) -> dict[int, float]:
    """Returns the same by the tokens from the fact to the answer, from powers of two.

    Facts are at uniform positions in text of each length. A distance with fewer than one story in
    `STORIES` has none.
    """
    random = np.random.default_rng(0)
    stories: dict[int, int] = defaultdict(int)
    right: dict[int, float] = defaultdict(float)
    for facts in numbers_of_facts:
        # The fact that is asked for is the n-th of so many at sorted uniform positions.
        for fact, (number, its) in right_by_fact(facts).items():
            for length in lengths:
                at = np.sort(random.random((number, facts)), axis=1)[:, fact]
                distances = np.maximum(((1 - at) * length).astype(int), 1)
                for power, count in Counter(np.log2(distances).astype(int).tolist()).items():
                    stories[1 << power] += count
                    right[1 << power] += count * its / number
    total = STORIES * len(numbers_of_facts) * len(lengths)
    return {at: right[at] / n for at, n in sorted(stories.items()) if n * STORIES > total}
