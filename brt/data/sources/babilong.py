"""BABILong: facts of a small world in real text, and a question about them at the end.

Facts stand between sentences of the text, at random positions and in order. The text is that of a
token store, a random passage for each document; its last sentence is cut where the length is full.
The facts and the question never are.

Stories come from `small_world`, with its own words; scores are not comparable with published ones.

Source: Kuratov et al. 2024, arXiv:2406.10149 (BABILong), section 2.
"""

import os
import re
from collections.abc import Iterator
from typing import Annotated

import gin
import numpy as np

from brt.checks import Count, Name, NotNegative, OneOf, Seed, configurable
from brt.data.sources.small_world import LEAST, MOST, story
from brt.data.sources.text_task import Ids, Prompt, TextTask, scattered
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.storage.paths import as_path

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n")


@configurable
class BabiLong(TextTask):
    """Stories of one task, hidden in text.

    Args:
        background: folder of the token store of a split, with the same vocabulary, such as
            "stores/books/{split}", on a disk or in a bucket; `~` and environment variables are
            expanded.
        task: "qa1" to "qa5".
        num_documents: documents of split `train`.
        num_held_out: documents of every other split.
        lengths: of documents, in tokens; documents take each length with each number of facts.
        num_facts: sentences of a story; one number or several.
        vocabulary: of the tokens, or its name.
        text_weight: loss weight of all tokens that are no answer.
        seed: of the documents.
    """

    def __init__(
        self,
        background: Name = gin.REQUIRED,
        task: Annotated[str, OneOf(tuple(LEAST))] = "qa1",
        num_documents: Count = 10_000,
        num_held_out: Count = 500,
        lengths: Count | tuple[Count, ...] = 4096,
        num_facts: Count | tuple[Count, ...] = 6,
        vocabulary: Vocabulary | str = "bytes",
        text_weight: NotNegative = 0.0,
        seed: Seed = 0,
    ):
        grid = num_documents, num_held_out, seed, lengths, num_facts
        settings = {"background": background, "task": task}
        super().__init__(vocabulary, text_weight, *grid, settings=settings)
        self.background = background
        self.task = task
        self._store: TokenStore | None = None
        for _, facts in self._cells:
            if not LEAST[task] <= facts <= MOST.get(task, facts):
                raise ValueError(
                    f"BabiLong.num_facts = {facts} must be at least {LEAST[task]} for {task}"
                    + (f", and at most {MOST[task]}." if task in MOST else ".")
                )

    def prompt(self, length: int, facts: int, split: str, random: np.random.Generator) -> Prompt:
        tale = story(self.task, facts, random)
        question = f"\nQuestion: {tale.question}\nAnswer:"
        statements = [self.ids(f"{fact} ") for fact in tale.facts]
        room = self.room(length, question, [tale.answer]) - sum(map(len, statements))
        if room < 0:
            raise self.too_short(length, length - room, f"{facts} facts and the question")
        filler: list[Ids] = []
        space = self.ids(" ")
        sentences = self._sentences(split, room, random)
        while room >= len(space):
            sentence = next(sentences)
            if len(sentence) > room:
                sentence = np.concatenate([sentence[: room - len(space)], space])
            filler.append(sentence)
            room -= len(sentence)
        parts, numbers = scattered(random, statements, filler)
        answers = [(tale.answer, numbers[tale.support[0]])]
        return Prompt(parts, question, answers, facts)

    def _sentences(self, split: str, length: int, random: np.random.Generator) -> Iterator[Ids]:
        """Yields sentences of a random passage, and of further ones where its document ends."""
        store = self._open(split)
        ends = np.cumsum(store.lengths_D)
        while True:
            at = int(random.integers(ends[-1]))
            document = int(np.searchsorted(ends, at, side="right"))
            start = at - int(ends[document]) + int(store.lengths_D[document])
            text = self.vocabulary.decode(store.tokens(document, start, start + 2 * length))
            # A passage begins within a sentence, unless it has only one.
            sentences = SENTENCE_END.split(text)
            for sentence in sentences[1:] or sentences:
                if sentence.strip():
                    yield self.vocabulary.encode(f"{sentence} ".encode(), "background")

    def _open(self, split: str) -> TokenStore:
        folder = os.path.expanduser(os.path.expandvars(self.background.replace("{split}", split)))
        if self._store is None or str(self._store.folder) != str(as_path(folder)):
            self._store = TokenStore(folder)
            if self._store.manifest["vocabulary"]["fingerprint"] != self.vocabulary.fingerprint:
                raise ValueError(
                    f"BabiLong.background: {folder} has the vocabulary "
                    f"{self._store.manifest['vocabulary']['name']}, and BabiLong.vocabulary is "
                    f"{self.vocabulary.name}: bind them to the same one."
                )
        return self._store
