"""Traces of training steps: which steps, where they lie, and what they tell of named scopes."""

import gzip
import json
from pathlib import Path

import jax
import pytest
from tiny_run import assert_same_run, command, train_here

from brt import benchmark, train
from brt.benchmarks import hlo, traces
from brt.training.profiling import ProfiledSteps, Profiler, newest_trace, parse_steps

BINDINGS = ("Trainer.steps = 5",)
SCOPES = {
    *("embedding", "vocabulary", "optimizer"),
    *("layer0/attention", "layer0/states", "layer0/feed_forward"),
}


@pytest.fixture(scope="module")
def traced(tiny, tmp_path_factory):
    """A run of which the third and the fourth step were traced."""
    folder = tmp_path_factory.mktemp("runs") / "traced"
    return train_here(tiny, folder, profile=ProfiledSteps(3, 4))


def events(run):
    """What Perfetto opens: the events of the trace in Chrome's format."""
    (file,) = Path(newest_trace(run.folder.path)).glob("perfetto_trace.json.gz")
    return json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]


def test_the_steps_that_were_asked_for_are_traced_and_no_others(traced):
    steps = [event["args"]["step_num"] for event in events(traced) if event.get("name") == "train"]
    assert steps == ["3", "4"]


def test_the_trace_lies_where_tensorboard_looks(traced):
    folder = Path(newest_trace(traced.folder.path))
    assert folder.parent == Path(traced.folder.path) / "plugins" / "profile"
    (plane,) = folder.glob("*.xplane.pb")
    # TensorBoard reads scopes from the program, which lies in there too.
    assert b"jvp(layer0)/states" in plane.read_bytes()


def test_the_time_of_a_trace_is_summed_by_scopes(traced, monkeypatch, capsys):
    file = Path(traced.folder.path) / "times.json"
    flags = f"--trace={traced.folder.path}", f"--json={file}"
    assert not command(monkeypatch, benchmark, *flags)
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]}
    assert shown >= SCOPES
    seconds = json.loads(file.read_text())["scopes"]["seconds"]
    assert seconds.keys() >= SCOPES and min(seconds.values()) >= 0
    assert seconds.get("other", 0) < 0.5 * sum(seconds.values())


def test_a_loop_and_its_content_are_not_both_counted():
    text = """
%body (x.1: f32[2]) -> f32[2] {
  %x.1 = f32[2]{0} parameter(0)
  ROOT %sine.1 = f32[2]{0} sine(%x.1), metadata={op_name="jit(step)/jvp(layer1)/states/while/sin"}
}

%condition (x.2: f32[2]) -> pred[] {
  %x.2 = f32[2]{0} parameter(0)
  ROOT %true.1 = pred[] constant(true)
}

ENTRY %main (x.3: f32[2]) -> f32[2] {
  %x.3 = f32[2]{0} parameter(0)
  ROOT %while.1 = f32[2]{0} while(%x.3), condition=%condition, body=%body
}
"""
    happened = [
        {"ph": "X", "name": "while.1", "dur": 70, "args": {"hlo_op": "while.1"}},
        {"ph": "X", "name": "sine.1", "dur": 20, "args": {"hlo_op": "sine.1"}},
        {"ph": "X", "name": "sine.1", "dur": 30},
        {"ph": "M", "name": "sine.1", "dur": 1000},
        {"ph": "X", "name": "something else", "dur": 1000},
    ]
    found = traces.scope_times(happened, hlo.parse(text))
    assert found.operations == 2 and found.seconds == pytest.approx({"layer1/states": 50e-6})


def test_tracing_changes_nothing_that_is_trained(traced, tiny, tmp_path):
    assert_same_run(traced, train_here(tiny, tmp_path / "untraced"))


def test_a_run_that_is_stopped_while_it_is_traced_ends_its_trace(tiny, tmp_path):
    run = train_here(tiny, tmp_path / "run", stop_after=3, profile=ProfiledSteps(2, 5))
    assert run.checkpoints.steps()[-1] == 3
    steps = [event["args"]["step_num"] for event in events(run) if event.get("name") == "train"]
    assert steps == ["2", "3"]
    with pytest.raises(
        FileNotFoundError, match=r"holds no step\.hlo\.txt\.gz: the run was stopped"
    ):
        traces.newest_times(run.folder.path)


@pytest.mark.parametrize("steps", [(2, 3), (3, 5)])
def test_a_run_with_profile_is_resumed_by_the_same_command(steps, tiny, tmp_path, caplog):
    profile = ProfiledSteps(*steps)
    train_here(tiny, tmp_path / "run", stop_after=4, profile=profile)
    assert train_here(tiny, tmp_path / "run", profile=profile).step == 5
    assert "no step is traced" in caplog.text


def test_traces_of_several_processes_may_lie_in_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    profiler = Profiler(ProfiledSteps(1, 1), str(tmp_path), 0, 1)
    profiler.before(1, None)
    profiler.close()
    # JAX writes Perfetto's copy from the only trace of a folder, and refuses a second one.
    (file,) = Path(newest_trace(str(tmp_path))).glob("*.json.gz")
    assert file.name.endswith(".trace.json.gz")


@pytest.mark.parametrize("text", ["3-5", ":", "a:b", "3:", "0:2", "5:4"])
def test_what_names_no_steps_is_refused(text):
    with pytest.raises(ValueError, match="--profile"):
        parse_steps(text)


def test_the_command_refuses_steps_the_run_does_not_take(
    traced, tiny, tmp_path, monkeypatch, capsys
):
    flags = f"--gin_file={tiny.path}", "--gin.Trainer.steps=5", "--profile=4:6"
    assert command(monkeypatch, train, *flags, f"--workdir={tmp_path / 'new'}") == 1
    error = capsys.readouterr().err
    assert "--profile = 4:6" in error and "1 to 5 (Trainer.steps)" in error
    assert command(monkeypatch, train, *flags, f"--workdir={traced.folder.path}") == 1
    assert "--profile = 4:6" in capsys.readouterr().err
