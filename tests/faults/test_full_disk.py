"""A disk that fills in training: a sentence with the path, and the same result afterwards.

The disk is a small file system in memory of its own, which only root may mount.
"""

import subprocess
from contextlib import suppress

import pytest
from gin_settings import bound
from tiny_run import PLAIN, assert_same_run, command, train_here

from brt import train
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.records.run_folder import RunFolder

LINES = (
    *PLAIN,
    *bound("Trainer", steps=12, log_every=1),
    "CheckpointPolicy.every = 3",
    "Trainer.eval_every = 4",
    *bound("Evaluation", max_steps=3, cleared=False),
)


class Disk:
    """A small file system.

    Attributes:
        path: where it is mounted.
    """

    def __init__(self, path):
        self.path = path
        self._filler = path / "of_somebody_else"

    def fill(self):
        """Leaves no byte, whoever else is writing."""
        with open(self._filler, "ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(2**16))

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


def fill_at(monkeypatch, disk, owner, name, number):
    """Fills the disk before call `number` of a function."""
    called, calls = getattr(owner, name), []

    def filling(*arguments, **options):
        calls.append(name)
        if len(calls) == number:
            disk.fill()
        return called(*arguments, **options)

    monkeypatch.setattr(owner, name, filling)


@pytest.mark.usefixtures("collect_garbage")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("owner", "name", "number", "named"),
    [
        # Of its two files the first that needs another page.
        (RunFolder, "record", 8, ("metrics.jsonl", "events.out.tfevents")),
        (Checkpoints, "save", 4, ("checkpoints",)),  # the last: no record comes after it
        (RunFolder, "describe", 1, ("config.gin",)),
    ],
)
def test_training_names_the_file_and_continues_with_room(
    tiny, straight, disk, monkeypatch, capsys, owner, name, number, named
):
    workdir = disk.path / "run"
    line = [f"--gin_file={tiny.path}", f"--workdir={workdir}"]
    with monkeypatch.context() as patch:
        fill_at(patch, disk, owner, name, number)
        assert command(monkeypatch, train, *line) == 1
    err = capsys.readouterr().err
    sentence = next(text for text in err.splitlines() if text.startswith("Error:"))
    assert str(workdir) in sentence and any(name in sentence for name in named)
    assert "No space left on device" in sentence and "free some space" in sentence.lower()
    assert "Traceback" not in err
    disk.free()
    assert command(monkeypatch, train, *line) == 0
    assert_same_run(train_here(tiny, workdir), straight)
