"""The rules of the experiment on files decide by the numbers of the runs, both ways."""

import json

import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.files_entries import NAMES
from results_page.files_tables import files_plots, files_tables
from results_page.front import front_table
from results_page.names_table import names_table
from results_page.systems import read_step_times

from brt.reporting.collect import collect
from brt.reporting.runs import open_runs

STEPS = (600, 800, 1200, 2700, 3000)
"""Reports of training: two in the fifth that ends at two fifths, two in the last one."""
MEMORIES = {
    "window": ("map_slide", ()),
    "rec": ("map_lstm", ()),
    "delta": (
        "map_slide",
        ("BlockRecurrentTransformer.memories = ((@GatedDeltaMemory, (4,)),)",),
    ),
}
NOISE = {"window": 0.002, "rec": 0.003, "delta": 0.004}
"""Seeds differ by it, so that no difference is the same in all."""
LABELS = {"rec": "Rec, lstm gate", "delta": "gated delta memory"}


def runs_of(folder, memory, window, bits, early=2.5, late=2.0, names=None, rate=0.004, steps=3000):
    """Runs of three seeds with so many bits on validation, in training, and on old names."""
    config, bindings = MEMORIES[memory]
    found = []
    for seed, noise in enumerate((-NOISE[memory], 0.0, NOISE[memory])):
        run = make_run(
            folder / f"{memory}{window}_{rate}_{seed}",
            f"small/{config}+corpora/text",
            *bindings,
            f"BlockRecurrentTransformer.window = {window}",
            f"cosine.maximum = {rate}",
            f"Trainer.steps = {steps}",
            seed=seed,
            evaluations={"validation": {"bits_per_byte": bits + noise},
                         "test": {"bits_per_byte": 2 * bits + noise}},
            records=[
                {"step": step, "train/bits_per_token": early if step < 1500 else late,
                 "data/ledger": f"{seed}{step}"}
                for step in STEPS
            ],
        )  # fmt: skip
        if names is not None:
            (run / "studies").mkdir()
            series = {"name": "run", "x": [32, 320, 3200], "y": [1.0, names, names]}
            series |= {"x_label": "", "y_label": NAMES}
            study = {"study": "compare", "numbers": {}, "series": [series]}
            (run / "studies" / "compare.json").write_text(json.dumps(study))
        found.append(run)
    return found


def answers(folder, rec, delta, times, longer=2.4):
    """The rules' answers for one result of each memory: options of `runs_of` by window."""
    runs = [run for window in (8, 32)
            for run in runs_of(folder, "window", window, 2.5, names=3.0)]  # fmt: skip
    for memory, options in (("rec", rec), ("delta", delta)):
        for window, option in options.items():
            runs += runs_of(folder, memory, window, **option)
    rates = [run for memory, bits in (("window", 2.5), ("rec", 2.49), ("delta", 2.45))
             for run in runs_of(folder / "rates", memory, 8, bits)]  # fmt: skip
    ladders = {
        "files_windows": collect(open_runs(runs)),
        "files_rates": collect(open_runs(rates)),
        "files_time": collect(open_runs(runs_of(folder / "longer", "window", 8, longer))),
    }
    csv = folder / "times.csv"
    lines = [f'files_windows,"{name}",{window},{time},' for (name, window), time in times.items()]
    csv.write_text("\n".join(["ladder,system,window,ratio,paper", *lines]) + "\n")
    step_times = read_step_times(csv)
    assert {plot.name for plot in files_plots(ladders, step_times)} == {"files_time", "files_names"}
    tables = {table.name: table for table in files_tables(ladders, step_times)}
    return tables, {row[0].text[:3] + row[0].text[-3:-1]: row[1].text
                    for row in tables["files_rules"].rows}  # fmt: skip


