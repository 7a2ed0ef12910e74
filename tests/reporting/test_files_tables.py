"""The rules of the experiment on files decide by the numbers of the runs, both ways."""

import json

import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.files_entries import better_rates
from results_page.files_tables import files_tables
from results_page.front import front_table, improvements_plot
from results_page.names_table import NAMES, memories_table, names_plot, names_table
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


def runs_of(folder, memory, window, bits, early=2.5, late=2.0, names=None, rate=0.004, steps=3000,
            seeds=(0, 1, 2)):  # fmt: skip
    """Runs of three seeds with so many bits on validation, in training, and on old names.

    names: documents that a study of words by distance read, and its improvement far back.
    """
    config, bindings = MEMORIES[memory]
    found = []
    for seed, noise in zip(seeds, (-NOISE[memory], 0.0, NOISE[memory])):
        run = make_run(
            folder / f"{memory}{window}_{rate}_{seed}",
            f"small/{config}+corpora/text",
            *bindings,
            f"BlockRecurrentTransformer.window = {window}",
            f"cosine.maximum = {rate}",
            f"Trainer.steps = {steps}",
            seed=seed,
            evaluations={"validation": {"bits_per_byte": bits + noise, "documents": 9},
                         "test": {"bits_per_byte": 2 * bits + noise}},
            records=[
                {"step": step, "train/bits_per_token": early if step < 1500 else late,
                 "data/ledger": f"{seed}{step}"}
                for step in STEPS
            ],
        )  # fmt: skip
        if names is not None:
            documents, gained = names
            (run / "studies").mkdir()
            series = [
                {"name": name, "x": [32, 320, 1000], "y": bits_of, "x_label": "", "y_label": NAMES}
                | {"words": [70, 7, 3], "tokens": [400, 40, 10]}
                for name, bits_of in (
                    ("run", [1.0, 2.0, 2.0]),
                    ("compared with", [1.5, 2.0 + gained, 2.5]),
                )
            ]
            study = {"study": "compare", "series": series}
            study |= {"numbers": {"difference_bits": 0.75, "tokens": 900}}
            study |= {"documents": list(range(documents))}
            (run / "studies" / "compare.json").write_text(json.dumps(study))
        found.append(run)
    return found


def answers(folder, rec, delta, times, longer=2.4):
    """The rules' answers for one result of each memory: options of `runs_of` by window."""
    runs = [run for window in (8, 32)
            for run in runs_of(folder, "window", window, 2.5)]  # fmt: skip
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
    tables = {table.name: table for table in files_tables(ladders, step_times)}
    return tables, {row[0].text[:3] + row[0].text[-3:-1]: row[1].text
                    for row in tables["files_rules"].rows}  # fmt: skip


def test_rules_stand_and_fail_by_the_numbers(tmp_path):
    good = {
        8: {"bits": 2.3, "early": 2.4, "late": 1.8, "names": (5, 0.5)},
        32: {"bits": 2.45, "late": 1.9},
    }
    bad = {
        8: {"bits": 2.41, "early": 2.4, "late": 1.95},
        32: {"bits": 2.6, "late": 2.1},
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
    assert g == "not decided: the studies read 5 of 9 documents"
    row = next(r for r in tables["files_by_window"].rows
               if (r[0].text, r[1].text) == (LABELS["delta"], "8"))  # fmt: skip
    assert row[5].values == pytest.approx((0.202, 0.2, 0.198))
    assert row[7].values == pytest.approx((0.2, 0.2, 0.2))
    assert row[9].values == pytest.approx((0.402, 0.4, 0.398))
    width, layers, heads, size = 96, 7, 4, 24
    assert row[12].text == f"{4 * (2 * layers * 8 * width + heads * size**2):,}"


def test_what_does_not_pay_is_said_to_fail(tmp_path):
    same = {8: {"bits": 2.5}, 32: {"bits": 2.5}}
    times = {("window (Slide)", 8): 1.0, ("window (Slide)", 32): 1.05,
             (LABELS["rec"], 8): 1.1, (LABELS["delta"], 8): 1.04}  # fmt: skip
    worse = {window: {**option, "bits": 2.51} for window, option in same.items()}
    _, found = answers(tmp_path, worse, same, times, longer=2.45)
    _, b, c, d, e, f, _ = (found[key] for key in sorted(found))
    assert "**fails**" in b and "**fails**" in c and d.count("**no**") == 2
    assert f"{LABELS['rec']}: **no**" in f and f"{LABELS['delta']}: yes" in f
    assert e.count(f": {LABELS['delta']} (") == 2


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
    p = rows[1][3]
    assert float(p) < 0.05
    assert rows == [
        ["window (Slide), W = 8", "2.500", *["–"] * 4, "–", f"{4 * layers * numbers:,}"],
        ["gated delta memory, W = 8", "2.250", "0.250", p, "0.000", "–", "1.50",
         f"{4 * (layers * numbers + 4 * 24**2):,}"],
        ["window (Slide), W = 8, 1.2 times the steps", "2.375", "0.125", *["–"] * 5],
        ["gated delta memory, W = 8, 4 times the steps, one seed", "1.996", *["–"] * 6],
        ["gzip -9, each file by itself", "3.1", *["–"] * 6],
    ]  # fmt: skip
    assert "all 2 improvements" in table.caption  # with the planned rates and with the better ones
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


def test_holm_counts_both_choices_of_rates(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "delta", 8, 2.25),
            *runs_of(tmp_path, "rec", 8, 2.4995)]  # fmt: skip
    half = runs_of(tmp_path, "rec", 8, 2.499, rate=0.002)  # by less than seeds differ
    ladders = {
        "files_windows": collect(open_runs(runs)),
        "files_half_rate": collect(open_runs(half)),
    }
    times = read_step_times(tmp_path / "none.csv")
    tables = {table.name: table for table in files_tables(ladders, times)}
    front = front_table(ladders, times, tmp_path / "none.csv")
    ours, six = ({row[0].text: row for row in table.rows}
                 for table in (front, tables["files_by_window"]))  # fmt: skip
    assert "all 4 improvements" in front.caption
    assert float(ours[f"{LABELS['rec']}, W = 8"][3].text) > float(six[LABELS["rec"]][6].text)


