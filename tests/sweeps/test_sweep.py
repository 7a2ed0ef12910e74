"""A sweep runs every entry of a sweep once, whatever stops it, and ends in the tables."""

import itertools
import json
import shlex
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest
from test_entries import a_file
from tiny_run import Killed, contents, write_config

from brt import command_line, sweep
from brt.reporting.gin_text import read_gin_file, write_gin
from brt.sweeps import running
from brt.sweeps.entries import SweepEntry
from brt.sweeps.running import SweepRun
from brt.sweeps.scales import SweepError

TINY = "--scale=tiny", "--corpus=configs/corpora/text.gin", "--tokens=10000"


def text_flag(folder):
    """Binds the corpus to a folder with texts in every split."""
    for split in ("train", "validation"):
        (folder / "text" / split).mkdir(parents=True)
        for number in range(32):
            (folder / "text" / split / f"{number}.txt").write_text("a text\n")
    return f"--gin_bindings=TextFiles.path = '{folder}/text/{{split}}'"


def pretended(calls, kill_at=None, environments=None):
    """Replaces `brt.train` and `brt.evaluate`; dies before call number `kill_at`.

    environments: a list for the variables of each call.
    """

    def command(module, *arguments, variables=None, **_):
        if len(calls) == kill_at:
            raise Killed
        if environments is not None:
            environments.append(variables)
        calls.append((module, *arguments))
        given = dict(a.removeprefix("--").split("=", 1) for a in arguments)
        workdir = Path(given["workdir"])
        if module == "brt.train":
            settings = read_gin_file(given["gin_file"]) | {
                "Trainer.seed": int(given["gin.Trainer.seed"])
            }
            (workdir / "config.gin").write_text(write_gin(settings))
            return
        settings = read_gin_file(workdir / "config.gin")
        bits = settings["BlockRecurrentTransformer.num_layers"] + settings["Trainer.seed"] / 1000
        found = {"step": settings["Trainer.steps"], "bits_per_token": bits}
        (workdir / "evaluation_validation.json").write_text(json.dumps(found))

    return command


def parse(*arguments):
    for name in sweep.FLAGS:
        sweep.FLAGS[name].unparse()
    sweep.FLAGS(["sweep", *arguments])


def run_script(monkeypatch, command, *arguments):
    parse(*arguments)
    monkeypatch.setattr(running, "command", command)
    sweep.main()


def test_a_killed_sweep_ends_in_the_same_table(monkeypatch, tmp_path, capsys):
    file = a_file(tmp_path, "pg19_slide_12l.gin", "pg19_slide_13l.gin")
    flags = [f"--sweep={file}", *TINY, "--seeds=0,3,0"]
    monkeypatch.setattr(sweep, "check_configs", lambda files, devices: None)  # slow, 18 times

    def go(name, calls, kill_at=None):
        command = pretended(calls, kill_at)
        run_script(monkeypatch, command, *flags, f"--workdir={tmp_path}/{name}")
        return (tmp_path / name / "tables.md").read_text()

    whole = go("whole", calls := [])
    assert len(calls) == 8 and "2.002 ± 0.020" in whole and "+1.000 ± 0.000" in whole
    for kill_at in (1, 6):  # between a training and its evaluation, and between two runs
        done = []
        with pytest.raises(Killed):
            go(f"killed{kill_at}", done, kill_at)
        assert go(f"killed{kill_at}", again := []) == whole
        finished = [call for call in done if call[0] == "brt.evaluate"]
        assert len([call for call in again if call[0] == "brt.evaluate"]) == 4 - len(finished)
    assert go("whole", calls := []) == whole and not calls
    default = "--gin_bindings=Trainer.skip_nonfinite = False"
    run_script(monkeypatch, pretended(again := []), *flags, default, f"--workdir={tmp_path}/whole")
    assert not again
    capsys.readouterr()
    before = contents(tmp_path / "whole")
    with pytest.raises(SweepError, match=r"(?s)another sweep.*\nTrainer\.steps: \d+ -> "):
        run_script(monkeypatch, pretended([]), *flags, "--tokens=20000",
              f"--workdir={tmp_path}/whole")  # fmt: skip
    assert contents(tmp_path / "whole") == before


def test_a_sweep_s_check_divides_time_as_training_does(tmp_path):
    settings = "segments_per_step = 2", "tokens_per_step = 32", "devices_over_time = 2"
    config = write_config(tmp_path, *(f"Trainer.{setting}" for setting in settings))
    parse()
    sweep.check_configs([config], 2)  # one batch element on two devices
    with pytest.raises(SweepError, match=r"devices_over_time = 2 must divide the 3 devices"):
        sweep.check_configs([config], 3)


def test_after_a_failed_run_no_other_run_starts(monkeypatch, tmp_path):
    file = a_file(tmp_path, "pg19_slide_12l.gin", "pg19_slide_13l.gin")
    flags = [f"--sweep={file}", *TINY]
    monkeypatch.setattr(sweep, "check_configs", lambda files, devices: None)  # slow
    calls = []

    def fail(*call, **_):
        calls.append(call)
        raise SweepError("the same reason in every run")

    def late(runs):
        wait(runs)  # the pool has had time to start the second one
        return runs

    monkeypatch.setattr(running, "as_completed", late)
    with pytest.raises(SweepError, match="the same reason"):
        run_script(monkeypatch, fail, *flags, f"--workdir={tmp_path}/runs")
    assert len(calls) == 1


