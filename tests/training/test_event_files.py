"""Event files: cut back where a run is resumed, and written whole."""

import json
import struct
import time

import pytest
from tensorboardX.proto.event_pb2 import Event
from tiny_run import files_of_at_most

from brt.training.records import event_files
from brt.training.records.event_files import EventFile
from brt.training.records.run_folder import RunFolder, read_metrics


def recorded(path, steps, start=0, kinds=("jsonl", "tensorboard")):
    folder = RunFolder(str(path), metrics=kinds)
    folder.open_metrics(start)
    for step in steps:
        folder.record(step, {"train/loss": 1 / (step + 3), "note": "text", "train/x": 2.0 * step})
    folder.close()


def files(path):
    return sorted(path.glob("events.out.tfevents.*"))


def events(path):
    """(step, wall time, scalars) of the events that TensorBoard shows, read byte by byte."""
    found = []
    for name in files(path):
        with open(name, "rb") as file:
            while len(header := file.read(12)) == 12:
                size = struct.unpack("<Q", header[:8])[0]
                if len(data := file.read(size)) < size or len(file.read(4)) < 4:
                    break  # torn
                event = Event.FromString(data)
                if event.HasField("session_log"):
                    found = [entry for entry in found if entry[0] < event.step]
                if event.summary.value:
                    scalars = {value.tag: value.simple_value for value in event.summary.value}
                    found.append((event.step, event.wall_time, scalars))
    return found


def steps(path):
    assert [r["step"] for r in read_metrics(str(path))] == [step for step, *_ in events(path)]
    return [step for step, *_ in events(path)]


def test_events_beyond_the_step_of_a_resumed_run_are_purged(tmp_path):
    recorded(tmp_path, [2, 4, 6, 6, 8])
    before = events(tmp_path)
    recorded(tmp_path, [8, 10], start=6)
    assert steps(tmp_path) == [2, 4, 6, 6, 8, 10]
    assert events(tmp_path)[:4] == before[:4]
    recorded(tmp_path, [], start=2)
    assert steps(tmp_path) == [2]


def test_a_torn_event_beyond_the_step_does_not_matter(tmp_path):
    recorded(tmp_path, [2, 4, 6])
    (first,) = files(tmp_path)
    first.write_bytes(first.read_bytes()[:-5])
    recorded(tmp_path, [6], start=4)
    assert steps(tmp_path) == [2, 4, 6] and files(tmp_path)[0] == first


def test_events_begin_when_a_run_goes_on_with_them(tmp_path):
    recorded(tmp_path, [2, 4], kinds=("jsonl",))
    assert not files(tmp_path)
    recorded(tmp_path, [6], start=4)
    assert steps(tmp_path) == [2, 4, 6]
    recorded(tmp_path, [8], start=6, kinds=("jsonl",))
    assert not files(tmp_path)


def test_a_new_file_comes_after_all_others_whatever_the_clock(tmp_path, monkeypatch):
    for now in (2_000_000_000.5, 2_000_000_000.6, 1_000_000_000.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        EventFile(str(tmp_path)).close()
    seconds = [int(path.name.split(".")[3]) for path in files(tmp_path)]
    assert seconds == [2_000_000_000, 2_000_000_001, 2_000_000_002]


def test_events_go_to_the_disk_after_a_while_unasked(tmp_path, monkeypatch):
    file = EventFile(str(tmp_path))
    file.write(1, {"train/loss": 1.0})
    assert not events(tmp_path)
    monkeypatch.setattr(event_files, "FLUSHED", -1.0)
    file.write(2, {"train/loss": 1.0})
    assert len(events(tmp_path)) == 2
    file.close()


def test_a_full_disk_leaves_whole_lines_and_whole_events(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.open_metrics(0)
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        for step in range(1, 100):
            with files_of_at_most(1000):
                folder.record(step, {"train/loss": 0.1, "note": "x" * 50})
    with files_of_at_most(500), pytest.raises(OSError, match=r"Cannot write .*tfevents"):
        folder.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.endswith("}\n") and len(text) <= 1000
    found = [json.loads(line)["step"] for line in text.splitlines()]
    assert found == list(range(1, len(found) + 1)) and len(found) > 5
    last = found[-1]
    recorded(tmp_path, [last + 1], start=last)
    assert [r["step"] for r in read_metrics(str(tmp_path))] == [*found, last + 1]
