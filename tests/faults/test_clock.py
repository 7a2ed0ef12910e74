"""The clock of the machine may be set back: records, events and resuming do not mind."""

import glob
import os
import struct
import time

import pytest
from gin_settings import bound
from tensorboardX.proto.event_pb2 import Event
from tiny_run import PLAIN, assert_same_run, build, train_here, write_config

from brt.training.records.run_folder import read_metrics

BINDINGS = (
    *PLAIN,
    *bound("Trainer", steps=8, log_every=1),
    "CheckpointPolicy.every = 3",
    "Trainer.eval_every = 4",
)


def events_by_file(folder):
    """The events of each file, in the order of their names."""
    found = []
    for name in sorted(glob.glob(os.path.join(str(folder), "events.out.tfevents.*"))):
        found.append([])
        with open(name, "rb") as file:
            while header := file.read(12):
                event = Event.FromString(file.read(struct.unpack("<Q", header[:8])[0]))
                file.read(4)
                found[-1].append(event)
    return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    return build(write_config(folder, *BINDINGS))


def test_a_clock_that_is_set_back_changes_nothing_of_a_run(tiny, tmp_path, monkeypatch):
    straight = train_here(tiny, tmp_path / "straight")
    real, back = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() - back[0])

    def set_back(step, state, batch):
        if step in (2, 7):
            back[0] += 3600.0 * step
        return state, batch

    train_here(tiny, tmp_path / "run", stop_after=5, hook=set_back)
    run = train_here(tiny, tmp_path / "run", hook=set_back)
    assert back[0] == 9 * 3600.0 and run.start == 5
    assert_same_run(run, straight)
    for record in read_metrics(str(tmp_path / "run")):
        timings = {name: value for name, value in record.items() if name.startswith("perf/")}
        assert all(value >= 0 for value in timings.values()), record
    files = events_by_file(tmp_path / "run")
    assert len(files) == 2
    events = [event for file in files for event in file]
    steps = [event.step for event in events if event.summary.value]
    assert steps == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    for file in files:
        times = [event.wall_time for event in file]
        assert times == sorted(times)
