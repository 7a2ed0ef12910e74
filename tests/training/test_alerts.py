"""Alerts: problems without an error cause one warning, and a mark in the records."""

import logging
import time

import pytest
from tiny_run import build, records, train_here, write_config

from brt.training.records import alerts
from brt.training.records.alerts import Alerts, StallWatch
from brt.training.records.run_folder import read_metrics

HEALTHY = {
    "train/loss": 2.0,
    "train/skipped_steps": 0.0,
    "train/layer1/state_share": 0.3,
    "perf/step_seconds": 0.5,
    "perf/data_wait": 0.01,
    "data/ledger": "0f",
}


def looks(*reports):
    """Alerts of each report, and all that was said."""
    said = []
    watched = Alerts(said.append)
    found = [watched.look(number, HEALTHY | report) for number, report in enumerate(reports, 1)]
    return found, said


def test_a_healthy_run_is_left_alone():
    assert looks(*[{}] * 10) == ([{}] * 10, [])


def test_a_memory_hardly_read_is_named_once():
    dead = {"train/layer1/state_share": 0.002}
    found, said = looks({}, dead, dead, {}, dead)
    assert [bool(alert) for alert in found] == [False, True, True, False, True]
    assert found[1] == {"alert/dead_state": 1.0}
    assert len(said) == 2 and said[0].startswith("Step 2: layer1/state_share is 0.002, below 0.01")


def test_each_layer_and_each_kind_of_memory_is_named():
    both = {"train/layer1/state_share": 0.0, "train/layer4/own/memory_share": 0.001}
    found, said = looks(both)
    assert found == [{"alert/dead_state": 1.0}]
    assert "layer1/state_share" in said[0] and "layer4/own/memory_share" in said[1]


def test_the_share_is_compared_with_its_threshold():
    at = {"train/layer1/state_share": alerts.DEAD_SHARE}
    assert looks(at) == ([{}], [])
    assert looks({"train/layer1/state_share": alerts.DEAD_SHARE * 0.999})[1]


@pytest.mark.parametrize("usual", [0.01, 3.0])
def test_a_step_much_slower_than_the_others_is_a_stall(usual):
    reports = [{"perf/step_seconds": usual * factor} for factor in (1, 1.2, 0.9, 1, 6, 6, 1)]
    found, said = looks(*reports)
    assert [set(alert) for alert in found] == [*[set()] * 4, *[{"alert/stall"}] * 2, set()]
    assert len(said) == 1 and "waiting for data: 1%" in said[0]


def test_the_first_reports_are_no_stall_whatever_they_took():
    assert looks({"perf/step_seconds": 0.01}, {"perf/step_seconds": 9.0})[1] == []


def test_skipped_updates_and_numbers_that_are_none_are_named():
    found, said = looks({"train/skipped_steps": 2.0}, {"train/grad_norm": float("nan")})
    assert found == [{"alert/not_finite": 1.0}] * 2
    (sentence,) = said
    assert sentence.startswith("Step 1: 2 updates")
    assert "train/grad_norm" in looks({"train/grad_norm": float("inf")})[1][0]


def test_a_stalled_run_is_reported_once_and_a_pause_is_not():
    said = []
    watch = StallWatch(said.append, least=0.2)
    time.sleep(0.5)  # compiling
    watch.step_done()
    watch.pause()
    time.sleep(0.5)  # evaluating
    assert not said
    watch.step_done()
    time.sleep(0.6)
    watch.close()
    assert len(said) == 1
    assert not watch._thread.is_alive()


def test_a_run_whose_steps_take_long_is_given_as_much_more():
    said = []
    watch = StallWatch(said.append, least=0.1)
    watch.step_done()
    time.sleep(0.09)
    watch.step_done()
    time.sleep(0.25)
    watch.close()
    assert not said


def test_alerts_stand_in_the_records_and_change_no_other_number(tmp_path, monkeypatch, caplog):
    tiny = build(write_config(tmp_path))
    train_here(tiny, tmp_path / "before")
    assert not any("alert/dead_state" in record for record in read_metrics(tmp_path / "before"))
    monkeypatch.setattr(alerts, "DEAD_SHARE", 1.0)
    with caplog.at_level(logging.WARNING):
        train_here(tiny, tmp_path / "run")
    assert [record["alert/dead_state"] for record in read_metrics(tmp_path / "run")] == [1.0] * 3
    assert caplog.text.count("layer0/state_share is") == 1
    assert records(tmp_path / "run") == records(tmp_path / "before")
