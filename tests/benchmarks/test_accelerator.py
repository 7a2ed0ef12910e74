"""The one command for whoever has a machine: its tiny form, and what it does when things fail."""

import json
import math
import subprocess
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from accelerator import agreement, systems
from accelerator import measure as accelerator
from paths import ROOT
from tiny_run import quick_environment

from brt.reporting.papers.published_tables import read_paper
from brt.sweeps.scales import SCALES

TINY = ("BlockRecurrentTransformer.vocabulary_size = 64",)
NAMES = "pg19_slide_13l", "pg19_rec_fixed_skip"


@pytest.mark.slow
def test_the_script_writes_one_json_and_one_table(tmp_path):
    file = tmp_path / "found.json"
    line = ["bash", str(ROOT / "scripts" / "measure_accelerator.sh"), f"--figures={file}"]
    # A folder and an ending may stand around a name.
    line.append(f"--systems=configs/{NAMES[1]}.gin,{NAMES[0]}")
    done = subprocess.run(
        line, env=quick_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(file.read_text())
    assert [row["name"] for row in found["configs"]] == list(NAMES)  # the baseline first
    slide, rec = found["configs"]
    assert slide["ratio"] == 1.0 and slide["tokens"] == rec["tokens"] == 64
    assert rec["ratio"] == pytest.approx(rec["seconds"] / slide["seconds"])
    for row in found["configs"]:
        assert row["peak_bytes"] > 0 and row["seconds"] > 0
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
    assert [row["rows"] for row in found["decoding"]] == [1, 8, 64]
    assert all(row["tokens_per_second"] > 0 for row in found["decoding"])
    for name in NAMES:
        assert found["agreement"][name]["agrees"], found["agreement"]
        assert found["agreement"][name]["decoding"] < 1e-4
    text = file.with_suffix(".md").read_text()
    assert "these figures say nothing of one" in text and text in done.stdout
    assert text.count("| agrees (loss ") == 2 and text.count("Decoding with") == 3


def test_the_table_has_a_row_for_each_system_in_order():
    found = [system.name for system in systems.systems(SCALES["paper"])]
    assert len(found) - 1 == len(read_paper("block_recurrent").table("table_1").rows) == 14
    assert len(found) == 15 and found[:6] == list(systems.FIRST) and found[0] == systems.BASELINE


@pytest.fixture
def tiny_plan():
    return accelerator.plan()._replace(rows=8)


def took(rows, seconds=0.5, tokens=None):
    return systems.Timed(rows, tokens or 64 * rows, seconds, 1.0, 2**20, {})


def test_rows_are_halved_until_the_step_fits(monkeypatch, tiny_plan):
    (system,) = systems.systems(SCALES["tiny"], NAMES[:1], TINY)
    tried = []

    def time_step(experiment, seconds):
        rows = experiment.trainer.rows // jax.device_count()
        tried.append(rows)
        if rows > 2:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 GiB.")
        return took(experiment.trainer.rows, tokens=experiment.trainer.tokens_per_step)

    monkeypatch.setattr(accelerator, "time_step", time_step)
    found = accelerator.fitting(system, tiny_plan)
    assert tried == [8, 4, 2] and found["rows"] == 2 * jax.device_count()


def test_what_fails_is_said_and_the_rest_is_measured(monkeypatch):
    message = "INTERNAL: driver\nat x"

    def time_step(experiment, seconds):
        if len(experiment.model.layers) == 2:  # three are Slide:13L's
            raise RuntimeError(message)
        return took(1)

    figures = {"loss": 1e-7, "agrees": True}
    monkeypatch.setattr(accelerator, "time_step", time_step)
    monkeypatch.setattr(accelerator.agreement, "compare", lambda *_: figures)
    monkeypatch.setattr(
        accelerator.decoding,
        "time_decoding",
        lambda experiment, rows, tokens: accelerator.decoding.Decoding(rows, 0.25, 1.0),
    )
    found = accelerator.measure(NAMES, 10, lambda line: None)
    assert found.steps[NAMES[1]] == {"error": f"failed: {message.splitlines()[0]}"}
    assert found.steps[NAMES[0]]["seconds"] == 0.5
    assert found.agreement == dict.fromkeys(NAMES, figures)
    assert {rows: row["tokens_per_second"] for rows, row in found.decoding.items()} == {
        1: 4.0,
        8: 32.0,
        64: 256.0,
    }
    text = accelerator.table(found, "a machine")
    assert f"| {NAMES[1]} | failed: {message.splitlines()[0]} |" in text
    assert f"| {NAMES[0]} | 1.000 | 500.0 | 128 |" in text
    assert "agrees (loss 1e-07)" in text


def test_what_there_is_no_time_for_says_not_run(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(accelerator, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slowly(*_):
        now[0] += 100.0
        return took(1)

    monkeypatch.setattr(accelerator, "time_step", slowly)
    found = accelerator.measure((), 5, lambda line: None)
    measured = [name for name, row in found.steps.items() if "error" not in row]
    # After 200 s another 100 s would still end in time, after 300 s they would not.
    assert measured == list(systems.FIRST[:3])
    assert {row["error"] for row in found.decoding.values()} == {accelerator.NO_TIME}
    assert len(found.steps) == len(found.agreement) == 15


def test_what_a_file_has_is_not_measured_again(monkeypatch, tmp_path):
    tried = []

    def time_step(experiment, seconds):
        tried.append(len(experiment.model.layers))
        if tried[-1] == 2 and len(tried) < 3:
            raise RuntimeError("once")
        return took(1)

    monkeypatch.setattr(accelerator, "time_step", time_step)
    monkeypatch.setattr(accelerator.agreement, "compare", lambda *_: {"agrees": True})
    monkeypatch.setattr(
        accelerator.decoding,
        "time_decoding",
        lambda experiment, rows, tokens: accelerator.decoding.Decoding(rows, 0.25, 1.0),
    )
    kept = []
    first = accelerator.measure(NAMES, 10, lambda line: None, keep=kept.append)
    again = accelerator.measure(NAMES, 10, lambda line: None, first)
    assert tried == [3, 2, 2]  # the step that failed, once more
    assert len(kept) == 2 * len(NAMES) + 3
    assert all("seconds" in row for row in again.steps.values())


def test_figures_of_another_device_are_refused(tmp_path):
    file = tmp_path / "found.json"
    assert accelerator.earlier(file, {"device": "a"}) == accelerator.Measured({}, {}, {})
    rows = [{"name": "x", "seconds": 1.0}]
    file.write_text(
        json.dumps({"device": "a", "configs": rows, "agreement": {}, "decoding": [{"rows": 8}]})
    )
    assert accelerator.earlier(file, {"device": "a"}).steps == {"x": {"seconds": 1.0}}
    for content in (file.read_text(), file.read_text()[:40], "[]", "{}"):
        file.write_text(content)
        with pytest.raises(ValueError, match="another --figures"):
            accelerator.earlier(file, {"device": "b"})


def test_a_device_that_computes_something_else_does_not_agree(monkeypatch):
    """The second of the two devices reads the segments as if their tokens were others."""
    (system,) = systems.systems(
        SCALES["tiny"], NAMES[1:], (*TINY, "BlockRecurrentTransformer.dropout = 0.0")
    )
    good = agreement.compare(system, "Trainer.tokens_per_step = 64")
    assert good["agrees"] and good["gradient"] <= agreement.LIMITS["gradient"]
    assert good["cut"] <= 1e-4 and good["decoding"] <= 1e-4
    monkeypatch.setattr(agreement, "_laws", lambda *_: {})
    calls = []
    drawn = systems.random_batch

    def another(experiment, seed=0):
        calls.append(seed)
        batch = drawn(experiment, seed)
        if len(calls) == agreement.SEGMENTS + 1:
            inputs = np.roll(batch.inputs_KBT, 1, axis=-1)
            return batch._replace(inputs_KBT=inputs)
        return batch

    monkeypatch.setattr(agreement, "random_batch", another)
    bad = agreement.compare(system, "Trainer.tokens_per_step = 64")
    assert not bad["agrees"] and bad["loss"] > agreement.LIMITS["loss"]
    assert bad["memory"] > agreement.LIMITS["memory"] and not math.isnan(bad["gradient"])
