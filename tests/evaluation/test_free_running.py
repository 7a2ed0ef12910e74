"""Free-running accuracy: an oracle is perfect, one that is a token off is at chance, and a model
that writes reads what it would have read in whole segments."""

import json
import math
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from gin_settings import bound
from marking import slow
from tiny_models import quick_jit, read_segment
from tiny_run import (
    PLAIN,
    assert_same_run,
    build,
    command,
    mesh_of,
    one_device,
    records,
    train_here,
    write_config,
)

from brt import evaluate
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.tasks.algorithmic import CopyTask, ReverseTask
from brt.data.token_scores import TokenScores
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.free_running import FreeRunning, SampleDecoder, scored_part, write
from brt.models.caches import select_rows
from brt.training.checkpoints.policy import NoSuchMetric
from brt.training.records.run_folder import read_metrics

N = 4


class Seen(NamedTuple):
    """tokens_BL: (B, 64) what was read; count_B: how much."""

    tokens_BL: jax.Array
    count_B: jax.Array


class Oracle:
    """Knows copy's answer, or the one a token further on: by looking it up in what it read."""

    period, dtype, vocabulary_size = N, jnp.dtype("float32"), 12

    def __init__(self, shift=0):
        self.shift = shift

    def init_caches(self, rows):
        return (Seen(jnp.zeros((rows, 64), jnp.int32), jnp.zeros(rows, jnp.int32)),)

    def decode(self, tokens_B, caches, reads_B=True):
        (seen,) = caches
        rows = jnp.arange(len(tokens_B))
        tokens_BL = seen.tokens_BL.at[rows, seen.count_B].set(tokens_B)
        count_B = seen.count_B + 1
        answer_B = tokens_BL[rows, (count_B - N - 1 + self.shift) % N]
        return jax.nn.one_hot(answer_B, 12), (Seen(tokens_BL, count_B),)

    def __call__(self, tokens_BT, caches):
        logits = []
        for t in range(tokens_BT.shape[1]):
            logits_BV, caches = self.decode(tokens_BT[:, t], caches)
            logits.append(logits_BV)
        return jnp.stack(logits, axis=1), caches

    def read_part(self, tokens_BT, caches, counts_B):
        for t in range(tokens_BT.shape[1]):
            _, after = self.decode(tokens_BT[:, t], caches)
            caches = select_rows(t < counts_B, after, caches)
        return None, caches

    def begin_decoding(self, caches):
        return caches


def store_of_task(task, folder, split="test"):
    write_store(folder, task.documents(split), task.vocabulary, {}, quiet=True)
    return TokenStore(folder)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    task = CopyTask(length=N, num_train=1, num_validation=1, num_test=300)
    return store_of_task(task, tmp_path_factory.mktemp("copy") / "test")


def decoder_of(model, store, rows=64, length=N, mesh=None):
    experiment = types.SimpleNamespace(bind_evaluated=lambda params, segment_length: model)
    return SampleDecoder(experiment, mesh or one_device(), store, rows, length)


eight_devices = pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")


@pytest.mark.parametrize(
    ("rows", "devices"), [(7, 1), (64, 1), (512, 1), pytest.param(16, 8, marks=eight_devices)]
)
def test_an_oracle_is_perfect_on_every_sample_whatever_the_batch(copies, rows, devices):
    score, mesh = FreeRunning(answer=3), mesh_of(devices, 1)
    found = score.run(decoder_of(Oracle(), copies, rows, mesh=mesh), None, accuracy=0.3)
    assert found == {
        "free_running_accuracy": 1.0,
        "free_running_exact": 1.0,
        "answer_accuracy": 1.0,
        "task_accuracy": 1.0,
        "free_running_samples": 300,
    }
    found = score.run(decoder_of(Oracle(), copies, rows), None, 0.3, max_samples=11)
    assert found["free_running_samples"] == 11


def test_an_oracle_one_token_off_is_at_chance(copies):
    found = FreeRunning().run(decoder_of(Oracle(shift=1), copies), None, accuracy=1.0)
    chance = 0.1
    assert abs(found["free_running_accuracy"] - chance) < 4 * math.sqrt(0.09 / (300 * 2 * N))
    assert found["free_running_exact"] == 0.0


