"""RULER's tasks, against solvers that read the text."""

import collections
import re

import numpy as np
import pytest

from brt.data.tasks.answers import answers_of
from brt.data.tasks.ruler import CommonWords, FrequentWords, NeedleInHaystack, VariableTracking
from brt.data.vocabularies.base import Vocabulary


class Pairs(Vocabulary):
    """Two bytes of a text are a token, and a last odd one; no part of a text joins another."""

    size, name, fingerprint = 2**16, "pairs", "pairs"

    def encode(self, data, title):
        data += b"\0" * (len(data) % 2)
        return np.frombuffer(data, "<u2").astype(np.int32)

    def decode(self, ids):
        return np.asarray(ids, "<u2").tobytes().replace(b"\0", b"").decode()


def needle(context, question):
    """The value of the key in question, and where its statement ends."""
    key = re.search(r"has ([\w-]+)\?", question)[1]
    (found,) = re.finditer(rf"The (?:number|code) of {key} is ([\w-]+)\. ", context)
    return [found[1]], [found.end()]


def variables(context, question):
    value = re.search(r"value (\d+),", question)[1]
    names, end = [], None
    for found in re.finditer(r"VAR (\w+) = (?:VAR )?(\w+)\. ", context):
        if found[2] in (value, *names):
            names.append(found[1])
            end = end or found.end()
    return names, [end] * len(names)


def common(context, question):
    items = re.findall(r"(\d+)\. (\w+)", context)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    counts = collections.Counter(word for _, word in items).most_common()
    asked = int(re.search(r"Which (\d+)", question)[1])
    assert counts[asked - 1][1] > counts[asked][1]
    return sorted(word for word, _ in counts[:asked]), [None] * asked


def frequent(context, question):
    counts = collections.Counter(context.split()).most_common()
    assert counts[0][0] == "......"
    assert len({count for _, count in counts[1:5]}) == 4
    return [word for word, _ in counts[1:4]], [None] * 3


SMALL = {"num_held_out": 6}
CASES = [
    (NeedleInHaystack, {"lengths": (150, 900)}, needle),
    (NeedleInHaystack, {"lengths": 900, "num_needles": (1, 4)}, needle),
    (NeedleInHaystack, {"lengths": (200, 2000), "haystack": "needles"}, needle),
    (NeedleInHaystack, {"lengths": 2000, "haystack": "needles", "keys": "codes"}, needle),
    (VariableTracking, {"lengths": (300, 1200)}, variables),
    (VariableTracking, {"lengths": 900, "num_chains": (1, 3), "num_hops": 2}, variables),
    (CommonWords, {"lengths": 4600}, common),
    (CommonWords, {"lengths": (900, 2000), "num_common": (2, 5), "common_count": 9}, common),
    (FrequentWords, {"lengths": (700, 3000)}, frequent),
]


@pytest.mark.parametrize("made, settings, solve", CASES)
@pytest.mark.parametrize("vocabulary", ["bytes", Pairs()])
def test_a_reader_of_the_text_finds_the_answers(made, settings, solve, vocabulary):
    task = made(**SMALL, **settings, vocabulary=vocabulary)
    vocabulary = task.vocabulary
    for number, document in enumerate(task.documents("test")):
        length, facts = task.cell(number)
        answers = answers_of(document.annotation)
        assert answers.length == length and answers.facts >= facts
        # A word or line of noise more would not fit.
        assert length - 220 < len(document.tokens) <= length
        text = vocabulary.decode(document.tokens)
        context, question = text.split("\nWhich")
        expected, ends = solve(context, f"Which{question}")
        found = [vocabulary.decode(document.tokens[a.start : a.stop]) for a in answers.answers]
        assert found == [f" {answer}" for answer in expected]
        for answer, end in zip(answers.answers, ends):
            if end is None:
                assert answer.needed is None and answer.distance is None
            else:
                assert len(vocabulary.decode(document.tokens[: answer.needed + 1])) == end
        scored = np.flatnonzero(document.weights).tolist()
        assert scored == [t for a in answers.answers for t in range(a.start, a.stop)]


def test_needles_and_assignments_stand_at_all_depths():
    for task in (
        NeedleInHaystack(num_held_out=300, lengths=2000),
        NeedleInHaystack(num_held_out=300, lengths=2000, haystack="needles"),
        VariableTracking(num_held_out=300, lengths=2000, num_hops=0),
    ):
        answers = [d.annotation["answers"][0] for d in task.documents("test")]
        depths = np.array([needed / start for start, _, needed in answers])
        counts = np.histogram(depths, 5, (0, 1))[0]
        assert counts.min() > 30 and counts.sum() == 300


@pytest.mark.parametrize(
    "made, settings",
    [
        (NeedleInHaystack, {"lengths": 60}),
        (NeedleInHaystack, {"lengths": 400, "num_needles": 20}),
        (VariableTracking, {"lengths": 100}),
        (CommonWords, {"lengths": 1000}),
        (FrequentWords, {"lengths": 150}),
    ],
)
def test_lengths_without_room_are_refused_naming_the_next(made, settings):
    with pytest.raises(ValueError, match=f"{made.__name__}.lengths = ") as refused:
        list(made(**SMALL, **settings).documents("test"))
    needed = int(re.search(r"need (\d+) tokens", str(refused.value))[1])
    settings = {**settings, "lengths": needed}
    assert len(next(made(**SMALL, **settings).documents("test")).tokens) <= needed
