"""The run folder: records and events are whole, and cut back where a run is resumed."""

import glob
import itertools
import json
import logging
import os
import time

import gin
import jax
import numpy as np
import pytest
from tiny_run import events_by_file, files_of_at_most

from brt.training.records import event_files
from brt.training.records.event_files import EventFile
from brt.training.records.run_folder import RunFolder, read_metrics


def values(step):
    return {"train/loss": 1 / (step + 3), "train/x": 2.0 * step, "perf/x": 1e-9, "note": "text"}


def recorded(path, steps, start=0, **options):
    """Records at each of the steps, in a folder that is closed then."""
    folder = RunFolder(str(path), **options)
    folder.open_metrics(start)
    for step in steps:
        folder.record(step, values(step))
    folder.close()


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 6, 99])
def test_resuming_cuts_the_records_to_its_first_step(tmp_path, start):
    recorded(tmp_path, [2, 4, 6])
    recorded(tmp_path, [], start)
    kept = [s for s in (2, 4, 6) if s <= start]
    assert read_metrics(str(tmp_path)) == [{"step": s, **values(s)} for s in kept]
    recorded(tmp_path, [100], start)
    assert [record["step"] for record in read_metrics(str(tmp_path))] == [*kept, 100]


@pytest.mark.parametrize("torn", range(1, 40, 3))
def test_a_torn_last_line_is_dropped_wherever_it_was_cut(tmp_path, torn):
    recorded(tmp_path, [2, 4, 6])
    file = tmp_path / "metrics.jsonl"
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b'{"step": 6') + torn])
    recorded(tmp_path, [6], start=4)
    assert [record["step"] for record in read_metrics(str(tmp_path))] == [2, 4, 6]
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_last_line_without_its_end_of_line_is_whole(tmp_path):
    recorded(tmp_path, [2, 4])
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    recorded(tmp_path, [6], start=4)
    assert [record["step"] for record in read_metrics(str(tmp_path))] == [2, 4, 6]


def test_records_without_a_checkpoint_are_put_aside(tmp_path):
    for number in (1, 2):
        recorded(tmp_path, [number])
        folder = RunFolder(str(tmp_path))
        aside = folder.open_metrics(0)
        folder.close()
        assert os.path.basename(aside) == f"metrics.{number}.jsonl"
        with open(aside) as file:
            assert json.loads(file.read())["step"] == number
        assert read_metrics(str(tmp_path)) == []


def test_a_record_is_on_disk_before_the_folder_is_closed(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.open_metrics(0)
    folder.record(2, values(2))
    assert read_metrics(str(tmp_path)) == [{"step": 2, **values(2)}]
    folder.sync()
    folder.close()


def test_events_of_another_program_stay_where_a_run_begins(tmp_path):
    other = tmp_path / "events.out.tfevents.1000000000.elsewhere"
    other.write_bytes(b"of another program")
    recorded(tmp_path, [])
    assert other.read_bytes() == b"of another program"


def test_a_process_that_does_not_write_leaves_no_trace(tmp_path):
    folder = RunFolder(str(tmp_path / "run"), writes=False)
    folder.describe("Trainer.steps = 1")
    folder.open_metrics(0)
    folder.record(1, values(1))
    folder.sync()
    folder.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "line",
    [
        *("{}", "[]", "null", "12", '{"step": "x"}', '{"step": 1, "a": null}', '{"step": true}'),
        *('{"step": 1, "a": [1]}', '{"step": -1}', '{"step": 1, "a": 1' + "0" * 400 + "}"),
        *("[" * 100_000, "\udcff\udc80", '{"step": 2'),
    ],
    ids=lambda line: line[:24].encode("ascii", "replace").decode(),
)
def test_a_damaged_line_is_left_out_with_a_warning(tmp_path, line, caplog):
    recorded(tmp_path, [2, 4, 6])
    path = tmp_path / "metrics.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([first, line.encode("utf-8", "surrogateescape") + b"\n", *others])
    path.write_bytes(damaged)
    problems = []
    assert [r["step"] for r in read_metrics(str(tmp_path), problems)] == [2, 4, 6]
    (sentence,) = problems
    assert sentence == f"{path} is damaged: these lines were left out: 2."
    with caplog.at_level(logging.WARNING):
        recorded(tmp_path, [8], start=4)
    assert str(path) in caplog.text and "kept as" in caplog.text
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == damaged
    assert [r["step"] for r in read_metrics(str(tmp_path))] == [2, 4, 8]