def test_rules_stand_and_fail_by_the_numbers(tmp_path):
    good = {
        8: {"bits": 2.3, "early": 2.4, "late": 1.8, "names": 2.5},
        32: {"bits": 2.45, "late": 1.9, "names": 2.9},
    }
    bad = {
        8: {"bits": 2.41, "early": 2.4, "late": 1.95, "names": 3.1},
        32: {"bits": 2.6, "late": 2.1, "names": 3.1},
    }
    times = {("window (Slide)", 8): 1.0, ("window (Slide)", 32): 1.2,
             (LABELS["rec"], 8): 1.1, (LABELS["delta"], 8): 1.1}  # fmt: skip
    tables, found = answers(tmp_path, bad, good, times)
    a, b, c, d, e, f, g = (found[key] for key in sorted(found))
    assert a.startswith("no") and LABELS["delta"] in a and "0.052" in a
    assert f"stands for {LABELS['delta']};" in b and "0.100" in b
    assert f"stands for {LABELS['delta']};" in c and f"{LABELS['rec']} in 0 of 3" in c
    assert f"{LABELS['delta']}: yes" in d and f"{LABELS['rec']}: **no**" in d
    assert f.count("yes") == 2
    assert e.count(LABELS["delta"]) == 2 and "not decided" not in e
    assert f"{LABELS['delta']}, W = 8 and {LABELS['delta']}, W = 32;" in g
    row = next(r for r in tables["files_by_window"].rows
               if (r[0].text, r[1].text) == (LABELS["delta"], "8"))  # fmt: skip
    assert row[5].values == pytest.approx((0.202, 0.2, 0.198))
    assert row[7].values == pytest.approx((0.2, 0.2, 0.2))
    assert row[9].values == pytest.approx((0.402, 0.4, 0.398))
    width, layers, heads, size = 96, 7, 4, 24
    assert row[11].text == f"{4 * (2 * layers * 8 * width + heads * size**2):,}"


def test_what_does_not_pay_is_said_to_fail(tmp_path):
    same = {8: {"bits": 2.5, "names": 3.0}, 32: {"bits": 2.5, "names": 3.0}}
    times = {("window (Slide)", 8): 1.0, ("window (Slide)", 32): 1.05,
             (LABELS["rec"], 8): 1.1, (LABELS["delta"], 8): 1.04}  # fmt: skip
    worse = {window: {**option, "bits": 2.51} for window, option in same.items()}
    _, found = answers(tmp_path, worse, same, times, longer=2.45)
    _, b, c, d, e, f, g = (found[key] for key in sorted(found))
    assert "**fails**" in b and "**fails**" in c and d.count("**no**") == 2
    assert f"{LABELS['rec']}: **no**" in f and f"{LABELS['delta']}: yes" in f
    assert "not claimed" in g and e.count(f": {LABELS['delta']} (") == 2


def test_the_front_table_compares_memories_and_compressors(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "delta", 8, 2.25)]
    time = collect(open_runs(runs_of(tmp_path / "longer", "window", 8, 2.375, steps=3600)))
    long = collect(open_runs(runs_of(tmp_path / "long", "delta", 8, 2.0, steps=12_000)[:1]))
    (tmp_path / "times.csv").write_text(
        "ladder,system,window,ratio,paper\nfiles_windows,gated delta memory,8,1.5,\n"
    )
    (tmp_path / "packed.csv").write_text(
        "text,method,bits per byte\ntext_bytes,gzip -9,3.1\nb,xz -9,2\n"
    )
    ladders = {"files_windows": collect(open_runs(runs)), "files_time": time}
    ladders["files_long"] = long
    times = read_step_times(tmp_path / "times.csv")
    table = front_table(ladders, times, tmp_path / "packed.csv")
    rows = [[cell.text.split(" ±")[0] for cell in row] for row in table.rows]
    layers, numbers = 7, 2 * 8 * 96
    assert rows == [
        ["window (Slide), W = 8", "2.500", "–", "–", f"{4 * layers * numbers:,}"],
        ["gated delta memory, W = 8", "2.250", "0.250", "1.50",
         f"{4 * (layers * numbers + 4 * 24**2):,}"],
        ["window (Slide), W = 8, 1.2 times the steps", "2.375", "0.125", "–", "–"],
        ["gated delta memory, W = 8, 4 times the steps, one seed", "1.996", "–", "–", "–"],
        ["gzip -9", "3.1", "–", "–", "–"],
    ]  # fmt: skip
    assert front_table({}, times, tmp_path / "packed.csv") is None


