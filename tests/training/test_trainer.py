"""The loop: a run that was stopped, killed or evaluated is the run that never was."""

import json
import re
import shutil
import signal
import time
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoints import flip
from tiny_run import (
    PLAIN,
    assert_same_run,
    build,
    command,
    contents,
    differing,
    leaves,
    one_device,
    records,
    start,
    train_here,
    write_config,
)

from brt import evaluate, model_folder, train
from brt.data.stores import token_store
from brt.data.streams.checksum import MODULUS, checksum_of
from brt.data.streams.documents import DocumentStream
from brt.data.streams.select import training_stream
from brt.evaluation.evaluator import Evaluator
from brt.model_folder import load_run
from brt.run.loop import NonFiniteLoss
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.checkpoints.parameters import load_params
from brt.training.records.run_folder import read_metrics

STEPS = 12
BINDINGS = (
    f"Trainer.steps = {STEPS}",
    "Trainer.log_every = 5",  # does not divide the steps between checkpoints
    "CheckpointPolicy.every = 3",
    "CheckpointPolicy.keep_last = 20",
    "Trainer.eval_every = 4",
    "Evaluation.max_steps = 3",
    "Evaluation.cleared = False",
)


# Records of a run.


def test_a_run_records_every_interval_and_every_evaluation_once(straight, tiny):
    folder = straight.folder.path
    assert [record["step"] for record in records(folder, "train/")] == [5, 10, 12]
    assert [record["step"] for record in records(folder, "eval/")] == [4, 8, 12]
    assert straight.checkpoints.steps() == [3, 6, 9, 12]
    trainer = tiny.experiment.trainer
    stream = DocumentStream(
        trainer.corpus.open("train"), trainer.rows, trainer.segment_length, 1, trainer.seed
    )
    tokens = [stream.batch(step).weights_KBT.sum() for step in range(STEPS)]
    expected = [sum(tokens[:5]), sum(tokens[5:10]), sum(tokens[10:])]
    assert [record["train/scored_tokens"] for record in records(folder, "train/")] == expected
    # Parameters and two moments at least, in float32.
    parameters = sum(x.size for x in leaves(straight.state.params).values())
    for record in records(folder, "train/", "perf/"):
        assert {"train/loss", "train/learning_rate", "train/layer0/cell_grad_norm"} <= set(record)
        assert record["perf/peak_bytes"] > 4 * parameters and record["perf/step_seconds"] > 0
    assert records(folder, "train/")[-1]["train/loss"] < records(folder, "train/")[0]["train/loss"]
    for record in records(folder, "eval/"):
        assert {"eval/loss", "eval/accuracy", "eval/scored_tokens"} <= set(record)


def test_the_checksum_is_recorded_and_kept_when_resumed(straight, tiny):
    trainer, checksum, expected = tiny.experiment.trainer, 0, {}
    for step in range(STEPS):
        stream = training_stream(
            "documents", trainer.corpus.open("train"), trainer.rows, trainer.segment_length
        )
        checksum = (checksum + checksum_of(stream.batch(step), step)) % MODULUS
        expected[step + 1] = f"{checksum:016x}"
    found = {r["step"]: r["data/ledger"] for r in records(straight.folder.path, "data/")}
    assert found == {step: expected[step] for step in (5, 10, 12)}
    kept = {step: straight.checkpoints.record(step)["ledger"] for step in (3, 6, 9, 12)}
    assert kept == {step: expected[step] for step in (3, 6, 9, 12)}


def test_training_moves_every_parameter(straight, tiny):
    with jax.set_mesh(straight.mesh):
        first = leaves(tiny.bind().jit_init(straight.mesh)().params)
    last = leaves(straight.state.params)
    assert last.keys() == first.keys()
    for name in first:
        assert np.abs(last[name] - first[name]).max() > 1e-4, name


# Stopped, killed, evaluated.


