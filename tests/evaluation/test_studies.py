"""Is the memory used, how far back does it reach: against plain loops."""

import copy
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
from plain_reading import nats_of, segments, states_of, with_states
from random_runs import random_run
from tiny_run import PLAIN, TWO_LAYERS

from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.evaluation.segment_reader import SegmentReader
from brt.studies import memory_use as memory_report
from brt.studies.compare import Compare
from brt.studies.memory_use import MemoryUse, gates_and_gradients
from brt.studies.reach import Reach, block_starts, cost_of_reset, reach_of
from brt.studies.study import run_study

T, W = 16, 8
ALL = np.arange(7)


@pytest.fixture(scope="module")
def recurrent(folder):
    with random_run(folder, *TWO_LAYERS, 'RecurrentCell.arrangement = "dual"') as run:
        yield run


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    with random_run(tmp_path_factory.mktemp("slide"), *PLAIN) as run:
        yield run


def deaf(run, folder):
    """The run with what states give to the tokens set to zero."""
    other = copy.copy(run)
    other.workdir = folder

    def silenced(path, x):
        name = jax.tree_util.keystr(path)
        return x.at[x.shape[0] // 2 :].set(0.0) if "output_CD" in name else x

    other.params = jax.tree_util.tree_map_with_path(silenced, run.params)
    return other


# Is the memory used?


def test_costs_are_those_of_the_recordings(recurrent):
    numbers = MemoryUse().measure(recurrent, {}, ALL, 0)["numbers"]
    sums, tokens = {}, 0
    for document in ALL:
        length = int(recurrent.store.lengths_D[document])
        tokens += max(length - T, 0)
        for state in ("kept", "cleared", "zeroed", "swapped"):
            nats = recurrent.recording(state).document(document).nats_T
            sums[state] = sums.get(state, 0.0) + float(nats[T:].sum(dtype=float))
    assert numbers["tokens"] == tokens
    for state, nats in sums.items():
        assert numbers[f"bits_{state}"] == pytest.approx(nats / tokens / math.log(2), rel=1e-9)
        if state != "kept":
            cost = (nats - sums["kept"]) / tokens / math.log(2)
            assert numbers[f"cost_{state}"] == pytest.approx(cost, abs=1e-9)
            assert cost != 0 and numbers[f"cost_{state}_error"] > 0


def test_gates_are_measured_where_first_segments_start_documents(recurrent):
    assert gates_and_gradients(recurrent, ALL, 1)["layer1/gradient_norm"] > 0


def test_an_external_memory_is_weighed_without_a_gradient(tmp_path):
    memory = ("ExternalMemory.size = 24", "ExternalMemory.neighbours = 3")
    memory += ("BlockRecurrentTransformer.memorizing_layers = (1,)",)
    with random_run(tmp_path, *TWO_LAYERS, *PLAIN, *memory) as run:
        numbers = MemoryUse().measure(run, {}, ALL, 0)["numbers"]
    cleared, zeroed, swapped = (
        numbers[f"cost_{name}"] for name in ("cleared", "zeroed", "swapped")
    )
    assert cleared != 0 and cleared == zeroed
    assert swapped not in (0, cleared)
    assert 0 < numbers["layer1/memory_share"] < 1 and numbers["layer1/gradient_norm"] == 0


def test_gradients_reach_the_state_as_differences_say(recurrent):
    numbers = gates_and_gradients(recurrent, np.array([6]), 16)
    assert all(name.startswith("layer1/") for name in numbers)
    norms, shares = [], []
    document = recurrent.experiment, recurrent.params, recurrent.store, 6, T
    for begin, _, _, caches in itertools.islice(segments(*document), 1, 3):

        def nats(states, begin=begin, caches=caches):
            changed = segments(*document, begin, lambda *_: with_states(caches, states))
            _, logits, targets, _ = next(changed)
            return nats_of(logits, targets).sum()

        states, slopes = np.asarray(states_of(caches)), []
        for index in np.ndindex(states.shape):
            step = np.zeros_like(states)
            step[index] = 0.02
            slopes.append((nats(states + step) - nats(states - step)) / 0.04)
        norms.append(np.linalg.norm(slopes))
        shares.append(norms[-1] * np.linalg.norm(states) / nats(states))
    numbers = gates_and_gradients(recurrent, np.array([6]), segments=3)
    assert numbers["layer1/gradient_norm"] == pytest.approx(np.mean(norms), rel=0.02)
    assert numbers["layer1/gradient_share"] == pytest.approx(np.mean(shares), rel=0.02)


def test_a_half_life_is_where_half_is_left(recurrent):
    numbers = gates_and_gradients(recurrent, ALL, 16)
    blocks = numbers["layer1/half_life_tokens"] / W
    gates = 2  # the dual arrangement: one after attention, one after the MLP
    assert numbers["layer1/kept"] ** (gates * blocks) == pytest.approx(0.5)
    cell = recurrent.params["layers"][1]["cell"]
    kept = np.prod(
        [
            jax.nn.sigmoid(np.float64(gate["keep_bias_D"]))
            for gate in cell.values()
            if isinstance(gate, dict) and "keep_bias_D" in gate
        ],
        axis=0,
    )
    lives = [numbers[f"layer1/half_life_tokens_p{percent}"] for percent in (10, 50, 90)]
    assert lives == sorted(lives)
    assert np.median(kept) ** (lives[1] / W) == pytest.approx(0.5, rel=1e-5)


def test_a_state_that_nothing_reads_is_found_out(recurrent, tmp_path):
    found = MemoryUse().measure(deaf(recurrent, tmp_path), {}, ALL, 0)
    numbers, sentence = found["numbers"], found["summary"]
    assert numbers["layer1/state_share"] == numbers["layer1/gradient_norm"] == 0
    assert all(abs(numbers[f"cost_{state}"]) < 1e-6 for state in ("cleared", "swapped"))
    assert sentence.startswith("There is no sign that the memory is used")


def sentence_of(**costs):
    """The summary of made-up costs, (cost, error) by state."""
    numbers = {"bits_kept": 2.5}
    for state, (cost, error) in costs.items():
        numbers |= {f"cost_{state}": cost, f"cost_{state}_error": error}
    return memory_report.summary(numbers)


@pytest.mark.parametrize(
    ("cost", "error", "begins"),
    [
        (0.02, 0.005, "A state is used;"),
        (0.002, 0.0001, "A state is used, but hardly"),
        (-0.02, 0.005, "The memory is used and does harm"),
        (0.009, 0.005, "There is no sign"),
    ],
)
def test_the_summary_follows_the_numbers(cost, error, begins):
    sentence = sentence_of(cleared=(cost, error), zeroed=(0.5, 0.0))
    assert sentence.startswith(begins)
    assert f"{cost:+.4f} ± {error:.4f}" in sentence and "+0.5000" in sentence


@pytest.mark.parametrize(
    ("swapped", "error", "own"),
    [
        (0.015, 0.01, False),
        (0.03, 0.01, True),
        (0.0035, 0.0001, False),  # far beyond its error, and nothing beside what clearing costs
        (0.0045, 0.0001, True),
        (-0.02, 0.001, False),
    ],
)
def test_a_state_that_any_document_could_replace_is_not_its_own(swapped, error, own):
    costs = {"cleared": (0.04, 0.01), "zeroed": (0.5, 0.01), "swapped": (swapped, error)}
    begins = "This document's state is used: cleared" if own else "A state is used, but another "
    sentence = sentence_of(**costs)
    assert sentence.startswith(begins) and sentence.endswith(memory_report.OWN_RULE)


def test_a_model_without_a_state_says_so(slide):
    content = MemoryUse().measure(slide, {}, ALL, 0)
    assert "windows of 8 tokens" in content["summary"]
    assert content["numbers"] == {} and content["series"] == []


@pytest.mark.parametrize("documents", [[0], range(5)])
def test_documents_of_one_segment_carry_nothing(recurrent, documents):
    """The first of them is of one token."""
    sentence = MemoryUse().measure(recurrent, {}, np.array(documents), 0)["summary"]
    assert "16 tokens" in sentence and "Evaluation.segment_length" in sentence


# Reach.


def blocks_with_reset(run, document, begin, reset):
    """The blocks of a document from token `begin`; the states are reset before token `reset`."""
    empty = states_of(run.experiment.bind(run.params).init_caches(1))

    def change(start, caches):
        return with_states(caches, empty) if start == reset else caches

    return segments(run.experiment, run.params, run.store, document, W, begin, change)


@pytest.mark.parametrize("what", ["state", "context"])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_reset_stands_exactly_so_far_before_what_is_scored(recurrent, what, blocks):
    extra, scored = 0.0, 0

    def losses(document, begin, reset=None):
        """Nats of each block from `begin` on; the states are reset before block `reset`."""
        found = blocks_with_reset(recurrent, document, begin * W, reset and reset * W)
        return {start // W: nats_of(logits, targets) for start, logits, targets, _ in found}

    layers = 2
    for document in (5, 6):
        kept = losses(document, 0)
        for number in range(blocks + 1, len(kept)):
            reset = number - blocks
            begin = max(reset - layers, 0) if what == "state" else reset
            again = losses(document, begin, reset if what == "state" else None)
            extra += (again[number] - kept[number]).sum()
            scored += len(kept[number])
    reader = SegmentReader(recurrent.experiment, recurrent.mesh, 3, W)
    blocks_of = block_starts(recurrent.store, ALL, W, seed=0)
    recording = recurrent.recording("kept")
    found = cost_of_reset(recurrent, reader, recording, blocks_of, what, blocks * W)
    assert found.tokens == scored > 0
    assert found.bits == pytest.approx(extra / scored / math.log(2), abs=1e-4)
    assert found.error > 0


def test_blocks_are_drawn_from_everywhere_up_to_the_number(store_of):
    store = store_of([5, 8, 100, 31])
    owners, starts = block_starts(store, [0, 2, 3], 8, seed=1)
    drawn = list(zip(owners.tolist(), starts.tolist()))
    assert sorted(drawn) == [
        (d, start) for d, n in ((0, 5), (2, 100), (3, 31)) for start in range(0, n, 8)
    ]
    assert drawn != sorted(drawn)
    assert drawn != list(zip(*(x.tolist() for x in block_starts(store, [0, 2, 3], 8, seed=2))))


@pytest.mark.parametrize(("tokens", "scored"), [(10**6, 18), (24 * 7, 7), (1, 3)])
def test_a_distance_costs_the_allowed_tokens_plus_one_batch(recurrent, tokens, scored):
    """Contexts of two blocks and the scored one: 24 tokens each, in 3 rows."""
    reader = SegmentReader(recurrent.experiment, recurrent.mesh, 3, W)
    blocks, recording = block_starts(recurrent.store, ALL, W, 0), recurrent.recording("kept")
    found = cost_of_reset(recurrent, reader, recording, blocks, "context", 2 * W, tokens)
    lengths = recurrent.store.lengths_D[blocks[0]] - blocks[1]
    chosen = np.minimum(lengths[blocks[1] > 2 * W], W)[:scored]
    assert found.tokens == chosen.sum()


def test_a_window_reaches_as_far_as_it_is_long(slide):
    """One layer: a block that begins W tokens after a reset sees nothing of what was before."""
    found = Reach().measure(slide, {}, ALL, 0)
    (curve,) = found["series"]
    assert curve["name"].endswith("context") and curve["x"] == [8, 16, 32, 64, 100]
    assert np.abs(curve["y"]).max() < 1e-5
    assert found["numbers"]["windows_reach"] == 8
    nearest = cost_of_reset(
        *(slide, SegmentReader(slide.experiment, slide.mesh, 3, W), slide.recording("kept")),
        *(block_starts(slide.store, ALL, W, 0), "context", 0),
    )
    assert abs(nearest.bits) > 1e-3  # right before it, it does


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ((1.0, 0.5, 0.1, 0.0), 32),
        ((1.0, 0.05, 0.2, -0.3), 64),  # 0.05 is small, but a later cost is not
        ((1.0, -0.5, -1.0, 0.0), 16),
        ((1.0, 0.5, 0.5, 0.5), 100),
    ],
)
def test_beyond_the_reach_no_reset_is_dear(costs, expected):
    assert reach_of(costs, [8, 16, 32, 64, 100]) == expected


