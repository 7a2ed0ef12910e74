"""The clock of the machine may be set back: records, events and resuming do not mind."""

import time

from gin_settings import bound
from tiny_run import PLAIN, assert_same_run, events_by_file, train_here

from brt.training.records.run_folder import read_metrics

LINES = (
    *PLAIN,
    *bound("Trainer", steps=8, log_every=1),
    "CheckpointPolicy.every = 3",
    "Trainer.eval_every = 4",
)


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
    files = list(events_by_file(tmp_path / "run"))
    assert len(files) == 2
    events = [event for file in files for event in file]
    steps = [event.step for event in events if event.summary.value]
    assert steps == [1, 2, 3, 4, 4, 5, 6, 7, 8, 8]
    for file in files:
        times = [event.wall_time for event in file]
        assert times == sorted(times)