def test_a_partly_scored_task_counts_teacher_forced_accuracy(copies):
    for length, expected in ((2 * N, 1.0), (3 * N, 0.25)):
        decoder = decoder_of(Oracle(), copies, length=length)
        assert FreeRunning().run(decoder, None, accuracy=0.25)["task_accuracy"] == expected


def reading_again(model, sample, first, scored, length):
    """Each token by reading the whole sample so far once more, from its start, in segments."""
    tokens = list(sample[:first])
    while len(tokens) < first + scored:
        padded = np.zeros(-(-len(tokens) // length) * length, np.int32)
        padded[: len(tokens)] = tokens
        caches, logits = model.init_caches(1), []
        for segment in padded.reshape(-1, 1, length):
            logits_BTV, caches = read_segment(model, segment, np.zeros(1, bool), caches)
            logits.extend(logits_BTV[0])
        tokens.append(int(np.argmax(logits[len(tokens) - 1])))
    return tokens[first:]


@pytest.mark.parametrize(
    ("name", "first", "scored", "length"),
    [
        ("slide", 1, 5, 8),
        ("rec_fixed_skip", 15, 7, 8),
        slow("rec_fixed_skip", 9, 3, 4),
        ("memorizing_exact", 13, 6, 8),  # these remember at the ends of segments only
        ("txl_same_length", 14, 5, 6),
    ],
)
def test_writing_continues_what_was_read_in_segments(name, first, scored, length):
    model = random_model(name).for_segments(length)
    samples = np.random.default_rng(0).integers(0, 17, (2, first + scored)).astype(np.int32)
    written = quick_jit(lambda tokens: write(model, tokens, first, scored, length))(samples)
    for sample, found in zip(samples, written):
        assert found.tolist() == reading_again(model, sample, first, scored, length)


def test_the_scored_part_must_be_equal_in_all_samples(copies, tmp_path, store_of):
    assert scored_part(copies) == (N + 1, 2 * N)
    padded = ReverseTask(length=3, padded_length=8, num_train=9, num_validation=1, num_test=1)
    assert scored_part(store_of_task(padded, tmp_path / "a", "train")) == (4, 3)
    assert scored_part(store_of([9, 9])) == (1, 8)
    sharded = tmp_path / "sharded"
    samples = list(padded.documents("train"))
    write_store(sharded, samples, padded.vocabulary, {}, quiet=True, shard_bytes=100)
    assert scored_part(TokenStore(sharded)) == (4, 3)
    documents = [
        document._replace(weights=np.roll(document.weights, shift % 2))
        for shift, document in enumerate(samples)
    ]
    write_store(tmp_path / "b", documents, padded.vocabulary, {}, quiet=True)
    with pytest.raises(ValueError, match=r"bind Evaluation\.score = None"):
        scored_part(TokenStore(tmp_path / "b"))


@pytest.mark.parametrize("last", [3, 5 * N])
def test_teacher_forced_figures_count_the_end_and_non_blanks(last, copies):
    score, sums, rng = FreeRunning(end=last, blank=5), {}, np.random.default_rng(0)
    counts = {"accuracy_end": [0, 0], "accuracy_written": [0, 0], "accuracy_end_written": [0, 0]}
    for offset in (1, N + 1, 2 * N + 1):
        correct_BT = rng.random((6, N)) < 0.7
        documents_B = np.array([3, 0, -1, 7, 100, -1])
        offsets_B = np.where(documents_B < 0, 0, offset)
        segment = TokenScores(documents_B, offsets_B, None, None, None, correct_BT)
        score.add(sums, copies, segment)
        for row, document in enumerate(documents_B):
            for t in range(N):
                position = offset + t
                if document < 0 or position <= N:
                    continue
                end, written = position > 3 * N - last, copies.tokens(document)[position] != 5
                for name, counted in (
                    ("accuracy_end", end),
                    ("accuracy_written", written),
                    ("accuracy_end_written", end and written),
                ):
                    counts[name][0] += int(counted and correct_BT[row, t])
                    counts[name][1] += int(counted)
    expected = {name: right / of for name, (right, of) in counts.items()}
    assert score.scalars(sums, copies, True) == expected


TASK = (
    *PLAIN,
    *bound("BlockRecurrentTransformer", vocabulary_size=6, window=4),
    *bound("CopyTask", length=8, num_symbols=4, num_train=50, num_validation=13, num_test=10),
    *bound("Corpus", source="@CopyTask()"),
    *bound("Trainer", stream="samples", segment_length=8, segments_per_step=3, tokens_per_step=96),
    *bound("Trainer", eval_every=6, schedule="@constant_rate"),
    *bound("constant_rate", warmup_steps=2),
    *bound("Evaluation", tokens_per_step=40, score="@FreeRunning()"),
    *bound("FreeRunning", answer=4, end=8),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return build(write_config(tmp_path_factory.mktemp("tiny"), *TASK, without=("rsqrt",)))


def test_a_run_on_samples_reports_both_and_can_be_resumed(tiny, tmp_path, monkeypatch, capsys):
    whole = train_here(tiny, tmp_path / "whole")
    train_here(tiny, tmp_path / "cut", stop_after=2)
    assert_same_run(train_here(tiny, tmp_path / "cut"), whole)
    (last,) = (record for record in records(tmp_path / "whole", "eval/") if record["step"] == 6)
    assert last["eval/scored_tokens"] == 13 * 16 and last["eval/free_running_samples"] == 13
    for name in ("accuracy", "accuracy_end", "free_running_accuracy", "answer_accuracy"):
        assert 0 <= last[f"eval/{name}"] <= 1
    assert last["eval/task_accuracy"] == last["eval/free_running_accuracy"]
    split = '--gin.Evaluation.split="test"'
    assert not command(monkeypatch, evaluate, f"--workdir={tmp_path / 'whole'}", split)
    assert "max_steps" not in capsys.readouterr().err
    # A bound of evaluations in training changes nothing, which the command reports.
    path = tmp_path / "whole" / "evaluation_test.json"
    tokens = json.loads(path.read_text())["scored_tokens"]
    bound = "--gin.Evaluation.max_steps=1"
    assert not command(monkeypatch, evaluate, f"--workdir={tmp_path / 'whole'}", split, bound)
    assert "Evaluation.max_steps" in capsys.readouterr().err
    assert json.loads(path.read_text())["scored_tokens"] == tokens


@pytest.mark.parametrize(("max_steps", "samples"), [(1, 5), (4, 5), (6, 10), (99, 13)])
def test_a_bounded_evaluation_writes_that_many_samples(tiny, max_steps, samples):
    experiment, mesh = tiny.bind(), one_device()
    with jax.set_mesh(mesh):
        evaluator = Evaluator(experiment, experiment.open_store("validation"), mesh)
        scalars = evaluator.run(experiment.init_params(), max_steps=max_steps)
    assert scalars["free_running_samples"] == samples
    assert scalars["scored_tokens"] == samples * 16  # and the same ones are read


def test_an_evaluation_can_be_stopped_while_samples_are_written(tiny):
    experiment, mesh, calls = tiny.bind(), one_device(), []
    with jax.set_mesh(mesh):
        evaluator = Evaluator(experiment, experiment.open_store("validation"), mesh)
        evaluator.run(experiment.init_params(), after_segment=lambda: calls.append(0))
    assert len(calls) == 3 * 3 + 3  # segments of three batches, and these batches


def test_an_evaluation_without_a_scored_token_has_no_loss(tmp_path):
    """The answer is in the second segment and the third."""
    documents = (
        *bound("Trainer", stream="documents", segments_per_step=1, tokens_per_step=32),
        *bound("Evaluation", score=None, max_steps=1, cleared=False),
    )
    task = [line for line in TASK if not line.startswith("FreeRunning")]
    tiny = build(write_config(tmp_path, *task, *documents, without=("rsqrt",)))
    with pytest.raises(NoSuchMetric, match=r"no scored token: bind Evaluation\.max_steps"):
        train_here(tiny, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()
    assert not any("eval/loss" in record for record in read_metrics(tmp_path / "run"))
