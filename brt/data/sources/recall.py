"""A source of the recall task: facts stated early in a document and asked for once, much later.

A fact is the three tokens DEFINE key value; a question is ASK key, and the token after it, the
answer, is the value. All other tokens are filler. Values are independent and uniform, every key of
a document is different, and every fact is asked for once: before an answer, its fact occurs in its
definition and nowhere else. So a model that does not reach back to the definition cannot do better
than 1 / num_values, and one that carries it along can be perfect.

The distance of an answer is its position minus that of the value in its definition.
"""

import hashlib
import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Count, CountFrom0, Seed, Symbols, configurable
from brt.data.sources.base import Document, Source
from brt.data.vocabularies.base import Vocabulary, checked_ids

DEFINE, ASK = 0, 1


class RecallVocabulary(Vocabulary):
    """Ids of the recall task: DEFINE, ASK, then the keys, the values and the fillers.

    Args:
        num_keys, num_values, num_fillers: how many there are of each.
    """

    is_text = False

    def __init__(self, num_keys: int, num_values: int, num_fillers: int):
        self.words = [
            *("define", "ask"),
            *(f"k{key}" for key in range(num_keys)),
            *(f"v{value}" for value in range(num_values)),
            *("." for _ in range(num_fillers)),
        ]
        self.first_key = 2
        self.first_value = self.first_key + num_keys
        self.first_filler = self.first_value + num_values
        self._name = f"recall:{num_keys},{num_values},{num_fillers}"

    @property
    def size(self) -> int:
        """Number of ids of all kinds."""
        return len(self.words)

    @property
    def name(self) -> str:
        """`recall:` and the numbers of keys, values and fillers."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """sha256 of the words in their order."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()

    @property
    def special_ids(self) -> dict[str, int]:
        """The two ids that open facts and questions."""
        return {"define": DEFINE, "ask": ASK}

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the ids of words such as `define k3 v7 . ask k3`, int32; `.` is the first filler.

        Raises:
            ValueError: a word that is none of the vocabulary's.
        """
        ids = {word: number for number, word in reversed(list(enumerate(self.words)))}
        words = data.decode("utf-8", errors="replace").split()
        unknown = [word for word in words if word not in ids]
        if unknown:
            raise ValueError(
                f"Document {title!r} has the word {unknown[0]!r}: write only define, ask, `.`, "
                f"k0 to k{self.first_value - self.first_key - 1} and "
                f"v0 to v{self.first_filler - self.first_value - 1}."
            )
        return np.array([ids[word] for word in words], np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Returns words with spaces between them; every filler is `.`.

        Raises:
            ValueError: an id outside [0, size).
        """
        return " ".join(self.words[i] for i in checked_ids(ids, self.size, self.name))


