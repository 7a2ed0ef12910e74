"""The shares of a run's time, against times that the test measures."""

import re
import time

import pytest
from tiny_run import start, write_config

from brt.training.records import goodput
from brt.training.records.goodput import LOST, Goodput, spent
from brt.training.records.run_folder import read_metrics


def test_causes_are_counted_once_and_the_rest_is_steps(monkeypatch, tmp_path):
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(Goodput, "_is_first", False)

    def passes(seconds):
        now[0] += seconds

    run = Goodput({}, str(tmp_path))
    with run.step():
        passes(10)  # compiles
    assert run.lap() == pytest.approx((0, 0))
    with spent("evaluation"):
        passes(4)
        with spent("input"):  # the evaluation's own
            passes(1)
    with run.step():
        passes(3)
    with spent("input"):
        passes(2)
    assert run.lap() == pytest.approx((5, 2))  # steps, and what they waited
    found = run.scalars()
    assert found["perf/lost_compile"] == pytest.approx(10 / 20)
    assert found["perf/lost_evaluation"] == pytest.approx(5 / 20)
    assert found["perf/lost_input"] == pytest.approx(2 / 20)
    assert found["perf/goodput"] == pytest.approx(3 / 20)
    saved = {"goodput": run.totals()}
    (tmp_path / "metrics.jsonl").write_text('{"step": 9, "perf/elapsed": 40}\n')
    passes(500)  # killed 20 s after the save; nobody starts it again for a while
    found = Goodput(saved, str(tmp_path)).scalars()
    assert found["perf/lost_repeated"] == pytest.approx(20 / 40)
    assert found["perf/goodput"] == pytest.approx(3 / 40)


@pytest.mark.slow
def test_a_killed_and_resumed_run_counts_repeated_work(tmp_path):
    path = write_config(
        tmp_path,
        *("Trainer.steps = 20", "Trainer.log_every = 1", "Trainer.eval_every = 0"),
        *("CheckpointPolicy.every = 1000000",),
    )
    folder, lived = tmp_path / "run", []

    def run(steps, seconds=None):
        begun = time.time()
        flags = f"--gin_file={path}", f"--workdir={folder}", f"--gin.Trainer.steps={steps}"
        process = start("brt.train", *flags)
        if seconds:
            while (
                max((record["step"] for record in read_metrics(str(folder), [])), default=0) <= 20
            ):
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.05)
            time.sleep(seconds)
            process.kill()
        err = process.communicate(timeout=300)[1]
        assert (process.returncode == 0) == (seconds is None), err
        lived.append(time.time() - begun)
        return err

    run(20)  # and saves
    run(1000000, seconds=3)
    time.sleep(2)  # which counts for nobody
    err = run(22)
    record = read_metrics(str(folder))[-1]
    share = {name: record[f"perf/lost_{name}"] for name in LOST}
    assert record["perf/goodput"] + sum(share.values()) == pytest.approx(1)
    elapsed = sum(lived)
    # A report is made before the last save and the end of Python.
    assert elapsed - 5 < record["perf/elapsed"] <= elapsed + 0.5
    assert lived[1] - 1.5 < share["repeated"] * record["perf/elapsed"] <= lived[1] + 0.5
    assert share["start"] + share["compile"] > 0.2  # of the first process and the last
    (told,) = re.findall(r"Of ([\d,]+) s, [\d.]+% were steps; lost: ", err)
    assert elapsed - 5 < float(told.replace(",", "")) <= elapsed + 1


def test_a_process_began_before_this_test():
    before = time.time()
    assert goodput.process_began() <= before
    assert before - goodput.process_began() < 24 * 3600