def test_the_folder_says_what_was_run_and_with_what(tmp_path):
    folder = RunFolder(str(tmp_path / "deep" / "run"))
    gin.clear_config()
    folder.describe("Trainer.steps = 1\n")
    assert (tmp_path / "deep/run/config.gin").read_text() == "Trainer.steps = 1\n"
    assert (tmp_path / "deep/run/command.txt").read_text().strip()
    environment = json.loads((tmp_path / "deep/run/environment.json").read_text())
    assert environment["packages"]["jax"] == jax.__version__
    assert environment["packages"]["brt"]
    assert len(environment["devices"]) == jax.device_count()
    assert (tmp_path / "deep/run/operative_config.gin").exists()
    assert not glob.glob(str(tmp_path / "deep/run/*.new"))


def test_a_folder_that_cannot_be_made_is_named_with_its_flag(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="--workdir") as caught:
        RunFolder(str(tmp_path / "file" / "run"))
    assert str(tmp_path / "file" / "run") in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_without_write_permission_names_its_flag(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="--workdir"):
        RunFolder(str(tmp_path))


@pytest.mark.parametrize("lines", [1, 7, 10, 11, 1_000, 10_007])
def test_a_long_run_is_read_in_even_records_and_evaluations(tmp_path, lines):
    kinds = ["eval/loss" if step % 97 == 0 else "train/loss" for step in range(lines)]
    text = "".join(json.dumps({"step": n, kind: 1.0}) + "\n" for n, kind in enumerate(kinds))
    (tmp_path / "metrics.jsonl").write_text(text)
    found = read_metrics(str(tmp_path), most=10)
    steps = [record["step"] for record in found]
    assert steps == sorted(steps) and steps[-1] == lines - 1
    evaluations = [record["step"] for record in found if "eval/loss" in record]
    assert evaluations == list(range(0, lines, 97))
    trained = [record["step"] for record in found if "train/loss" in record]
    assert lines <= 10 or len(trained) <= 2 * 10 + 2
    assert max(np.diff([0, *steps])) <= max(1, (lines + 1) // 10)
    assert len(read_metrics(str(tmp_path))) == lines


# Event files.


def files(path):
    return sorted(path.glob("events.out.tfevents.*"))


def events(path):
    """(step, wall time, scalars) of the events that TensorBoard shows."""
    found = []
    for event in itertools.chain(*events_by_file(path)):
        if event.HasField("session_log"):
            found = [entry for entry in found if entry[0] < event.step]
        if event.summary.value:
            scalars = {value.tag: value.simple_value for value in event.summary.value}
            found.append((event.step, event.wall_time, scalars))
    return found


def steps_of(path):
    """Steps of both kinds of records."""
    steps = [step for step, *_ in events(path)]
    assert [record["step"] for record in read_metrics(str(path))] == steps
    return steps


def test_events_beyond_the_step_of_a_resumed_run_are_purged(tmp_path):
    recorded(tmp_path, [2, 4, 6, 6, 8])
    before = events(tmp_path)
    recorded(tmp_path, [8, 10], start=6)
    assert steps_of(tmp_path) == [2, 4, 6, 6, 8, 10]
    assert events(tmp_path)[:4] == before[:4]
    recorded(tmp_path, [], start=2)
    assert steps_of(tmp_path) == [2]


def test_a_torn_event_beyond_the_step_does_not_matter(tmp_path):
    recorded(tmp_path, [2, 4, 6])
    (first,) = files(tmp_path)
    first.write_bytes(first.read_bytes()[:-5])
    recorded(tmp_path, [6], start=4)
    assert steps_of(tmp_path) == [2, 4, 6] and files(tmp_path)[0] == first


def test_events_begin_when_a_run_goes_on_with_them(tmp_path):
    recorded(tmp_path, [2, 4], metrics=("jsonl",))
    assert not files(tmp_path)
    recorded(tmp_path, [6], start=4)
    assert steps_of(tmp_path) == [2, 4, 6]
    recorded(tmp_path, [8], start=6, metrics=("jsonl",))
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