def test_windows_are_compared_with_each_other(tmp_path):
    runs = [run for memory, window, bits in
            (("window", 8, 2.5), ("window", 32, 2.375), ("rec", 8, 2.25))
            for run in runs_of(tmp_path, memory, window, bits)]  # fmt: skip
    ladders = {"files_windows": collect(open_runs(runs))}
    (tmp_path / "times.csv").write_text(
        "ladder,system,window,ratio,paper\nfiles_windows,window (Slide),32,2.0,\n"
        f'files_windows,"{LABELS["rec"]}",8,1.5,\n'
    )
    tables = files_tables(ladders, read_step_times(tmp_path / "times.csv"))
    (table,) = (table for table in tables if table.name == "files_across")
    rows = {row[0].text: [cell.text.split(" ±")[0] for cell in row[1:]] for row in table.rows}
    assert rows["window (Slide), W = 32, below window (Slide), W = 8"][0] == "0.125"
    found = rows[f"{LABELS['rec']}, W = 8, below window (Slide), W = 32"]
    assert found[:3] == ["0.125", "0.000", "0.250"] and found[-1] == "0.75"


def test_seeds_that_chose_no_rate_and_new_seeds_stand_apart(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "rec", 8, 2.25)]
    quarter = runs_of(tmp_path, "window", 8, 2.75, rate=0.001)[:1]  # chose with seed 0
    new = tmp_path / "new"
    later = [*runs_of(new, "window", 8, 2.5, seeds=[7]), *runs_of(new, "rec", 8, 2.0, seeds=[7])]
    by_ladder = {"windows": runs, "other_rates": quarter, "confirmation": later}
    ladders = {f"files_{name}": collect(open_runs(found)) for name, found in by_ladder.items()}
    tables = files_tables(ladders, read_step_times(tmp_path / "none.csv"))
    (table,) = (table for table in tables if table.name == "files_confirmed")
    rows = {row[2].text: row[3].values for row in table.rows}
    first, *rest = 0.251, 0.25, 0.249
    assert rows["0 1 2"] == pytest.approx((first, *rest)) and rows["1 2"] == pytest.approx(rest)
    assert rows["7"] == pytest.approx((0.501,))
    assert rows["0 1 2 7"] == pytest.approx((first, *rest, 0.501))


def test_the_figure_of_improvements_has_every_seed(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "delta", 8, 2.25)]
    time = runs_of(tmp_path / "longer", "window", 8, 2.375, steps=3600)
    ladders = {"files_windows": collect(open_runs(runs)), "files_time": collect(open_runs(time))}
    means = improvements_plot(better_rates(ladders)).means
    assert [(mean.place.rpartition(", W")[0] or mean.place, mean.series) for mean in means] == [
        (LABELS["delta"], "validation"),
        (LABELS["delta"], "fresh training text"),
        ("window (Slide)", "validation"),  # more steps, so on other text at their end
    ]
    assert means[0].values == pytest.approx((0.252, 0.25, 0.248))


def test_names_have_their_number_and_improvement_by_distance(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "rec", 8, 2.25)[1:]]
    one = runs_of(tmp_path, "delta", 8, 2.25, names=(9, 0.25))[:1]
    ladders = {"files_windows": collect(open_runs(runs)), "files_more": collect(open_runs(one))}
    table = names_table(ladders)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["32", "70", "400", "0.500"], ["320", "7", "40", "0.250"],
        ["1,000", "3", "10", "0.500"], ["320, all", "10", "50", "0.300"],
        ["all text", "–", "900", "0.750"],
    ]  # fmt: skip
    assert "all 9 documents" in table.caption and "256 bytes" in table.caption
    (line,) = names_plot(ladders).lines
    assert (line.x, line.y) == ([32, 320, 1000], [0.5, 0.25, 0.5]) and LABELS["delta"] in line.name
    assert names_table({"files_windows": ladders["files_windows"]}) is None


def test_every_memory_has_a_row_of_the_shared_seed(tmp_path):
    runs = [*runs_of(tmp_path, "window", 8, 2.5), *runs_of(tmp_path, "window", 32, 2.0),
            *runs_of(tmp_path, "delta", 8, 2.25)]  # fmt: skip
    one = runs_of(tmp_path / "others", "rec", 8, 2.3)[:1]
    ladders = {"files_windows": runs, "files_memories": one}
    table = memories_table({name: collect(open_runs(found)) for name, found in ladders.items()})
    assert [(row[0].text, row[1].text) for row in table.rows] == [
        (LABELS["delta"], "2.246"), (LABELS["rec"], "2.297"), ("window (Slide)", "2.498"),
    ]  # fmt: skip
    for ladder in ladders:
        assert memories_table({ladder: collect(open_runs(ladders[ladder]))}) is None
