"""Runs whose folder, store and config lie in a bucket are the runs of a disk."""

import json
import threading
from pathlib import Path

import fsspec
import jax
import pytest
from tiny_run import (
    LENGTHS,
    assert_same_run,
    build,
    command,
    differing,
    one_device,
    records,
    train_here,
    write_config,
)

from brt import evaluate, generate, train
from brt.data.stores import store_cache
from brt.evaluation.recording import Recording
from brt.model_folder import load_run
from brt.storage import paths
from brt.storage.growing import GrowingFiles
from brt.storage.paths import RemotePath, StorageError
from brt.training.checkpoints import mirror as mirror_module
from brt.training.checkpoints.checkpoint import CheckpointError
from brt.training.checkpoints.mirror import CheckpointMirror
from brt.training.checkpoints.parameters import load_params
from brt.training.records import run_lock
from brt.training.records.run_folder import RunFolder, read_metrics

BUCKET = "memory://test-runs"
RUN = f"{BUCKET}/run"


@pytest.fixture(autouse=True)
def empty_bucket(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "SETTLE", 0.0)
    monkeypatch.setattr(paths, "OF_ONE_PROCESS", ())  # the tests are one
    store_cache.use(str(tmp_path / "cache"))
    yield fsspec.filesystem("memory")
    store_cache.use(None)
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="module")
def local(folder):
    return build(write_config(folder), "CheckpointPolicy.every = 2")


@pytest.fixture(scope="module")
def straight(local, folder):
    return train_here(local, folder / "straight")


@pytest.fixture(scope="module")
def remote(folder):
    path = write_config(folder)
    return build(path, "CheckpointPolicy.every = 2", f'Corpus.store = "{BUCKET}/stores"')


@pytest.fixture
def tiny(remote):
    """The same experiment with its store in the bucket, which is emptied after each test."""
    for split in LENGTHS:
        remote.bind().trainer.corpus.prepare(split, quiet=True)
    return remote


def names(folder):
    """Of what lies in a folder; fsspec's memory shows folders that were emptied, too."""
    return [path.name for path in RemotePath(folder).iterdir() if path.is_file() or path.files()]


def test_a_run_in_a_bucket_is_the_run_of_a_disk(tiny, straight):
    run = train_here(tiny, RUN)
    assert run.folder.path == RUN
    assert_same_run(run, straight)
    assert {"config.gin", "operative_config.gin", "command.txt", "environment.json"} <= set(
        names(RUN)
    )
    (events,) = (name for name in names(RUN) if name.startswith("events.out.tfevents."))
    assert RemotePath(f"{RUN}/{events}").size() > 500
    assert [name for name in names(f"{RUN}/checkpoints") if name.isdigit()] == ["2", "4", "6"]


def test_a_stopped_run_continues_from_the_bucket(tiny, straight):
    train_here(tiny, RUN, stop_after=3)
    assert [record["step"] for record in records(RUN)] == [2]
    run = train_here(tiny, RUN)
    assert run.start == 3
    assert_same_run(run, straight)
    assert len([name for name in names(RUN) if name.startswith("events.out")]) == 1


def test_a_checkpoint_that_was_half_copied_is_none(tiny, straight):
    train_here(tiny, RUN, stop_after=4)
    RemotePath(f"{RUN}/checkpoints/4/commit_success.txt").unlink()
    run = train_here(tiny, RUN)
    assert run.start == 2
    assert_same_run(run, straight)


def test_a_damaged_checkpoint_is_put_aside_in_the_bucket(tiny, straight, caplog):
    train_here(tiny, RUN, stop_after=4)
    RemotePath(f"{RUN}/checkpoints/4/record/metadata").write_text("{")
    run = train_here(tiny, RUN)
    assert run.start == 2 and f"Checkpoint 4 in {RUN}/checkpoints" in caplog.text
    assert names(f"{RUN}/checkpoints/aside") == ["4-unreadable"]
    moved = RemotePath(f"{RUN}/checkpoints/aside/4-unreadable")
    assert (moved / "record/metadata").read_text() == "{"
    assert_same_run(run, straight)


def test_a_bucket_that_cannot_be_written_stops_the_run(tiny, monkeypatch):
    usual = RemotePath.put

    def put(self, file):
        if "/checkpoints/4/" in str(self):
            raise StorageError(f"{self} cannot be written (no quota).")
        usual(self, file)

    monkeypatch.setattr(RemotePath, "put", put)
    with pytest.raises(CheckpointError, match=r"no quota.*Complete checkpoints: \[2\]"):
        train_here(tiny, RUN)


def test_training_continues_while_a_checkpoint_is_copied(tiny, straight, monkeypatch):
    usual, reached = CheckpointMirror.publish, threading.Event()

    def publish(self, step):
        assert step != 2 or reached.wait(20)
        usual(self, step)

    def hook(step, state, batch):
        if step == 4:
            reached.set()
        return state, batch

    monkeypatch.setattr(CheckpointMirror, "publish", publish)
    run = train_here(tiny, RUN, hook=hook)
    assert_same_run(run, straight)
    assert [name for name in names(f"{RUN}/checkpoints") if name.isdigit()] == ["2", "4", "6"]


