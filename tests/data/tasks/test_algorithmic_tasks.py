"""The algorithmic tasks: the published formats, splits without a sample in common."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.data.tasks.algorithmic import AssociativeRetrieval, CopyTask, ReverseTask
from brt.data.tasks.quadratic import QuadraticEquations, stages

SPLITS = ("test", "validation", "train")
FEW = {"num_train": 40, "num_validation": 15, "num_test": 20}


def samples(task, split="train"):
    return [document.tokens.tolist() for document in task.documents(split)]


@pytest.mark.parametrize("length", [8, 24])
def test_copy_is_the_source_the_start_token_and_the_source_twice(length):
    task = CopyTask(length=length, num_symbols=62 if length == 8 else 10, **FEW)
    for sample in samples(task):
        x = sample[:length]
        assert sample == [*x, 1, *x, *x] and len(sample) == 3 * length + 1
        assert set(x) <= set(range(2, task.vocabulary.size))
    assert task.input_length == 3 * length


@pytest.mark.parametrize("length", [2, 24])
def test_reverse_is_the_source_a_start_and_the_source_backwards(length):
    task = ReverseTask(length=length, **FEW)
    for sample in samples(task):
        assert sample == [*sample[:length], 1, *reversed(sample[:length])]
    assert task.input_length == 2 * length and task.vocabulary.size == 12


@pytest.mark.parametrize("pairs", [1, 4, 10])
def test_retrieval_asks_for_the_digit_behind_one_of_the_letters(pairs):
    task = AssociativeRetrieval(num_pairs=pairs, **FEW)
    for sample in samples(task):
        keys, values = sample[: 2 * pairs : 2], sample[1 : 2 * pairs : 2]
        key, start, answer = sample[2 * pairs :]
        assert len(set(keys)) == len(set(values)) == pairs and start == 10
        assert set(keys) <= set(range(11, 37)) and set(values) <= set(range(10))
        assert dict(zip(keys, values))[key] == answer
    assert task.input_length == 2 * pairs + 2 and task.vocabulary.size == 37


TASKS = [
    CopyTask(length=3, num_symbols=5, **FEW),
    ReverseTask(length=5, **FEW),
    AssociativeRetrieval(num_pairs=1, **FEW),
    QuadraticEquations(max_root=5, num_train=1000, num_validation=200, num_test=450),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_no_sample_occurs_twice_in_a_split_or_in_two(task):
    found = [tuple(sample) for split in SPLITS for sample in samples(task, split)]
    assert len(set(found)) == len(found) == sum(task.count(split) for split in SPLITS)


def test_a_split_is_the_same_for_any_size_of_training():
    one, more = CopyTask(**FEW), CopyTask(**FEW | {"num_train": 3000})
    for split in ("validation", "test"):
        assert samples(one, split) == samples(more, split) == samples(one, split)
    assert samples(more)[:40] == samples(one)
    assert samples(CopyTask(**FEW, seed=1)) != samples(one)
    # For good: a store made today must be that of tomorrow.
    assert samples(one, "test")[0][:8] == [8, 7, 6, 4, 5, 7, 7, 4]


def test_padding_stands_behind_the_sample_and_is_not_scored():
    plain, padded = AssociativeRetrieval(**FEW), AssociativeRetrieval(**FEW, padded_length=12)
    for one, other in zip(plain.documents("test"), padded.documents("test"), strict=True):
        assert other.tokens.tolist() == [*one.tokens, 0, 0]
        assert other.weights.tolist() == [*one.weights, 0, 0]
    assert padded.input_length == 12
    with pytest.raises(ValueError, match="padded_length = 9"):
        AssociativeRetrieval(padded_length=9)


def test_the_papers_example_has_roots_6_and_92():
    equation, *solution, answer = stages(-4, -(6 + 92), 6 * 92)
    assert equation == "-4*x^2+392*x-2208=0"
    assert "".join(solution) == (
        "x^2-98*x+552=0;D=98^2-4*1*552=7396=86^2;x=(98-86)/2=6;x=(98+86)/2=92"
    )
    assert answer == "6,92"


def evaluated(side, x):
    return eval(re.sub(r"\^", "**", side), {"x": x})


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.sampled_from([*range(-10, 0), *range(1, 11)]), st.integers(-100, 100), st.integers(-100, 100)
)
def test_every_stage_is_true_and_has_room(multiplier, x1, x2):
    found = stages(multiplier, -(x1 + x2), x1 * x2)
    assert max(map(len, found)) <= 30
    equation, normalised, discriminant, first, second, answer = found
    for text in (equation, normalised.removesuffix(";")):
        assert text.endswith("=0") and evaluated(text[:-2], x1) == evaluated(text[:-2], x2) == 0
    assert evaluated(equation[:-2], 1000) == multiplier * evaluated(normalised[:-3], 1000)
    sides = [evaluated(side, None) for side in discriminant.removesuffix(";")[2:].split("=")]
    assert len(sides) == 3 and sides[0] == sides[1] == sides[2] == (x1 - x2) ** 2
    for text, root in ((first.removesuffix(";"), min(x1, x2)), (second, max(x1, x2))):
        _, quotient, value = text.split("=")
        assert evaluated(quotient, None) == int(value) == root
    assert answer == f"{min(x1, x2)},{max(x1, x2)}"


def test_all_37_820_equations_with_roots_can_be_drawn():
    """61 * 62 / 2 pairs of roots, and 20 multipliers."""
    counts = {"num_train": 37_000, "num_validation": 400, "num_test": 420}
    task = QuadraticEquations(max_root=30, rootless=0.0, **counts)
    sources = task._sources(37_820)
    assert len(np.unique(sources, axis=0)) == 37_820
    _, b, c = sources.T
    root = np.sqrt(b**2 - 4 * c)
    assert (root == np.round(root)).all() and np.abs((np.abs(b) + root) / 2).max() == 30
    more = QuadraticEquations(max_root=30, rootless=0.0, **counts | {"num_test": 421})
    with pytest.raises(ValueError, match="37,821"):
        list(more.documents("test"))


def test_a_fifth_of_the_equations_has_no_real_root_and_says_so():
    task = QuadraticEquations(max_root=30, num_train=500, num_validation=50, num_test=100)
    rootless = 0
    for document in task.documents("train"):
        text = task.vocabulary.decode(document.tokens)
        assert len(text) == 181 and text[30] == ">"
        text = text[:30] + text[31:]
        found = [text[at : at + 30].rstrip("_") for at in range(0, 180, 30)]
        assert "_" not in "".join(found)
        discriminant = int(found[2].split("=")[2].removesuffix(";"))
        assert (found[3:] == ["", "", ""]) == (discriminant < 0)
        rootless += discriminant < 0
    assert rootless == 100