def test_a_run_that_was_stopped_ends_like_one_that_was_not(tiny, straight, tmp_path):
    for stop in (1, 10):
        run = train_here(tiny, tmp_path, stop_after=stop)
        assert int(run.state.step) == stop == run.checkpoints.steps()[-1]
    run = train_here(tiny, tmp_path)
    assert run.resumed and run.start == 10
    assert_same_run(run, straight)


@pytest.mark.parametrize(("killed", "safe", "torn"), [(8, 6, True), (12, 9, False)])
def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(
    tiny, straight, tmp_path, killed, safe, torn
):
    folder = tmp_path / "run"
    shutil.copytree(straight.folder.path, folder)
    for step in range(safe + 1, STEPS + 1):
        shutil.rmtree(folder / "checkpoints" / str(step), ignore_errors=True)
    (folder / "checkpoints" / f"{safe + 3}.orbax-checkpoint-tmp").mkdir()
    lines = [
        json.dumps(r) + "\n" for r in read_metrics(straight.folder.path) if r["step"] <= killed
    ]
    lines[-1] = lines[-1][:30] if torn else lines[-1]
    (folder / "metrics.jsonl").write_text("".join(lines))
    run = train_here(tiny, folder)
    assert run.start == safe
    assert_same_run(run, straight)


def test_evaluating_in_between_changes_no_training_record(tiny, straight, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny.experiment.trainer, "eval_every", 0)
    run = train_here(tiny, tmp_path)
    assert not differing(run.state, straight.state)
    assert records(tmp_path, "train/") == records(straight.folder.path, "train/")
    assert records(tmp_path, "eval/") == []


def test_a_termination_signal_saves_and_the_same_command_goes_on(tmp_path):
    path = write_config(tmp_path, *PLAIN, "Trainer.log_every = 1")
    flags = [f"--gin_file={path}", f"--workdir={tmp_path / 'run'}", "--gin.Trainer.steps=1000000"]
    reached = 0
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = start("brt.train", *flags)
        for line in process.stderr:
            if (shown := re.match(r"step ([\d,]+)/", line)) and int(
                shown[1].replace(",", "")
            ) >= reached + 3:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status, err
        assert ("Resuming" in out) == (reached > 0)
        if reached:
            assert f"from step {reached:,}." in out
        before, reached = reached, int(re.search(r"saved step (\d+), run again", err)[1])
        assert reached > before
        assert (tmp_path / "run" / "checkpoints" / str(reached)).is_dir()
    assert [r["step"] for r in read_metrics(str(tmp_path / "run"))] == [*range(1, reached + 1)]


def test_a_second_signal_does_not_end_the_last_save(tiny, tmp_path, monkeypatch):
    wait, waits = Checkpoints.wait, []

    def interrupted(self):
        waits.append(self)
        if len(waits) == 2:  # before and after the save
            signal.raise_signal(signal.SIGTERM)
        wait(self)

    def end(*_):
        raise SystemExit("the process ends")

    monkeypatch.setattr(Checkpoints, "wait", interrupted)
    monkeypatch.setattr(tiny.experiment.trainer, "eval_every", 0)
    previous = signal.signal(signal.SIGTERM, end)
    try:
        run = train_here(tiny, tmp_path, stop_after=2)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert len(waits) > 1 and run.checkpoints.steps() == [2]


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_like_one_that_was_not(tmp_path):
    path = write_config(
        tmp_path,
        *("Trainer.steps = 40", "Trainer.log_every = 7", "Trainer.eval_every = 9"),
        *("CheckpointPolicy.every = 5", "CheckpointPolicy.keep_last = 2"),
    )
    tiny, rng = build(path), np.random.default_rng()
    seconds, kills = rng.uniform(0.0, 2.5, 6), 0
    for name in ("straight", "killed"):
        flags = [f"--gin_file={path}", f"--workdir={tmp_path / name}"]
        while True:
            process = start("brt.train", *flags)
            if name == "killed" and kills < len(seconds):
                for line in process.stderr:
                    if line.startswith(("step ", "eval ")):
                        break
                time.sleep(seconds[kills])
                process.kill()
                kills += 1
            err = process.communicate(timeout=120)[1]
            assert process.returncode in (0, -signal.SIGKILL), err
            if process.returncode == 0 and (name == "straight" or kills == len(seconds)):
                break
    states = [
        load_params(str(tmp_path / name), tiny.experiment.abstract_state())[0]
        for name in ("straight", "killed")
    ]
    assert int(states[0].step) == 40 and not differing(*(state.params for state in states))
    assert records(tmp_path / "straight") == records(tmp_path / "killed"), seconds


