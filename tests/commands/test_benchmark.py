"""Step times: real training steps under a clock that gives each config a known time."""

import json
import shutil
from types import SimpleNamespace

import gin
import pytest
from fabricated_runs import filled_cells
from gin_settings import bound
from paths import ROOT
from published_checks import built
from tiny_run import PLAIN, command, one_device, write_config

from brt import benchmark
from brt.benchmarks.timing import steps
from brt.experiment import Configuration
from brt.reporting.gin_text import read_gin, resolved
from brt.reporting.paper_positions import system_and_size
from brt.reporting.papers.fill import paper_tables
from brt.reporting.papers.published_tables import read_paper
from brt.reporting.step_times import read_step_times

MEMORIZING = (
    *PLAIN,
    *bound("BlockRecurrentTransformer", memorizing_layers=(0,)),
    *bound("ExternalMemory", size=65_536, neighbours=4),
)
SECONDS = {"slide": 0.5, "again": 0.5, "rec": 0.625, "memorizing": 1.0}
ROUNDS = 5


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Paths of tiny configs by name; none is named as a system of the paper."""
    folder, files = tmp_path_factory.mktemp("configs"), {}
    for name, lines in (("slide", PLAIN), ("rec", ()), ("memorizing", MEMORIZING)):
        files[name] = str(folder / f"{name}.gin")
        shutil.move(write_config(folder, *lines), files[name])
    files["again"] = str(folder / "again.gin")
    shutil.copy(files["slide"], files["again"])
    return files


@pytest.fixture
def measured(monkeypatch, tmp_path, configs):
    """Runs the command on configs by name; what it writes, parsed, and its path."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    build = steps.build

    def timed(file):
        candidate, calls = build(file), []

        def step(state, batch):
            seconds = SECONDS[candidate.name]
            if not calls:
                seconds = 1000.0  # the first step is no measurement
            if len(calls) == 2 and candidate.name == "rec":
                seconds *= 50  # somebody else's work, once
            calls.append(seconds)
            clock.now += seconds
            found = candidate.step(state, batch)
            assert found[1].finite
            return found

        return candidate._replace(step=step)

    monkeypatch.setattr(steps, "build", timed)
    monkeypatch.setattr(steps, "time", clock)
    monkeypatch.setattr(steps, "make_mesh", lambda shape: one_device())

    def run(*names, **flags):
        path = tmp_path / "times.json"
        files = ",".join(configs[name] for name in names)
        flags = [f"--{name}={value}" for name, value in flags.items()]
        flags += [f"--configs={files}", f"--rounds={ROUNDS}", f"--json={path}"]
        assert not command(monkeypatch, benchmark, *flags)
        return json.loads(path.read_text()), path

    return run


def test_ratios_are_to_the_first_config_and_fill_table_1(measured, capsys):
    content, path = measured("slide", "rec", "memorizing", "again")
    rows = {row["name"]: row for row in content["configs"]}
    assert content["baseline"] == "slide" and rows["slide"]["ratio"] == 1.0
    assert rows["again"]["ratio"] == 1.0  # the same config twice
    assert rows["rec"]["ratio"] == 1.25 and rows["memorizing"]["ratio"] == 2.0
    for name, row in rows.items():
        assert row["step_seconds"] == SECONDS[name]
        assert row["tokens_per_second"] == 64 / SECONDS[name]
    lines = [line.split() for line in capsys.readouterr().out.split("\n")[-6:-1]]
    shown = {line[0]: line[1] for line in lines}
    ratios = {"slide": "1.000", "again": "1.000", "rec": "1.250", "memorizing": "2.000"}
    assert {name: shown[name] for name in SECONDS} == ratios
    table = paper_tables(read_paper("block_recurrent"), [], read_step_times([path]))["table_1"]
    found = {
        row[0]: cells["step time, measured"].values for row, cells in filled_cells(table).items()
    }
    assert found == {"Rec:fixed:skip": (1.25,), "Memorizing Trans. 64k": (2.0,)}
    (note,) = table.notes()
    assert "relative to Slide:1L" in note


def test_others_are_relative_to_the_named_baseline(measured):
    content, _ = measured("slide", "rec", baseline="rec")
    assert content["baseline"] == "rec"
    ratios = {row["name"]: row["ratio"] for row in content["configs"]}
    assert ratios == {"slide": 0.8, "rec": 1.0}


def test_a_step_divided_over_time_is_timed_as_such(tmp_path):
    ring = (
        "Trainer.devices_over_time = 2",
        "Trainer.segments_per_step = 2",
        "Trainer.tokens_per_step = 128",
    )
    file = write_config(tmp_path, *PLAIN, *ring, "BlockRecurrentTransformer.dropout = 0.0")
    candidate = steps.build(Configuration([file]))
    assert candidate.batch.inputs_KBT.sharding.mesh.shape["sequence"] == 2
    assert "collective-permute" in candidate.step.as_text()


def test_paper_sizes_with_the_paper_baseline_need_no_note(tmp_path):
    rows = [
        {"name": "a", "system": "Slide:13L", "size": "162M", "ratio": 1.0},
        {"name": "b", "system": "Rec:fixed:dual", "size": "162M", "ratio": 1.01},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"baseline": "a", "configs": rows}))
    found = read_step_times([tmp_path / "t.json"])
    assert found == {"Slide:13L": (1.0, ""), "Rec:fixed:dual": (1.01, "")}


@pytest.mark.parametrize("ratio", [True, "1.0", 0.0, float("nan"), None])
def test_a_ratio_that_is_no_number_above_0_is_refused(tmp_path, ratio):
    path, row = tmp_path / "t.json", {"name": "a", "system": "Slide:13L", "size": None}
    path.write_text(json.dumps({"baseline": "a", "configs": [row | {"ratio": ratio}]}))
    with pytest.raises(ValueError, match=r"t\.json"):
        read_step_times([path])


def test_configs_beside_a_gin_file_are_refused(monkeypatch, capsys, configs):
    flags = f"--configs={configs['slide']}", f"--gin_file={configs['rec']}"
    assert command(monkeypatch, benchmark, *flags, "--rounds=1") == 1
    assert "--gin_file" in capsys.readouterr().err


def test_unequal_budgets_are_not_compared(monkeypatch, capsys, tmp_path, configs):
    monkeypatch.setattr(steps, "make_mesh", lambda shape: one_device())
    other = tmp_path / "twice.gin"
    other.write_text(f'include "{configs["slide"]}"\nTrainer.tokens_per_step = 128\n')
    files = f"--configs={configs['slide']},{other}"
    assert command(monkeypatch, benchmark, files, "--rounds=1") == 1
    assert "budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    "row", read_paper("block_recurrent").table("table_1").rows[::4], ids=lambda row: row.labels[0]
)
def test_the_config_of_a_row_of_table_1_is_named_as_the_row(row):
    stem = {"Memorizing Trans. 64k": "memorizing_64k"}.get(row.labels[0])
    stem = stem or row.labels[0].lower().replace(":", "_")
    built([str(ROOT / "configs" / f"pg19_{stem}.gin")])
    found = system_and_size(resolved(read_gin(gin.operative_config_str())))
    assert found == (row.where["system"], "162M")