def test_each_memory_and_window_is_compared_at_its_better_rate(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "delta", 8, 2.25),
            *runs_of(tmp_path, "rec", 8, 2.4375)]  # fmt: skip
    half = [*runs_of(tmp_path, "window", 8, 2.375, rate=0.002),
            *runs_of(tmp_path, "rec", 8, 2.5, rate=0.002)]  # fmt: skip
    longer = [*runs_of(tmp_path / "longer", "window", 8, 2.4, steps=3600),
              *runs_of(tmp_path / "longer", "window", 8, 2.25, rate=0.002, steps=3600)]  # fmt: skip
    quarter = runs_of(tmp_path, "window", 8, 2.75, rate=0.001)[:2]
    (tmp_path / "times.csv").write_text("ladder,system,window,ratio,paper\n")
    times = read_step_times(tmp_path / "times.csv")
    by_ladder = {"windows": runs, "half_rate": half, "time": longer, "other_rates": quarter}
    ladders = {f"files_{name}": collect(open_runs(found)) for name, found in by_ladder.items()}
    tables = {table.name: table for table in files_tables(ladders, times)}
    window, rec, delta = "window (Slide)", LABELS["rec"], LABELS["delta"]

    def gained(table, columns=(0, 2, 5)):
        return [tuple(row[n].text.split(" ±")[0] for n in columns) for row in tables[table].rows]

    assert gained("files_as_planned")[:3] == [
        (window, "0.004", "–"), (rec, "0.004", "0.062"), (delta, "0.004", "0.250")
    ]  # fmt: skip
    assert gained("files_by_window") == [
        (window, "0.002", "–"), (rec, "0.004", "-0.062"), (delta, "0.004", "0.125"),
        (f"{window}, 1.2 times the steps", "0.002", "–"),
    ]  # fmt: skip
    rules = {row[0].text[:3]: [cell.text for cell in row[1:]] for row in tables["files_rules"].rows}
    assert "gated delta memory 0.150" in rules["(b)"][0]
    assert "gated delta memory 0.000" in rules["(b)"][1]
    assert gained("files_rate_after_training", (0, 1, 2, 3)) == [
        (window, "2.749", "2.374", "2.499"),
        (rec, "–", "2.498", "2.436"),
        (delta, "–", "–", "2.248"),
    ]  # fmt: skip, of the seeds that all have
    front = front_table(ladders, times, tmp_path / "none.csv")
    assert {row[0].text: row[2].text.split(" ±")[0] for row in front.rows} == {
        f"{window}, W = 8": "–",
        f"{rec}, W = 8": "-0.062",
        f"{delta}, W = 8": "0.125",
        f"{window}, W = 8, 1.2 times the steps": "0.125",
    }
    # Not with fewer seeds.
    ladders["files_half_rate"] = collect(open_runs(half[:2]))
    front = front_table(ladders, times, tmp_path / "none.csv")
    assert front.rows[2][2].text.startswith("0.250")


def test_names_from_far_back_are_compared_with_a_longer_window(tmp_path):
    stacks = {(8, 2.5): 3.5, (32, 2.4): 3.0}
    runs = [run for (window, bits), names in stacks.items()
            for run in runs_of(tmp_path, "window", window, bits, names=names)]  # fmt: skip
    runs += runs_of(tmp_path, "delta", 8, 2.25, names=2.5)
    one = runs_of(tmp_path / "others", "rec", 8, 2.3, names=3.25)[:1]
    ladders = {"files_windows": runs, "files_memories": one}
    table = names_table({name: collect(open_runs(found)) for name, found in ladders.items()})
    rows = {row[0].text: row for row in table.rows}
    assert list(rows) == [
        "window (Slide), W = 32",
        LABELS["delta"],
        LABELS["rec"],
        "window (Slide)",
    ]
    far = {name: row[-1].values for name, row in rows.items()}
    assert far[LABELS["delta"]] == pytest.approx((0.5,))  # of the seed that all have
    assert far[LABELS["rec"]] == pytest.approx((-0.25,))
    assert rows[LABELS["delta"]][3].text == "1.000"
    assert rows[LABELS["delta"]][1].values == pytest.approx((2.246,))
    for ladder in ladders:
        assert names_table({ladder: collect(open_runs(ladders[ladder]))}) is None