# A loss that is not finite.


def poison(step):
    def hook(number, state, batch):
        if number == step:
            weights = np.array(batch.weights_KBT)
            weights[0, 0, 0] = np.inf
            weights = jax.device_put(weights, batch.weights_KBT.sharding)
            batch = batch._replace(weights_KBT=weights)
        return state, batch

    return hook


def test_a_non_finite_loss_stops_with_a_good_checkpoint(tiny, straight, tmp_path):
    # In step 9, which is itself to be saved.
    with pytest.raises(NonFiniteLoss, match=r"^Step 9: .*not finite") as caught:
        train_here(tiny, tmp_path, hook=poison(9))
    sentence = str(caught.value)
    assert f"step 6 in {tmp_path}/checkpoints" in sentence
    assert "Trainer.skip_nonfinite" in sentence
    assert read_metrics(tmp_path)[-1] == {"step": 9, "alert/not_finite": 1.0}
    run = train_here(tiny, tmp_path)
    assert run.start == 6
    assert_same_run(run, straight)
    with pytest.raises(NonFiniteLoss, match=r"^Step 2: .*checkpoint is none yet in"):
        train_here(tiny, tmp_path / "other", hook=poison(2))


def test_an_interval_of_skipped_steps_does_not_end_the_run(tmp_path):
    skipping = "Trainer.skip_nonfinite = True", "Trainer.log_every = 1", "Trainer.steps = 2"
    path = write_config(tmp_path, *PLAIN, *skipping)
    run = train_here(build(path), tmp_path / "run", hook=poison(2))
    assert [record["train/skipped_steps"] for record in records(tmp_path / "run")] == [0, 1]
    assert run.checkpoints.steps() == [2]


# A store that is damaged.


@pytest.mark.parametrize(("split", "saved"), [("train", []), ("validation", ["3"])])
def test_a_damaged_store_ends_training_before_it_is_read(tmp_path, split, saved, monkeypatch):
    monkeypatch.setattr(token_store, "SMALL", -1)  # no file is read before training
    tiny = build(write_config(tmp_path, *PLAIN), *BINDINGS)
    tokens = tmp_path / "stores" / split / "shard-00000" / "tokens.bin"
    flip(tokens)
    with pytest.raises(ValueError, match=f"^{tokens} is damaged"):
        train_here(tiny, tmp_path / "run")
    assert read_metrics(str(tmp_path / "run")) == []
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*")] == saved


# Again, and from another run.


def gin_flags(tiny):
    lines = *tiny.bindings, "Trainer.eval_every = 0"
    return [f"--gin_file={tiny.path}", *(f"--gin_bindings={line}" for line in lines)]


def test_a_finished_run_says_so_and_stays_as_it_is(tiny, straight, monkeypatch, capsys):
    folder = straight.folder.path
    before = contents(folder)
    assert command(monkeypatch, train, *gin_flags(tiny), f"--workdir={folder}") == 0
    assert str(folder) in capsys.readouterr().out
    assert contents(folder) == before


