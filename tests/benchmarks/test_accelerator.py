"""The one command for whoever has a machine: its tiny form, and what it does when things fail."""

import json
import math
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from accelerator import agreement, measure
from accelerator.systems import BASELINE, FIRST, systems
from apart import run
from paths import ROOT
from tiny_run import quick_environment

from brt.reporting.papers.published_tables import read_paper
from brt.sweeps.scales import SCALES

TINY = ("BlockRecurrentTransformer.vocabulary_size = 64",)
NAMES = "pg19_slide_13l", "pg19_rec_fixed_skip"


@pytest.mark.slow
def test_the_script_writes_one_json_and_one_table(tmp_path):
    file = tmp_path / "found.json"
    script = "bash", ROOT / "scripts" / "measure_accelerator.sh", f"--figures={file}"
    # A folder and an ending may stand around a name.
    chosen = f"--systems=configs/{NAMES[1]}.gin,{NAMES[0]}"
    printed = run(*script, chosen, **quick_environment())
    found = json.loads(file.read_text())
    assert list(found["steps"]) == list(NAMES)  # the baseline first
    for row in found["steps"].values():
        assert row["peak_bytes"] > 0 and row["tokens"] == 64
        assert row["tokens_per_second"] == pytest.approx(64 / row["step_seconds"])
    assert list(found["decoding"]) == ["1", "8", "64"]
    assert all(row["tokens_per_second"] > 0 for row in found["decoding"].values())
    for name in NAMES:
        assert found["agreement"][name]["agrees"], found["agreement"]
        assert found["agreement"][name]["decoding"] < 1e-4
    text = file.with_suffix(".md").read_text()
    assert "these figures say nothing of one" in text and text in printed
    assert text.count("| agrees (loss ") == 2 and "Decoding with" in text


def test_the_table_has_a_row_for_each_system_in_order():
    found = [system.name for system in systems(SCALES["paper"])]
    assert len(found) - 1 == len(read_paper("block_recurrent").table("table_1").rows) == 14
    assert len(found) == 15 and found[:6] == list(FIRST) and found[0] == BASELINE


def took(rows, seconds=0.5, tokens=64):
    speed = {"step_seconds": seconds, "tokens_per_second": tokens / seconds}
    return {"rows": rows, "tokens": tokens, "compile_seconds": 1.0, **speed}


def test_rows_are_halved_until_the_step_fits(monkeypatch):
    (system,) = systems(SCALES["tiny"], NAMES[:1], TINY)
    tried = []

    def time_step(experiment, seconds):
        rows = experiment.trainer.rows // jax.device_count()
        tried.append(rows)
        if rows > 2:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 GiB.")
        return took(experiment.trainer.rows)

    monkeypatch.setattr(measure, "time_step", time_step)
    found = measure.fitting(system, 8, 64, 0)
    assert tried == [8, 4, 2] and found["rows"] == 2 * jax.device_count()


def measured(figures=None, names=NAMES, minutes=10, keep=lambda: None):
    figures = figures or {kind: {} for kind in measure.KINDS}
    measure.measure(measure.measurements(names), figures, minutes, keep)
    return figures


def test_what_fails_is_said_and_measured_again(monkeypatch):
    tried, kept, message = [], [], "INTERNAL: driver\nat x"

    def time_step(experiment, seconds):
        tried.append(len(experiment.model.layers))  # three are Slide:13L's
        if tried == [3, 2]:
            raise RuntimeError(message)
        return took(1)

    agrees = {"loss": 1e-7, "agrees": True}
    monkeypatch.setattr(measure, "time_step", time_step)
    monkeypatch.setattr(measure.agreement, "compare", lambda *_: agrees)
    monkeypatch.setattr(measure, "time_decoding", lambda _, rows, tokens: took(rows, 0.25, rows))
    found = measured(keep=lambda: kept.append(1))
    said = f"failed: {message.splitlines()[0]}"
    assert found["steps"] == {NAMES[0]: took(1), NAMES[1]: {"error": said}}
    assert found["agreement"] == dict.fromkeys(NAMES, agrees)
    speeds = {rows: row["tokens_per_second"] for rows, row in found["decoding"].items()}
    assert speeds == {"1": 4.0, "8": 32.0, "64": 256.0}
    text = re.sub(" +", " ", measure.tables(found, "a machine"))
    assert f"| {NAMES[1]} | {said} |" in text and "| 64 | 250.00 | 256 |" in text
    assert f"| {NAMES[0]} | 1.000 | 500.0 | 128 |" in text and "agrees (loss 1e-07)" in text
    again = measured(found, keep=lambda: kept.append(1))
    assert tried == [3, 2, 2] and len(kept) == 2 * len(NAMES) + 3 + 1
    assert again["steps"] == dict.fromkeys(NAMES, took(1))


def test_what_there_is_no_time_for_says_not_run(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slowly(*_):
        now[0] += 100.0
        return took(1)

    monkeypatch.setattr(measure, "time_step", slowly)
    found = measured(names=(), minutes=5)
    # After 200 s another 100 s would still end in time, after 300 s they would not.
    assert [name for name, row in found["steps"].items() if "error" not in row] == list(FIRST[:3])
    assert {row["error"] for row in found["decoding"].values()} == {measure.NO_TIME}
    assert len(found["steps"]) == len(found["agreement"]) == 15


def test_figures_of_another_device_are_refused(tmp_path):
    file = tmp_path / "found.json"
    figures = measure.earlier(file, {"device": "a"})
    assert figures == {kind: {} for kind in measure.KINDS}
    figures["steps"]["x"] = took(1)
    file.write_text(json.dumps({"device": "a", **figures}))
    assert measure.earlier(file, {"device": "a"}) == figures
    for content in (file.read_text(), file.read_text()[:40], "[]", "{}"):
        file.write_text(content)
        with pytest.raises(ValueError, match="another --figures"):
            measure.earlier(file, {"device": "b"})


def test_a_device_that_computes_something_else_does_not_agree(monkeypatch):
    """The second of the two devices reads the segments as if their tokens were others."""
    (system,) = systems(
        SCALES["tiny"], NAMES[1:], (*TINY, "BlockRecurrentTransformer.dropout = 0.0")
    )
    good = agreement.compare(system, "Trainer.tokens_per_step = 64")
    assert good["agrees"] and good["gradient"] <= agreement.LIMITS["gradient"]
    assert good["cut"] <= 1e-4 and good["decoding"] <= 1e-4
    monkeypatch.setattr(agreement, "_laws", lambda *_: {})
    calls = []
    drawn = agreement.random_batch

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
