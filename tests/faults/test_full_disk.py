"""A disk that fills: a sentence with the path, nothing damaged, and the same result afterwards.

The disk is a small file system in memory of its own, which only root may mount.
"""

import os
import subprocess
from contextlib import suppress

import pytest
from gin_settings import bound
from tiny_run import (  # noqa: F401
    PLAIN,
    assert_same_run,
    build,
    collect_garbage,
    command,
    contents,
    train_here,
    write_config,
)

from brt import evaluate, prepare, train
from brt.data.stores import shards
from brt.evaluation import recording_writer
from brt.model_folder import load_run
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.records.run_folder import RunFolder

MEGABYTE = 2**20
BINDINGS = (
    *PLAIN,
    *bound("Trainer", steps=12, log_every=1),
    "CheckpointPolicy.every = 3",
    "Trainer.eval_every = 4",
    *bound("Evaluation", max_steps=3, cleared=False),
)
WITHOUT = ("RecurrentCell",)


class Disk:
    """A small file system.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path):
        self.path = path
        self._filler = path / "of_somebody_else"

    def fill(self, left=0):
        """Leaves only so many bytes, whoever else is writing."""
        with open(self._filler, "ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))
        os.truncate(self._filler, os.path.getsize(self._filler) - left)

    def free(self):
        """Makes room again."""
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("mounting needs the program mount")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("full")
    return build(write_config(folder, *BINDINGS, without=WITHOUT))


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    return train_here(tiny, tmp_path_factory.mktemp("runs") / "straight")


def fill_at(monkeypatch, disk, owner, name, number, left=0):
    """Fills the disk before call `number` of a function."""
    called, calls = getattr(owner, name), []

    def filling(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            disk.fill(left)
        return called(*arguments, **options)

    monkeypatch.setattr(owner, name, filling)


@pytest.mark.usefixtures("collect_garbage")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("owner", "name", "number", "left", "named"),
    [
        # Of its two files the first that needs another page.
        (RunFolder, "record", 8, 0, ("metrics.jsonl", "events.out.tfevents")),
        (Checkpoints, "save", 4, 0, ("checkpoints",)),  # the last: no record comes after it
        (RunFolder, "describe", 1, 0, ("config.gin",)),
    ],
)
def test_training_names_the_file_and_continues_with_room(
    tiny, straight, disk, monkeypatch, capsys, owner, name, number, left, named
):
    workdir = disk.path / "run"
    line = [f"--gin_file={tiny.path}", f"--workdir={workdir}"]
    with monkeypatch.context() as patch:
        fill_at(patch, disk, owner, name, number, left)
        assert command(monkeypatch, train, *line) == 1
    err = capsys.readouterr().err
    sentence = next(text for text in err.splitlines() if text.startswith("Error:"))
    assert str(workdir) in sentence and any(name in sentence for name in named)
    assert "No space left on device" in sentence and "free some space" in sentence.lower()
    assert "Traceback" not in err
    disk.free()
    assert command(monkeypatch, train, *line) == 0
    assert_same_run(train_here(tiny, workdir), straight)


def test_preparation_names_the_store_and_continues_with_room(tmp_path, disk, monkeypatch, capsys):
    monkeypatch.setattr(shards, "SHARD_BYTES", MEGABYTE)
    (tmp_path / "long" / "train").mkdir(parents=True)
    for number in range(6):
        (tmp_path / "long" / "train" / f"{number}.txt").write_bytes(bytes([97 + number]) * MEGABYTE)

    def line(store):
        return [
            *(f"--gin_file={path}", "--splits=train", "--workers=1"),
            f"--gin.Corpus.store='{store}'",
            f"--gin.TextFiles.path='{tmp_path / 'long'}/{{split}}'",
        ]

    path = write_config(tmp_path, *BINDINGS, without=WITHOUT)
    assert command(monkeypatch, prepare, *line(tmp_path / "whole")) == 0
    for left in (0, 1000, 5 * MEGABYTE, 9 * MEGABYTE):
        store = disk.path / f"store{left}"
        disk.fill(left)
        capsys.readouterr()
        assert command(monkeypatch, prepare, *line(store)) == 1
        err = capsys.readouterr().err
        assert str(store) in err.splitlines()[-1] and "Traceback" not in err
        assert not (store / "train" / "manifest.json").exists()
        disk.free()
        assert command(monkeypatch, prepare, *line(store)) == 0
        made, whole = (contents(folder / "train") for folder in (store, tmp_path / "whole"))
        assert {name: data for name, (_, data) in made.items()} == {
            name: data for name, (_, data) in whole.items()
        }
        subprocess.run(["rm", "-r", str(store)], check=True)


def test_a_recording_names_the_file_and_continues_with_room(
    tiny, straight, disk, monkeypatch, capsys, tmp_path
):
    workdir = disk.path / "run"
    subprocess.run(["cp", "-r", straight.folder.path, str(workdir)], check=True)
    line = [f"--workdir={workdir}", "--record"]
    for number in (1, 5, 9):
        with monkeypatch.context() as patch:
            fill_at(patch, disk, recording_writer, "_put", number)
            status = command(monkeypatch, evaluate, *line)
        err = capsys.readouterr().err
        if status:
            assert "Cannot write" in err and "recordings" in err and "Traceback" not in err
        disk.free()
    assert command(monkeypatch, evaluate, *line) == 0
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", straight.folder.path, str(other)], check=True)
    assert command(monkeypatch, evaluate, f"--workdir={other}", "--record") == 0
    found, expected = (contents(folder / "recordings") for folder in (workdir, other))
    arrays = [name for name in expected if name.endswith(".bin")]
    assert len(arrays) == 4
    assert all(found[name][1] == expected[name][1] for name in arrays)
    assert load_run(str(workdir)) is not None