def test_a_grid_runs_every_combination_several_at_once(monkeypatch, tmp_path):
    flags = ["--gin_file=pg19_slide_12l.gin", *TINY, "--processes=3"]
    flags += [f"--workdir={tmp_path}", text_flag(tmp_path)]
    grid = "BlockRecurrentTransformer.qk_norm=True,False Trainer.optimizer=@adamw,@adafactor"
    flags += ["--gin_bindings=Trainer.mesh = (1, 1)"]  # a run has one GPU
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    monkeypatch.setattr(running, "visible_gpus", lambda: ["3", "5"])
    calls, environments = [], []
    of_runs = pretended(calls, environments=environments)
    run_script(monkeypatch, of_runs, *flags, f"--grid={grid}")
    assert len(calls) == 8
    assert {e["CUDA_VISIBLE_DEVICES"] for e in environments} == {"3", "5"}
    # Three runs share two GPUs.
    assert all(e["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false" for e in environments)
    trained = [
        (read["BlockRecurrentTransformer.qk_norm"], str(read["Trainer.optimizer"]))
        for read in map(read_gin_file, tmp_path.glob("runs/*/config.gin"))
    ]
    assert sorted(trained) == sorted(itertools.product((True, False), ("@adafactor", "@adamw")))
    table = (tmp_path / "tables.md").read_text()
    assert "qk_norm=False, optimizer=@adamw" in table
    assert (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"


def test_a_command_is_printed_for_each_missing_run(monkeypatch, tmp_path, capsys):
    file = a_file(tmp_path, "pg19_slide_12l.gin", "pg19_slide_13l.gin")
    flags = [f"--sweep={file}", *TINY, "--seeds=0,3"]
    monkeypatch.setattr(sweep, "check_configs", lambda files, devices: None)  # slow
    run_script(monkeypatch, pretended([]), *flags, f"--workdir={tmp_path}/one_by_one")
    whole = (tmp_path / "one_by_one" / "tables.md").read_text()
    # A name that the shell would take apart.
    flags += [f"--workdir={tmp_path}/two words"]
    capsys.readouterr()

    def lines():
        run_script(monkeypatch, pretended(calls := []), *flags, "--print_commands")
        assert not calls
        return capsys.readouterr().out.splitlines()

    def carry_out(line):
        for words in map(shlex.split, line.split(" && ")):
            if words[0] == "cd":
                assert Path(words[1]) == Path.cwd()
            else:
                assert words[:2] == [sys.executable, "-m"]
                pretended([])(*words[2:])

    printed = lines()
    assert len(printed) == 4 == len(set(printed))
    carry_out(printed[2])
    assert lines() == [printed[0], printed[1], printed[3]]

    collect_all = (*flags, "--collect", f"--archive={tmp_path}/archives")
    run_script(monkeypatch, pretended(calls := []), *collect_all)
    assert not calls and "pg19_slide_13l, seed 0" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "archives").iterdir()] == [
        "pg19_slide_12l-seed3.tar.bz2"
    ]
    for line in lines():
        carry_out(line)
    assert lines() == []
    run_script(monkeypatch, pretended(calls := []), *collect_all)
    assert not calls and (tmp_path / "two words" / "tables.md").read_text() == whole
    with pytest.raises(SweepError, match="give one"):
        run_script(monkeypatch, pretended([]), *flags, "--print_commands", "--collect")


OWN_RATE = """from brt.checks import configurable


@configurable
def rate_of_a_sweep(total_steps):
    return lambda step: 0.001
"""


def test_configs_that_import_are_swept_with_the_flags_given(monkeypatch, tmp_path, capsys):
    (tmp_path / "own").mkdir()
    (tmp_path / "rates_of_a_sweep.py").write_text(OWN_RATE)
    (tmp_path / "own" / "rate.gin").write_text("import rates_of_a_sweep\n")
    included = 'include "rate.gin"\ninclude "pg19_slide_12l.gin"\n'
    (tmp_path / "own" / "own.gin").write_text(included + "Trainer.schedule = @rate_of_a_sweep\n")
    monkeypatch.syspath_prepend(tmp_path)
    longer = "own.gin Evaluation.segment_length=128"  # evaluates the parameters of the first
    flags = [f"--sweep={a_file(tmp_path, 'own.gin', longer)}", *TINY, f"--workdir={tmp_path}/sweep"]
    passed = ["--allow_imports=rates_of_a_sweep", f"--store_cache={tmp_path}/stores"]
    passed += ["--compilation_cache="]
    flags += [*passed, f"--gin_search_paths={tmp_path}/own", "--print_commands"]
    run_script(monkeypatch, pretended([]), *flags)
    (line,) = capsys.readouterr().out.splitlines()
    _, *commands = line.split(" && ")
    assert [set(passed) - set(shlex.split(words)) for words in commands] == [set()] * 3
    configs = [*tmp_path.glob("sweep/configs/*.gin"), *tmp_path.glob("sweep/runs/*/config.gin")]
    assert [file.read_text().splitlines()[0] for file in configs] == ["import rates_of_a_sweep"] * 3