def test_both_curves_end_at_the_whole_document(recurrent):
    found = Reach().measure(recurrent, {}, ALL, 0)
    assert [s["name"] for s in found["series"]] == [
        "cost of resetting the state",
        "cost of resetting the context",
    ]
    for curve in found["series"]:
        assert curve["x"][-1] == 100 and curve["y"][-1] == 0
        assert len(curve["x"]) == len(curve["errors"]) == len(curve["tokens"])
        assert all(curve["tokens"][:-1]) and abs(curve["y"][0]) > 1e-3
    for short in (np.arange(5), np.array([0])):
        sentence = Reach().measure(recurrent, {}, short, 0)["summary"]
        assert "of 8 tokens each" in sentence


# Corpora of which only answers are scored.


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """The recurrent model on documents that ask for facts; the answers are all that is scored."""
    lines = (
        *TWO_LAYERS,
        *("Corpus.source = @RecallTask()", "RecallTask.num_documents = 8"),
        *("RecallTask.num_held_out = 3", "RecallTask.document_length = 120"),
        *("RecallTask.num_facts = 2", "RecallTask.max_distance = 90"),
    )
    with random_run(tmp_path_factory.mktemp("answering"), *lines) as run:
        assert run.store.has_weights
        yield run


class OfAnswers(NamedTuple):
    """A recording that is right about all answers while the state is kept, and knows nothing else.

    All other tokens cost less where the state was changed.
    """

    recording: Recording
    weights: Callable
    state: str

    @property
    def manifest(self):
        return self.recording.manifest

    def document(self, number):
        scores = self.recording.document(number)
        answers_T = self.weights(number) > 0
        kept = self.state == "kept"
        nats_T = np.where(answers_T, 0.0 if kept else 4.0, 9.0 if kept else 1.0)
        return scores._replace(nats_T=nats_T.astype(np.float32))


