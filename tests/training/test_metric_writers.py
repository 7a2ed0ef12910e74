"""Where numbers go: the same ones to metrics.jsonl, TensorBoard and Weights & Biases."""

import importlib.util
import sys
import types

import pytest
from tiny_run import PLAIN, command, train_here

from brt import train
from brt.training.records.run_folder import RunFolder, read_metrics

LINES = (*PLAIN, "CheckpointPolicy.every = 2")
EVERYWHERE = ("jsonl", "tensorboard", "wandb")


@pytest.fixture
def wandb(monkeypatch):
    """Replaces wandb by a module that keeps the records of each run."""
    runs = {}

    class Run:
        def __init__(self, id, **given):
            self.resumed = id in runs
            self.given, self.logged, self.finished = given, [], 0
            self.logged = runs[id].logged if self.resumed else []
            runs[id] = self

        def log(self, scalars, step):
            self.logged.append((step, scalars))

        def finish(self):
            self.finished += 1

    module = types.ModuleType("wandb")
    module.init = lambda **given: Run(**given)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def numbers(folder):
    return [
        (record.pop("step"), {n: x for n, x in record.items() if not isinstance(x, str)})
        for record in read_metrics(str(folder))
    ]


def test_wandb_gets_every_number_once_and_the_settings(tiny, wandb, tmp_path):
    train_here(tiny, tmp_path / "run", metrics=EVERYWHERE)
    (run,) = wandb.values()
    assert run.logged == numbers(tmp_path / "run") and len(run.logged) == 3
    assert run.finished == 1
    assert run.given["name"] == "run" and run.given["dir"] == str(tmp_path / "run")
    assert run.given["config"]["BlockRecurrentTransformer.num_layers"] == "1"
    assert run.given["project"] == "brt" and run.given["resume"] == "allow"


def test_a_run_that_is_resumed_is_the_same_run_there(tiny, wandb, tmp_path):
    train_here(tiny, tmp_path / "run", stop_after=3, metrics=EVERYWHERE)
    train_here(tiny, tmp_path / "run", metrics=EVERYWHERE)
    (run,) = wandb.values()
    assert [step for step, _ in run.logged] == [2, 4, 6]
    train_here(tiny, tmp_path / "other", stop_after=2, metrics=EVERYWHERE)
    assert len(wandb) == 2


def test_a_run_that_starts_wandb_later_gives_it_the_past(tiny, wandb, tmp_path):
    train_here(tiny, tmp_path / "run", stop_after=3)
    assert not wandb
    train_here(tiny, tmp_path / "run", metrics=EVERYWHERE)
    (run,) = wandb.values()
    assert run.logged == numbers(tmp_path / "run")


@pytest.mark.parametrize("metrics", [("jsonl",), ("jsonl", "tensorboard")])
def test_nothing_is_written_that_was_not_asked_for(wandb, tmp_path, metrics):
    folder = RunFolder(str(tmp_path), metrics=metrics)
    folder.open_metrics(0)
    folder.record(1, {"train/loss": 1.0, "data/ledger": "0f"})
    folder.close()
    assert bool(list(tmp_path.glob("events.out.*"))) == ("tensorboard" in metrics)
    assert not wandb and len(read_metrics(str(tmp_path))) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("jsonl,tensorbord", "'tensorbord': give some of jsonl, tensorboard, wandb"),
        ("wandb", "leaves out jsonl"),
    ],
)
def test_a_list_of_metrics_that_cannot_be_kept_is_refused(
    tiny, monkeypatch, tmp_path, capsys, given, said
):
    flags = [f"--gin_file={tiny.path}", f"--workdir={tmp_path / 'run'}", f"--metrics={given}"]
    assert command(monkeypatch, train, *flags) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_a_run_that_cannot_begin_says_how_to_log_in(tiny, wandb, monkeypatch, tmp_path, capsys):
    def refuse(**given):
        raise RuntimeError("api_key not configured")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    flags = [f"--gin_file={tiny.path}", f"--workdir={tmp_path / 'run'}"]
    assert command(monkeypatch, train, *flags, "--metrics=jsonl,wandb") == 1
    said = capsys.readouterr().err
    assert "api_key not configured" in said and "WANDB_MODE=offline" in said


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="needs the extra `wandb`")
def test_the_library_itself_keeps_the_numbers_offline(tiny, monkeypatch, tmp_path):
    """Its own file of the run holds every name and every step."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_here(tiny, tmp_path / "run", metrics=EVERYWHERE)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    for step, scalars in numbers(tmp_path / "run"):
        for name, value in scalars.items():
            assert name.encode() in content
            if name == "train/loss":
                assert f"{value:.6g}"[:6].encode() in content, step
