"""The timed predictions are the same, from a memory and from a window of its own.

The clock of these tests counts floating-point operations: every program that is run moves it by as
many seconds as the compiler counts in it. So each figure has one right value.
"""

import json
from types import SimpleNamespace

import jax
import pytest
from tiny_run import TXL, command, write_config

from brt import benchmark
from brt.benchmarks.timing import evaluation_speed
from brt.reporting.papers.fill import paper_tables
from brt.reporting.papers.published_tables import read_paper
from brt.reporting.step_times import read_step_times


class Operations:
    """Replaces the modules `jax` and `time` of the measurement.

    now: operations so far. programs: operations of each program, in the order they were made.
    """

    def __init__(self):
        self.now, self.programs = 0.0, []

    def jit(self, function):
        program, number = jax.jit(function), len(self.programs)
        self.programs.append(0.0)

        def run(*arguments):
            self.programs[number] = program.lower(*arguments).cost_analysis()["flops"]
            self.now += self.programs[number]
            return program(*arguments)

        return run

    def __getattr__(self, name):
        return getattr(jax, name)


@pytest.fixture
def operations(monkeypatch):
    counted = Operations()
    clock = SimpleNamespace(**dict.fromkeys(("process_time", "perf_counter"), lambda: counted.now))
    monkeypatch.setattr(evaluation_speed, "jax", counted)
    monkeypatch.setattr(evaluation_speed, "time", clock)
    return counted


@pytest.fixture
def measured(monkeypatch, tmp_path, operations):
    """Returns a function that measures a tiny Transformer-XL and returns the path of the result."""
    config = write_config(tmp_path, *TXL)

    def run(*flags):
        flags = f"--evaluation_speed={config}", f"--json={tmp_path / 'speed.json'}", *flags
        assert not command(monkeypatch, benchmark, *flags)
        return tmp_path / "speed.json"

    return run


def test_the_ratio_is_window_to_segment_operations(measured, operations):
    path = measured("--attention_lengths=8,40,200", "--rounds=1")
    rows = json.loads(path.read_text())["evaluation_speed"]
    assert [row["attention_length"] for row in rows] == [8, 40, 200]
    assert [row["rounds"] for row in rows] == [25, 5, 1]
    segments, windows = operations.programs[::2], operations.programs[1::2]
    for row, segment, window in zip(rows, segments, windows, strict=True):
        assert row["segment_length"] == 16
        assert row["memory_seconds"] == pytest.approx(segment / 16)
        assert row["vanilla_seconds"] == pytest.approx(window)
        assert row["ratio"] == pytest.approx(16 * window / segment)
        # A window of M tokens is M tokens' work; a segment's token grows with M by its keys alone.
        assert row["ratio"] > max(1, row["attention_length"] / 4)


def test_the_two_models_have_one_size_and_see_the_same_length(measured, monkeypatch):
    built, scoring = [], evaluation_speed._scoring
    monkeypatch.setattr(
        evaluation_speed, "_scoring", lambda e, *args: built.append(e.model) or scoring(e, *args)
    )
    measured("--attention_lengths=24", "--rounds=1", "--gin.TransformerXL.same_length=True")
    memory, vanilla = built
    assert memory.memory_length == 24 and memory.same_length and memory.encoding == "relative"
    assert vanilla.memory_length == 0 and vanilla.encoding == "learned"
    assert vanilla.layers[0].places_RD.shape == (24, 16)
    assert memory.vocabulary_size == vanilla.vocabulary_size
    for one, other in zip(memory.layers, vanilla.layers, strict=True):
        assert one.queries_DA.shape == other.queries_DA.shape
        assert one.feed_forward.hidden_DF.shape == other.feed_forward.hidden_DF.shape


def test_what_the_command_writes_fills_table_7(measured):
    path = measured("--attention_lengths=100,800", "--rounds=1")
    ratio = json.loads(path.read_text())["evaluation_speed"][1]["ratio"]
    assert 100 < ratio < 3800
    tables = paper_tables(read_paper("transformer_xl"), [], read_step_times([path]))
    found = tables["txl_table_7"]
    values = {row[0].text: row[2].values for row in found.rows}
    assert values == {"3,800": (), "2,800": (), "1,800": (), "800": (ratio,)}


def test_a_model_that_cannot_be_compared_is_refused(monkeypatch, capsys, tmp_path):
    speed = f"--evaluation_speed={write_config(tmp_path)}"
    assert command(monkeypatch, benchmark, speed, "--attention_lengths=8", "--rounds=1") == 1
    assert "nothing here uses TransformerXL" in capsys.readouterr().err
    assert command(monkeypatch, benchmark, speed, "--attention_lengths=0") == 1
    assert "--attention_lengths" in capsys.readouterr().err