def test_a_memory_that_knows_all_answers_is_told_that_it_helps(answering, monkeypatch):
    store, documents = answering.store, np.arange(3)
    record = RecordedRun.recording
    monkeypatch.setattr(
        RecordedRun,
        "recording",
        lambda run, state, chosen: OfAnswers(record(run, state, chosen), store.weights, state),
    )
    found = MemoryUse().measure(answering, {}, documents, 0)
    numbers, series = found["numbers"], found["series"]
    assert found["summary"].startswith("This document's state is used: ")
    answers = [int(np.count_nonzero(store.weights(d, T))) for d in range(3)]
    assert numbers["tokens"] == sum(answers) < sum(store.lengths_D - T)
    assert numbers["bits_kept"] == 0 and len(series) == 3
    for state in ("cleared", "zeroed", "swapped"):
        assert numbers[f"cost_{state}"] == pytest.approx(4 / math.log(2))
    asked = [int(d) // T for n in range(3) for d in np.flatnonzero(store.weights(n))]
    for curve in series:
        assert curve["x"] == sorted(set(asked)) and np.isfinite(curve["y"]).all()


def test_a_reset_is_weighed_by_the_answers_after_it(answering):
    store = answering.store
    reader = SegmentReader(answering.experiment, answering.mesh, 3, W)
    owners, starts = blocks = block_starts(store, range(3), W, seed=0)
    asked = {(n, int(d) // W * W) for n in range(3) for d in np.flatnonzero(store.weights(n))}
    assert set(zip(owners.tolist(), starts.tolist())) == asked
    recording = answering.recording("kept", range(3))
    found = cost_of_reset(answering, reader, recording, blocks, "state", W)
    later = sum(np.count_nonzero(store.weights(n, s, s + W)) for n, s in asked if s > W)
    assert found.tokens == later
    extra = 0.0
    windows = -(-answering.model.windows_reach() // W)
    for number, start in asked:
        if start > W:
            begin = max(start - (1 + windows) * W, 0)
            read = blocks_with_reset(answering, number, begin, start - W)
            (nats,) = (nats_of(*scores) for first, *scores, _ in read if first == start)
            extra_T = nats - recording.document(number).nats_T[start : start + W]
            extra += (extra_T * store.weights(number, start, start + W)).sum()
    assert found.bits == pytest.approx(extra / later / math.log(2), abs=1e-4)


# Two runs, or one with itself.


def test_runs_of_other_texts_are_refused_before_they_are_read(recurrent, slide, tmp_path):
    """Each has texts of its own; here they are made to differ."""
    other = copy.copy(slide)
    other.workdir = tmp_path
    other.store = other.experiment.open_store("test")
    with pytest.raises(ValueError, match=r"Corpus\.store"):
        run_study(Compare(), recurrent, {"other": other})
    other.store.manifest["vocabulary"]["fingerprint"] = "0" * 64
    with pytest.raises(ValueError, match="have different tokenizers"):
        run_study(Compare(), recurrent, {"other": other})
    assert not (tmp_path / "recordings").exists()


def test_a_model_without_a_state_cannot_be_compared_with_itself(slide):
    with pytest.raises(ValueError, match="no state"):
        run_study(Compare(), slide)