def test_a_copy_on_this_disk_is_used_if_it_is_complete(monkeypatch):
    for name in ("record", "params", "commit_success.txt"):
        RemotePath(f"{BUCKET}/checkpoints/3/{name}").write_text(name)
    mirror, fetched = CheckpointMirror(RemotePath(f"{BUCKET}/checkpoints")), []

    def download(remote, local):
        fetched.append(local)
        (local / "record").parent.mkdir()
        (local / "record").write_text("half of it")
        raise StorageError("The connection ended.")

    with monkeypatch.context() as patched, pytest.raises(StorageError):
        patched.setattr(mirror_module, "download", download)
        mirror.fetch(3)
    assert fetched and not (mirror.folder / "3").exists()
    mirror.fetch(3)
    assert (mirror.folder / "3" / "record").read_text() == "record"
    RemotePath(f"{BUCKET}/checkpoints/3/record").write_text("another")
    mirror.fetch(3)
    assert (mirror.folder / "3" / "record").read_text() == "record"


def test_records_are_copied_and_a_failing_bucket_is_reported(monkeypatch, caplog):
    folder = RunFolder(RUN)
    folder.open_metrics(0)
    folder.record(1, {"train/loss": 1.0})
    assert read_metrics(RUN) == []  # too early
    monkeypatch.setattr("brt.storage.growing.SECONDS", 0.0)
    folder._growing._next = 0.0
    folder.record(2, {"train/loss": 2.0})
    assert [record["step"] for record in read_metrics(RUN)] == [1, 2]

    def fail(self):
        raise StorageError("The line is cut.")

    with monkeypatch.context() as broken:
        broken.setattr(GrowingFiles, "copy", fail)
        folder._growing._next = 0.0
        folder.record(3, {"train/loss": 3.0})
    assert "The line is cut." in caplog.text
    folder.close()
    assert [record["step"] for record in read_metrics(RUN)] == [1, 2, 3]


@pytest.mark.slow
def test_commands_read_run_config_and_parameters_from_the_bucket(
    tiny, straight, monkeypatch, tmp_path, capsys
):
    config = RemotePath(f"{BUCKET}/tiny.gin")
    config.write_text(tiny.path.read_text())
    given = ["--gin_file=" + str(config), *(f"--gin_bindings={line}" for line in tiny.bindings)]
    cache = f"--store_cache={tmp_path / 'cache'}"
    assert not command(monkeypatch, train, *given, cache, f"--workdir={RUN}")
    assert records(RUN) == records(straight.folder.path)

    assert not command(monkeypatch, evaluate, f"--workdir={RUN}", "--record", cache)
    found = json.loads(RemotePath(f"{RUN}/evaluation_validation.json").read_bytes())
    assert not command(monkeypatch, evaluate, f"--workdir={straight.folder.path}", "--record")
    with open(f"{straight.folder.path}/evaluation_validation.json") as file:
        assert found == json.load(file)
    for state in ("kept", "cleared"):
        ours = {
            path.name: path.read_bytes()
            for path in RemotePath(f"{RUN}/recordings/validation-{state}").files()
        }
        folder = Path(straight.folder.path, "recordings", f"validation-{state}")
        assert ours.keys() == {path.name for path in folder.iterdir()}
        assert all(ours[f"{d}.npz"] == (folder / f"{d}.npz").read_bytes() for d in range(7))

    memory = f"{BUCKET}/book.memory"
    options = ("--prompt=the tea", "--max_tokens=0", cache)
    assert not command(
        monkeypatch, generate, f"--workdir={RUN}", *options, f"--save_memory={memory}"
    )
    assert RemotePath(memory).size() > 100
    assert not command(
        monkeypatch, generate, f"--workdir={RUN}", f"--load_memory={memory}", "--max_tokens=3"
    )
    assert "has read 7 tokens" in capsys.readouterr().err

    _, params, step = load_run(RUN)
    assert step == 6 and not differing(params, straight.state.params)
    begun = f"{BUCKET}/begun"
    assert not command(monkeypatch, train, *given, cache, f"--workdir={begun}", f"--load_dir={RUN}")
    assert [record["step"] for record in records(begun)] == [2, 4, 6]


def test_a_recording_goes_on_with_what_the_bucket_has(tiny, monkeypatch, tmp_path):
    train_here(tiny, RUN)
    cache = f"--store_cache={tmp_path / 'cache'}"
    some = ("--documents=2", "--study_seed=1")
    assert not command(monkeypatch, evaluate, f"--workdir={RUN}", "--record", *some, cache)
    folder = f"{RUN}/recordings/validation-kept"
    assert Recording(folder).done_D.sum() == 2
    read = []
    import brt.evaluation.recording_writer as recording

    usual = recording.DocumentPass

    def counted(*arguments, documents, **options):
        read.append(len(documents))
        return usual(*arguments, documents=documents, **options)

    monkeypatch.setattr(recording, "DocumentPass", counted)
    assert not command(monkeypatch, evaluate, f"--workdir={RUN}", "--record", cache)
    assert read == [5, 5] and Recording(folder).done_D.all()


def test_several_processes_are_refused_a_single_writers_bucket(tiny, monkeypatch):
    abstract = tiny.bind().abstract_state(one_device())
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    RemotePath(f"{RUN}/checkpoints/2/x").write_text("x")
    with pytest.raises(ValueError, match=r"[Pp]rocesses"):
        load_params(RUN, abstract)