def test_a_finished_run_can_be_made_longer(tiny, straight, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(straight.folder.path, folder)
    monkeypatch.setattr(tiny.experiment.trainer, "steps", 14)
    monkeypatch.setattr(tiny.experiment.trainer, "eval_every", 0)
    run = train_here(tiny, folder)
    assert run.start == STEPS and int(run.state.step) == 14
    assert [record["step"] for record in records(folder, "train/")] == [5, 10, 12, 14]


def test_a_run_can_begin_with_the_parameters_of_another(tiny, straight, tmp_path, monkeypatch):
    # The first step has a learning rate of 0, so its parameters are still those it began with.
    source = Path(straight.folder.path)
    monkeypatch.setattr(model_folder, "gin_folders", lambda: (source.parent,))
    # A name below configs/, such as trained/text.
    flags = [*gin_flags(tiny), f"--workdir={tmp_path}", f"--load_dir={source.name}"]
    loaded, load, run = [], train.load_params, train.TrainingRun.run

    def load_watched(*arguments):
        state, record = load(*arguments)
        loaded.extend(map(weakref.ref, jax.tree.leaves(state.params)))
        return state, record

    def run_watched(self):
        assert loaded and not any(
            array() is not None for array in loaded
        )  # no second copy on the devices
        return run(self)

    monkeypatch.setattr(train, "load_params", load_watched)
    monkeypatch.setattr(train.TrainingRun, "run", run_watched)
    assert command(monkeypatch, train, *flags, "--gin.Trainer.steps=1") == 0
    experiment, params, step = load_run(str(tmp_path))
    assert step == 1
    assert not differing(params, straight.state.params)
    state, _ = load_params(str(tmp_path), experiment.abstract_state())
    assert int(state.step) == 1
    flags[-1] = f"--load_dir={tmp_path / 'gone'}"
    assert command(monkeypatch, train, *flags, "--gin.Trainer.steps=2") == 0  # resumes


def test_a_run_folder_is_enough_to_load_a_run(straight):
    experiment, params, step = load_run(straight.folder.path)
    assert step == STEPS and experiment.bindings == straight.experiment.bindings
    assert not differing(params, straight.state.params)


# The commands.


def test_a_dry_run_prints_the_sizes_and_touches_nothing(tiny, tmp_path, monkeypatch, capsys):
    flags = [*gin_flags(tiny), "--dry_run", f"--workdir={tmp_path / 'run'}"]
    assert command(monkeypatch, train, *flags, "--gin.Corpus.store='nowhere'") == 0
    rows = {line[:30].strip(): line[30:].strip() for line in capsys.readouterr().out.splitlines()}
    count = sum(x.size for x in jax.tree.leaves(tiny.experiment.abstract_params))
    embedding = tiny.experiment.abstract_params["embedding_VD"].size
    shown = {
        name: int(re.search(r"\(([\d,]+)\)", rows[name])[1].replace(",", ""))
        for name in ("parameters, embedding", "parameters, non-embedding")
    }
    assert sum(shown.values()) == count
    assert shown["parameters, embedding"] >= embedding
    assert rows["tokens per step"] == "64 (4 batch elements)"
    assert rows["devices, data x fsdp x model"] == "1 x 1 x 1"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", [evaluate, train])
def test_both_ways_to_evaluate_score_the_whole_split(tiny, straight, monkeypatch, capsys, module):
    folder = Path(straight.folder.path)
    flags = {evaluate: [], train: [*gin_flags(tiny), "--eval_only"]}[module]
    assert command(monkeypatch, module, *flags, f"--workdir={folder}") == 0
    written = json.loads((folder / "evaluation_validation.json").read_text())
    store = tiny.experiment.open_store("validation")
    assert (written["step"], written["split"]) == (STEPS, "validation")
    assert written["scored_tokens"] == store.manifest["tokens"]
    mesh = one_device()
    with jax.set_mesh(mesh):
        expected = Evaluator(tiny.experiment, store, mesh).run(straight.state.params)
    assert {name: written[name] for name in expected} == expected
    assert "given" not in written  # the run's own flags are not of the evaluation
    out = capsys.readouterr().out
    assert all(name in out for name in expected) and f"at step {STEPS}, validation" in out
