"""Checkpoints that a run does not resume from are moved aside, and never deleted."""

import asyncio
import errno
import json
import logging
import os
import resource
import shutil
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from checkpoints import DAMAGES, abstract, array_file, flip, make_state, opened, restored, saved
from marking import slow
from tiny_run import contents, differing

from brt.training.checkpoints.checkpoint import CheckpointError, Checkpoints

pytestmark = pytest.mark.usefixtures("collect_garbage")


def named_aside(folder):
    return sorted(path.name for path in (folder / "aside").iterdir())


def run_on(folder, *steps):
    """Resumes from the newest readable checkpoint, as a run does, and saves these steps."""
    with opened(folder) as checkpoints:
        found, _ = checkpoints.restore_latest(abstract(make_state()))
        checkpoints.quarantine(int(found.step))
        for step in steps:
            checkpoints.save(make_state(step, seed=5), {})
        checkpoints.wait()
        return int(found.step), checkpoints.steps()


@pytest.mark.parametrize("damage", [slow(each, when=n % 3) for n, each in enumerate(DAMAGES)])
def test_a_damaged_checkpoint_is_skipped_and_never_deleted(tmp_path, damage, caplog):
    saved(tmp_path, 2, 4)
    DAMAGES[damage](tmp_path / "4")
    before = contents(tmp_path / "4")
    found, record = restored(tmp_path)
    assert not differing(found, make_state(2)) and record["step"] == 2
    assert f"Checkpoint 4 in {tmp_path} is damaged" in caplog.text
    assert run_on(tmp_path, 4, 6) == (2, [2, 4, 6])
    assert named_aside(tmp_path) == ["4-unreadable"]
    assert contents(tmp_path / "aside" / "4-unreadable") == before
    assert not differing(restored(tmp_path)[0], make_state(6, seed=5))


def test_a_restore_that_fails_waits_for_its_other_reads(tmp_path, monkeypatch):
    saved(tmp_path, 2)
    ended = []

    async def read(seconds):
        await asyncio.sleep(seconds)
        if not seconds:
            raise ValueError("DATA_LOSS")
        ended.append(seconds)

    async def deserialize(handler, infos, args):
        await asyncio.gather(read(0.1), read(0), read(0.2))

    monkeypatch.setattr(ocp.type_handlers.ArrayHandler, "deserialize", deserialize)
    with opened(tmp_path) as checkpoints, pytest.raises(CheckpointError, match="DATA_LOSS"):
        checkpoints.restore(2, abstract(make_state()))
    assert ended == [0.1, 0.2]


@pytest.mark.parametrize(
    "change",
    [
        *({"bindings": {"a": 1}}, {"ledger": "xyz"}, {"interval": {"nats": "1"}}),
        *({"fingerprints": {".step": "4"}}, {"vocabulary": {"name": 1}}),
    ],
    ids=str,
)
def test_a_record_with_a_value_of_another_type_is_damage(tmp_path, change):
    saved(tmp_path, 2, 4)
    path = tmp_path / "4" / "record" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert run_on(tmp_path) == (2, [2])
    assert named_aside(tmp_path) == ["4-unreadable"]


@pytest.mark.parametrize("kind", ["FIFO", "sparse"])
def test_a_fifo_or_a_sparse_file_is_damage_and_not_read(tmp_path, kind):
    saved(tmp_path, 2, 4)
    if kind == "FIFO":
        path = array_file(tmp_path / "4", "params")
        os.remove(path)
        os.mkfifo(path)
    else:
        os.truncate(tmp_path / "4" / "params" / "manifest.ocdbt", 2**40)
    assert run_on(tmp_path) == (2, [2])
    assert named_aside(tmp_path) == ["4-unreadable"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch], ids=["FIFO", "file"])
def test_a_file_named_like_a_checkpoint_is_moved(tmp_path, make):
    saved(tmp_path, 2)
    make(tmp_path / "4")
    assert run_on(tmp_path, 4) == (2, [2, 4])
    assert named_aside(tmp_path) == ["4-no-folder"]


def test_a_step_that_cannot_be_read_twice_is_put_aside_twice(tmp_path):
    saved(tmp_path, 2, 4)
    for _ in range(3):
        flip(array_file(tmp_path / "4", "params"))
        assert run_on(tmp_path, 4) == (2, [2, 4])
    assert named_aside(tmp_path) == ["4-unreadable", "4-unreadable-2", "4-unreadable-3"]


def test_what_keeping_so_many_deletes_are_not_those_put_aside(tmp_path):
    saved(tmp_path, 2, 4)
    flip(array_file(tmp_path / "4", "params"))
    assert run_on(tmp_path, 4, 6, 8, 10) == (2, [6, 8, 10])
    assert named_aside(tmp_path) == ["4-unreadable"]


WRAPPED = ValueError("the arrays could not be restored")
WRAPPED.__cause__ = OSError(errno.EACCES, "Permission denied")
FAILURES = (
    *(OSError(errno.EMFILE, "Too many open files"), MemoryError(), WRAPPED),
    ValueError('DATA_LOSS: Error reading "d/1": [OS error 5: EIO Input/output error]'),
)


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_a_checkpoint_that_cannot_be_read_just_now_stops_the_run(tmp_path, monkeypatch, failure):
    def fail(*_):
        raise failure

    saved(tmp_path, 2, 4)
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_restore", fail)
        with pytest.raises(CheckpointError, match=r"^Checkpoint 4 .* could not be") as caught:
            run_on(tmp_path)
    assert str(tmp_path / "4") in str(caught.value) and "run the same command" in str(caught.value)
    assert contents(tmp_path) == before
    assert run_on(tmp_path) == (4, [2, 4])


def test_without_a_free_file_the_run_stops(tmp_path):
    saved(tmp_path, 2, 4)
    with opened(tmp_path) as checkpoints:
        checkpoints.restore_latest(abstract(make_state()))
        usual = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The limit bounds the descriptors' numbers, and a free number may lie below one in use.
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, usual[1]))
        try:
            with pytest.raises(CheckpointError, match="Too many open files"):
                checkpoints.restore_latest(abstract(make_state()))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        assert int(checkpoints.restore_latest(abstract(make_state()))[0].step) == 4


@pytest.mark.parametrize("copied", [2, 6])
def test_a_copy_under_another_steps_name_is_put_aside(tmp_path, caplog, copied):
    saved(tmp_path, 2, 4, 6)
    shutil.copytree(tmp_path / str(copied), tmp_path / "7")
    before = contents(tmp_path / "7")
    with caplog.at_level(logging.WARNING):
        assert run_on(tmp_path) == (6, [2, 4, 6])
    assert f"it holds step {copied}" in caplog.text
    assert named_aside(tmp_path) == ["7-unreadable"]
    assert contents(tmp_path / "aside" / "7-unreadable") == before


def test_reading_alone_moves_nothing(tmp_path):
    saved(tmp_path, 2, 4)
    flip(array_file(tmp_path / "4", "params"))
    shutil.copytree(tmp_path / "2", tmp_path / "7")
    before = contents(tmp_path)
    assert int(restored(tmp_path)[0].step) == 2
    assert contents(tmp_path) == before


def test_a_folder_of_somebody_else_is_put_aside(tmp_path):
    saved(tmp_path, 2, 4)
    (tmp_path / "2019").mkdir()
    (tmp_path / "2019" / "thesis.txt").write_text("years of work")
    assert run_on(tmp_path, 6, 8, 10) == (4, [6, 8, 10])
    assert (tmp_path / "aside" / "2019-unreadable" / "thesis.txt").read_text() == "years of work"
