"""BABILong: facts of a small world in real text, and a question about them at the end.

The facts, in order, are at random positions between sentences of a random passage of a token store.
In documents of one length all answers begin at the same token, so that the position does not reveal
the length of the answer. The words are those of `small_world`: scores are not comparable with
published ones.

Source: Kuratov et al. 2024, arXiv:2406.10149 (BABILong), section 2.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from brt.checks import Count, Name, OneOf, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.tasks.small_world import ANSWERS, FACTS, story
from brt.data.tasks.text_task import Ids, Prompt, TextTask, scattered
from brt.data.vocabularies.base import expanded
from brt.data.vocabularies.named import as_vocabulary

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n")


@configurable
@dataclass(eq=False, kw_only=True)
class BabiLong(TextTask):
    """Stories of one task, hidden in text.

    Args:
        background: folder of the token store of a split, with the same vocabulary, such as
            "stores/books/{split}"; `~` and environment variables are expanded.
        task: "qa1" to "qa5".
        num_facts: sentences of a story; one number or several.
        bound: qa1 asks about somebody who did not move last, in stories in which people end in
            different rooms, so that the order of the rooms tells little.
    """

    background: Name
    task: Annotated[str, OneOf(tuple(FACTS))] = "qa1"
    num_facts: Count | tuple[Count, ...] = 6
    bound: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stores: dict[str, TokenStore] = {}
        if self.bound and self.task != "qa1":
            raise ValueError(
                f'BabiLong.bound = True needs BabiLong.task = "qa1", not {self.task!r}.'
            )
        allowed = FACTS[self.task][2 * self.bound :]  # the last of two rooms is not asked for
        for _, facts in self.cells:
            if facts not in allowed:
                raise ValueError(
                    f"BabiLong.num_facts = {facts} of {self.task} must be from {allowed[0]} to "
                    f"{allowed[-1]:,}."
                )

    def description(self, split: str) -> dict[str, Any]:
        # Refuses stores of versions in which the answer's length determined its start.
        return super().description(split) | {"answers_begin": "at one token"}

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        tale = story(self.task, facts, random, self.bound)
        question = f"\nQuestion: {tale.question}\nAnswer:"
        statements = [self.ids(f"{fact} ") for fact in tale.facts]
        longest = max(ANSWERS, key=lambda answer: len(self.ids(f" {answer}")))
        room = self.room(length, statements, question, [longest], f"{facts} facts")
        filler: list[Ids] = []
        space = self.ids(" ")
        sentences = self._sentences(split, room, random)
        while room >= max(len(space), 1):  # a vocabulary may have no token for a space
            sentence = next(sentences)
            if len(sentence) > room:
                sentence = np.concatenate([sentence[: room - len(space)], space])
            filler.append(sentence)
            room -= len(sentence)
        parts, numbers = scattered(random, statements, filler)
        answers = [(tale.answer, numbers[tale.support[0]])]
        return Prompt(parts, question, answers, facts, tale.rank)

    def _sentences(self, split: str, length: int, random: np.random.Generator) -> Iterator[Ids]:
        store, vocabulary = self._open(split), as_vocabulary(self.vocabulary)
        ends = np.cumsum(store.lengths_D)
        while True:
            at = int(random.integers(ends[-1]))
            document = int(np.searchsorted(ends, at, side="right"))
            start = at - int(ends[document]) + int(store.lengths_D[document])
            text = vocabulary.decode(store.tokens(document, start, start + 2 * length))
            # A passage begins within a sentence, unless it has only one.
            sentences = SENTENCE_END.split(text)
            for sentence in sentences[1:] or sentences:
                if sentence.strip():
                    yield vocabulary.encode(f"{sentence} ".encode(), "background")

    def _open(self, split: str) -> TokenStore:
        if split not in self._stores:
            store = TokenStore(expanded(self.background.replace("{split}", split)))
            theirs, ours = store.manifest["vocabulary"], as_vocabulary(self.vocabulary)
            if theirs["fingerprint"] != ours.fingerprint:
                raise ValueError(
                    f"BabiLong.background: {store.folder} has the vocabulary {theirs['name']}, and "
                    f"BabiLong.vocabulary is {ours.name}: bind them to the same one."
                )
            self._stores[split] = store
        return self._stores[split]
