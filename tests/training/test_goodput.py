"""The shares of a run's time, against times that the test measures."""

import time

import pytest

from brt.training.records.goodput import Goodput, spent


def test_causes_are_counted_once_and_the_rest_is_steps(monkeypatch, tmp_path):
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
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