def test_entries_that_differ_in_evaluation_are_trained_once(monkeypatch, tmp_path, capsys):
    slide, longer = "pg19_slide_12l.gin", "Evaluation.segment_length=128"
    scoped = "Evaluation.model=@evaluation/BlockRecurrentTransformer"
    same = f"{scoped} evaluation/BlockRecurrentTransformer.window=8"
    other = "BlockRecurrentTransformer.recurrent_layers=()"
    file = a_file(tmp_path, slide, f"{slide} {longer}", f"{slide} {same}", f"{slide} {other}")
    flags = [f"--sweep={file}", *TINY, "--seeds=0,3", f"--workdir={tmp_path}/sweep"]
    monkeypatch.setattr(sweep, "check_configs", lambda files, devices: None)
    run_script(monkeypatch, pretended([]), *flags, "--print_commands")
    lines = capsys.readouterr().out.splitlines()
    assert [line.count("brt.train") for line in lines] == [1] * 4
    assert [line.count("brt.evaluate") for line in lines] == [3, 1] * 2
    with pytest.raises(Killed):
        run_script(monkeypatch, pretended([], kill_at=3), *flags)
    run_script(monkeypatch, pretended(calls := []), *flags)
    assert [module for module, *_ in calls].count("brt.train") == 3  # one more before the kill
    runs = tmp_path / "sweep" / "runs"
    evaluated = runs / "pg19_slide_12l-Evaluation.segment_length_128-seed3"
    (runs / "pg19_slide_12l-seed3" / "checkpoints").mkdir()
    assert (evaluated / "checkpoints").resolve().parent.name == "pg19_slide_12l-seed3"
    settings = read_gin_file(evaluated / "config.gin")
    assert settings["Evaluation.segment_length"] == 128 and settings["Trainer.seed"] == 3
    lines = capsys.readouterr().out.split("Entries of ")[1].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert [row[0] for row in rows[2:]] == [
        "as configured",
        longer,
        same.replace(" ", ", "),
        other.split(".")[1],
    ]
    (at,) = [i for i, head in enumerate(rows[0]) if head == "seeds"]
    assert {row[at] for row in rows[2:]} == {"2"}
    assert len([*runs.glob("*/evaluation_validation.json")]) == 8


def test_bad_entries_are_refused_before_the_first_trains(monkeypatch, tmp_path):
    file = a_file(tmp_path, "pg19_slide_12l.gin", "pg19_slide_12l.gin Trainer.segment_length=4160")
    flags = [f"--sweep={file}", *TINY, f"--workdir={tmp_path}/sweep", text_flag(tmp_path)]
    with pytest.raises(SweepError, match=r"segment_length_4160\.gin: .*segment_length"):
        run_script(monkeypatch, pretended(calls := []), *flags)
    assert not calls
    file.write_text("pg19_slide_12l.gin")
    flags[-1] = "--gin_bindings=TextFiles.path = 'nowhere/{split}'"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run_script(monkeypatch, pretended(calls), *flags)
    assert not calls


@pytest.mark.parametrize(
    ("evaluated_step", "records", "done"),
    [
        (16, [], True),
        (12, [{"step": 12, "train/loss": 1.0}], False),
        (12, [{"step": 12, "best/stopped_early": 1}], True),
        (8, [{"step": 12, "best/step": 8, "best/loss": 1.0}], False),
        (8, [{"step": 8, "best/step": 8}, {"step": 12, "best/stopped_early": 1}], True),
        (8, [{"step": 8, "best/step": 8}, {"step": 16, "best/step": 8}], True),
        (8, [{"step": 8, "best/step": 8}, {"step": 16, "best/step": 16}], False),
    ],
)
def test_a_run_ends_once_and_its_best_checkpoint_is_evaluated(
    tmp_path, evaluated_step, records, done
):
    entry = SweepEntry("run", {"Trainer.steps": 16}, {})
    lines = (json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    found = json.dumps({"step": evaluated_step, "loss": 1.0})
    (tmp_path / "evaluation_validation.json").write_text(found)
    assert SweepRun(entry, Path(), "0", tmp_path, "validation").evaluated() == done


def test_an_error_of_a_sweep_shows_no_line_of_brt(monkeypatch, tmp_path):
    with pytest.raises(SweepError, match="none") as caught:
        run_script(monkeypatch, pretended([]), "--sweep=none.txt", f"--workdir={tmp_path}/sweep")
    assert not command_line._user_code(caught.value)


@pytest.mark.parametrize(
    ("status", "words"), [(1, "status 1"), (130, "interrupted"), (-9, "SIGKILL")]
)
def test_how_a_command_of_a_run_ended_is_said(monkeypatch, status, words):
    done = running.subprocess.CompletedProcess([], status)
    monkeypatch.setattr(running.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SweepError, match=words):
        running.command("brt.train")
