"""The recall score, against a loop over questions."""

import pytest
from plain_reading import scalars_of

from brt.data.corpus import Corpus
from brt.data.tasks.recall import ASK, DEFINE, RecallTask
from brt.evaluation.recall import RecallScore


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    sizes = dict(num_held_out=6, document_length=(190, 260), num_facts=4, num_keys=5, num_values=6)
    task = RecallTask(**sizes, num_fillers=3, min_distance=4, max_distance=120, seed=3)
    corpus = Corpus(str(tmp_path_factory.mktemp("recall")), task)
    corpus.prepare("validation", quiet=True)
    return corpus.open("validation")


def questions(store):
    """(document, position of the answer, position of its definition), found token by token."""
    found = []
    for document in range(store.num_documents):
        tokens, defined = store.tokens(document).tolist(), {}
        for position, token in enumerate(tokens):
            if position >= 2 and tokens[position - 2] == DEFINE:
                defined[tokens[position - 1]] = position
            if position >= 2 and tokens[position - 2] == ASK:
                assert token == tokens[defined[tokens[position - 1]]]
                found.append((document, position, defined[tokens[position - 1]]))
    return found


def far(store):
    """A distance that occurs: it is far, and one less is near."""
    distances = sorted(answer - definition for _, answer, definition in questions(store))
    return distances[len(distances) // 2]


def scored(store, rows, length, says, segments=3, stride=None):
    score = RecallScore(far(store), length, segments)
    return scalars_of(score, store, rows, length, says, stride=stride)


@pytest.mark.parametrize(
    ("rows", "length", "stride"),
    [(1, 16, None), (2, 32, None), (4, 300, None), (9, 8, None), (2, 64, 16)],
)
def test_an_oracle_is_right_and_every_question_is_asked_once(store, rows, length, stride):
    scalars = scored(store, rows, length, lambda document, position: True, stride=stride)
    asked = questions(store)
    assert len(asked) == 4 * 6
    assert scalars["recall_accuracy"] == scalars["recall_accuracy_near"] == 1.0
    total = scalars["recall_questions"] + scalars["recall_questions_near"]
    assert total == len(asked)
    wrong = scored(store, rows, length, lambda document, position: False, stride=stride)
    assert wrong["recall_accuracy"] == wrong["recall_accuracy_near"] == 0.0


@pytest.mark.parametrize(("rows", "length"), [(1, 16), (3, 32), (2, 8)])
@pytest.mark.parametrize("segments", [1, 3])
def test_groups_are_those_of_a_loop_over_questions(store, rows, length, segments):
    def says(document, position):
        return (7 * document + position) % 3 > 0

    scalars = scored(store, rows, length, says, segments)
    groups = {"": [], "_near": [], "_across_segments": []}
    for document, answer, definition in questions(store):
        right = says(document, answer)
        groups["" if answer - definition >= far(store) else "_near"].append(right)
        # The definition is an input one position later than it is a target.
        boundaries = sum(definition + 1 < start <= answer for start in range(0, 300, length))
        if boundaries >= segments:
            groups["_across_segments"].append(right)
    assert groups[""] and groups["_near"] and groups["_across_segments"]
    for name, group in groups.items():
        assert scalars[f"recall_questions{name}"] == len(group)
        assert scalars[f"recall_accuracy{name}"] == pytest.approx(sum(group) / len(group))