@configurable
class RecallTask(Source):
    """A source of recall documents, with their vocabulary in `vocabulary`.

    Loss weights are 1 on answers and 0 elsewhere. The distances of a document are spread over the
    whole range: it is cut, on a logarithmic scale, into num_facts equal parts, and each part gives
    one fact its distance. A document follows from (seed, split, its number) and the settings.

    In a model's inputs, which stand one position after the targets, an answer is predicted
    `distance - 1` positions after its value.

    Args:
        num_documents: documents of split `train`.
        num_held_out: documents of every other split.
        document_length: in tokens, or a pair (shortest, longest) to draw lengths from.
        num_facts: facts a document defines and asks for.
        num_keys, num_values, num_fillers: sizes of the three kinds of ids.
        min_distance, max_distance: range of the distances, in tokens.
        seed: not negative.

    Raises:
        ValueError: sizes that leave no room for the facts, their keys or their distances.
    """

    def __init__(
        self,
        num_documents: Count = 2000,
        num_held_out: Count = 100,
        document_length: Count | tuple[Count, Count] = 1024,
        num_facts: Count = 4,
        num_keys: Symbols = 16,
        num_values: Symbols = 16,
        num_fillers: Symbols = 16,
        min_distance: CountFrom0 = 8,
        max_distance: CountFrom0 = 768,
        seed: Seed = 0,
    ):
        shortest, longest = np.broadcast_to(document_length, 2).tolist()
        if seed < 0:
            raise ValueError(f"RecallTask.seed = {seed} is negative: bind it to 0 or more.")
        if num_keys < num_facts:
            raise ValueError(
                f"RecallTask.num_keys = {num_keys} is below num_facts = {num_facts}: bind it to as "
                "many at least, because each fact of a document needs its own key."
            )
        if not 3 <= min_distance <= max_distance:
            raise ValueError(
                f"RecallTask.min_distance = {min_distance} must be at least 3, and max_distance = "
                f"{max_distance} not below it."
            )
        needed = max_distance + 3 + 20 * (num_facts - 1)
        if not needed <= shortest <= longest:
            raise ValueError(
                f"RecallTask.document_length = {document_length} is too short: {num_facts} facts "
                f"and distances up to {max_distance} need at least {needed} tokens."
            )
        self.num_documents = num_documents
        self.num_held_out = num_held_out
        self.lengths = shortest, longest
        self.num_facts = num_facts
        self.num_keys = num_keys
        self.num_values = num_values
        self.num_fillers = num_fillers
        self.min_distance = min_distance
        self.max_distance = max_distance
        self.seed = seed
        self.vocabulary = RecallVocabulary(num_keys, num_values, num_fillers)

    def documents(self, split: str) -> Iterator[Document]:
        """Yields documents with tokens, int32, and weights, float32; `data` stays empty."""
        for number in range(self.count(split)):
            tokens, answers = self._document(split, number)
            weights = np.zeros(len(tokens), np.float32)
            weights[answers] = 1
            yield Document(f"{split}-{number}", tokens=tokens, weights=weights)

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents of a split."""
        return {
            "source": "RecallTask",
            "split": split,
            "documents": self.count(split),
            "document_length": list(self.lengths),
            "num_facts": self.num_facts,
            "num_keys": self.num_keys,
            "num_values": self.num_values,
            "num_fillers": self.num_fillers,
            "min_distance": self.min_distance,
            "max_distance": self.max_distance,
            "seed": self.seed,
        }

    def count(self, split: str) -> int:
        """Returns the number of documents of a split."""
        return self.num_documents if split == "train" else self.num_held_out

    def _document(self, split, number):
        """The tokens of one document and the positions of its answers."""
        bits = np.random.Philox(np.random.SeedSequence([self.seed, number, *split.encode()]))
        random = np.random.Generator(bits)
        length = int(random.integers(self.lengths[0], self.lengths[1], endpoint=True))
        ids = self.vocabulary
        tokens = random.integers(ids.first_filler, ids.size, length, np.int32)
        keys = ids.first_key + random.permutation(self.num_keys)[: self.num_facts]
        values = ids.first_value + random.integers(0, self.num_values, self.num_facts)

        free = np.ones(length, bool)
        answers = []
        for key, value, distance in zip(keys, values, self._distances(random)):
            defined = self._free_position(random, free, distance)
            answer = defined + distance
            tokens[defined - 2 : defined + 1] = DEFINE, key, value
            tokens[answer - 2 : answer + 1] = ASK, key, value
            free[defined - 2 : defined + 1] = False
            free[answer - 2 : answer + 1] = False
            answers.append(answer)
        return tokens, np.sort(answers)

    def _distances(self, random):
        """One distance a fact, spread evenly on a logarithmic scale."""
        shares = (np.arange(self.num_facts) + random.random(self.num_facts)) / self.num_facts
        ratio = (self.max_distance + 1) / self.min_distance
        distances = np.floor(self.min_distance * ratio**shares).astype(int)
        return np.minimum(distances, self.max_distance)

    def _free_position(self, random, free, distance):
        """A position for a value such that its definition and its question fall on filler."""
        ends = free[2:] & free[1:-1] & free[:-2]  # the two positions before are free as well
        # Definitions stay within the part from which even the longest distance fits.
        last = len(free) - self.max_distance - 2
        # A triple spoils at most 5 positions, as do its counterpart and, shifted by the distance,
        # both of them: 20 a fact. The document is long enough to leave one.
        return 2 + int(random.choice(np.flatnonzero(ends[:last] & ends[distance:][:last])))


def answer_distances(tokens: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Finds the answers of a recall document in its tokens alone.

    Args:
        tokens: integers (tokens,), one whole document.

    Returns:
        positions: int64 (answers,), positions of the answers, rising.
        distances: int64 (answers,), how far before each answer its value was defined.

    Raises:
        ValueError: a question whose key no earlier token defines.
    """
    tokens = np.asarray(tokens)
    defined = {int(tokens[at + 1]): at + 2 for at in np.flatnonzero(tokens == DEFINE).tolist()}
    positions = np.flatnonzero(tokens == ASK) + 2
    distances = []
    for position in positions.tolist():
        key = int(tokens[position - 1])
        if defined.get(key, position) >= position:
            raise ValueError(
                f"Token {position - 1} asks for key {key}, which is not defined before it: give "
                "one whole document of RecallTask."
            )
        distances.append(position - defined[key])
    return positions, np.array(distances, np.int64)
