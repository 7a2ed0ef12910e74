"""Tables and figures of archived runs: rows, paired differences, corrections and marks."""

import math
from pathlib import Path

import pytest
from fabricated_runs import make_run

pytest.importorskip("altair", reason='the page needs pip install -e ".[report]"')

from results_page import page
from results_page.figures import time_plot
from results_page.page import fill, results
from results_page.records import entry_of, fresh
from results_page.tables import build, holm, read_times

from brt.reporting.archive import pack, unpack
from brt.reporting.collect import collect
from brt.reporting.drawing.plots import image
from brt.reporting.runs import open_runs


def a_run(
    folder,
    name,
    bits,
    *bindings,
    seed=0,
    ledger="0a",
    cleared=None,
    fresh=None,
    steps_done=3000,
    **options,
):
    """A run of 3,000 steps that ended with so many bits per byte on validation.

    fresh: bits per byte of the last two reports of training.
    """
    found = {"step": steps_done, "bits_per_byte": bits}
    if cleared:
        found["cleared_bits_per_byte"] = cleared
    return make_run(
        folder,
        f"small/{name}+corpora/text",
        *bindings,
        seed=seed,
        evaluations={"validation": found},
        records=[
            {"step": 100, "data/ledger": f"00{seed}"},
            {"step": 200, "data/ledger": ledger, "train/bits_per_token": 9.0},
            *(
                {"step": 2700 + 300 * n, "train/bits_per_token": value}
                for n, value in enumerate(fresh or ())
            ),
        ],
        **options,
    )


def entries_of(runs, ladder="map"):
    return [entry_of(ladder, group) for group in collect(open_runs(runs))]


def texts(spec, entries, times=None, **others):
    """The cells of a table."""
    table = build("t", {"t": spec} | others, entries, times or {})
    return [[cell.text for cell in row] for row in table.rows]


SLIDE, REC = "map/Slide:7L W=8 *", "map/Rec*"


def test_an_improvement_is_taken_seed_by_seed_on_the_same_data(tmp_path):
    runs = [
        a_run(tmp_path / "rec0", "map_rec", 2.25, cleared=2.5),
        a_run(tmp_path / "rec1", "map_rec", 2.5, seed=1, cleared=2.625),
        a_run(tmp_path / "rec3", "map_rec", 2.5, seed=3, ledger="0b"),
        a_run(tmp_path / "best0", "map_slide", 2.375),
        a_run(tmp_path / "best1", "map_slide", 2.75, seed=1),
        a_run(tmp_path / "best2", "map_slide", 1.0, seed=2),
        a_run(tmp_path / "best3", "map_slide", 1.0, seed=3),  # on other data
        a_run(tmp_path / "wide", "map_slide", 1.5, "BlockRecurrentTransformer.window = 16"),
    ]
    spec = {"rows": [REC], "against": "map/Slide* W={W} *"}
    spec["columns"] = ["system", "W", "N", "S", "seeds", "gain = improvement", "cleared", "plain"]
    table = build("t", {"t": spec}, entries_of(runs), {})
    assert table.heads()[5] == "gain"
    (row,) = table.rows
    assert [cell.text for cell in row[:5]] == ["Rec:fixed:skip:6L, layer 4", "8", "256", "8", "3"]
    assert [cell.values for cell in row[5:]] == [(0.125, 0.25), (2.5, 2.625), (2.375, 2.75)]
    spec["rows"] = [{"runs": REC, "seeds": [1], "label": "one"}]
    spec["columns"] = ["label", "numbers", "improvement"]
    assert texts(spec, entries_of(runs)) == [["one", "1", "0.250"]]


def test_fresh_text_is_the_last_fifth_of_training_seed_by_seed(tmp_path):
    runs = [
        a_run(tmp_path / "rec0", "map_rec", 2.25, fresh=(2.0, 1.5)),
        a_run(tmp_path / "rec1", "map_rec", 2.25, fresh=(2.0, 2.0), seed=1),
        a_run(tmp_path / "slide0", "map_slide", 2.5, fresh=(2.0, 2.0)),
        a_run(tmp_path / "slide1", "map_slide", 2.5, fresh=(2.5, 2.0), seed=1),
    ]
    assert fresh(open_runs(runs)[0]) == 1.75
    spec = {"rows": [REC], "against": SLIDE, "columns": ["fresh", "fresh, early"]}
    (row,) = build("t", {"t": spec}, entries_of(runs), {}).rows
    assert row[0].values == (0.25, 0.25) and row[1].text == "–"


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests():
    from scipy.stats import ttest_1samp

    tested = [(1.0, 1.1, 1.2), (1.0, 2.0, 9.0), (5.0,), (-1.0, 1.5, 0.2)]
    alone = [ttest_1samp(tested[number], 0).pvalue for number in (0, 1, 3)]
    first, second, last = 3 * alone[0], 2 * alone[1], alone[2]
    assert alone == sorted(alone)
    assert holm(tested) == pytest.approx([first, second, None, max(second, last)])


def test_holm_also_counts_the_other_table_and_only_memories(tmp_path):
    runs = [a_run(tmp_path / f"{name}{seed}", name, bits + seed / 100 * (name != "map_slide"),
                  seed=seed) for name, bits in (("map_slide", 2.5), ("map_rec", 2.25))
            for seed in range(3)]  # fmt: skip
    entries = entries_of(runs)
    spec = {"rows": [SLIDE, REC], "against": SLIDE, "columns": ["p"]}
    _, (alone,) = texts(spec, entries)
    plain, (both,) = texts(spec | {"holm_with": "u"}, entries, u=spec)
    assert plain == ["–"] and float(both) == pytest.approx(2 * float(alone), abs=1.1e-3)


def test_a_run_evaluated_before_its_last_step_has_no_bits(tmp_path):
    runs = [a_run(tmp_path / "rec", "map_rec", 2.0, steps_done=2999)]
    assert texts({"rows": [REC], "columns": ["bits", "improvement"]}, entries_of(runs)) == [
        ["–"] * 2
    ]


def test_a_verdict_needs_both_losses(tmp_path):
    bits = {"map_rec": (2.25, 2.3), "map_lstm": (2.25, 2.5)}  # on validation, on fresh text
    runs = [a_run(tmp_path / f"slide{seed}", "map_slide", 2.5, seed=seed, fresh=(2.5, 2.5))
            for seed in range(3)]  # fmt: skip
    for name, (value, late) in bits.items():
        runs += [a_run(tmp_path / f"{name}{seed}", name, value + seed / 100, seed=seed,
                       fresh=(late + seed / 100 - 0.01,) * 2) for seed in range(3)]  # fmt: skip
    spec = {"rows": ["map/Rec:fixed*", "map/Rec:lstm*"], "against": SLIDE}
    spec["columns"] = ["improvement", "verdict"]
    assert texts(spec, entries_of(runs)) == [
        [f"0.240 ± {4.3027 * 0.01 / math.sqrt(3):.3f}", "yes"],
        [f"0.240 ± {4.3027 * 0.01 / math.sqrt(3):.3f}", "depends on how states begin"],
    ]


def test_a_pivot_has_a_column_for_each_value(tmp_path):
    runs = [a_run(tmp_path / f"{rate}", "map_rec", 2.0 + rate, f"cosine.maximum = {rate}")
            for rate in (0.25, 0.5)]  # fmt: skip
    spec = {"rows": ["map/*"], "down": 1, "columns": ["memory", "rate", "bits"]}
    table = build("t", {"t": spec}, entries_of(runs), {})
    assert table.heads() == ["memory", "0.25", "0.5"]
    assert [cell.text for cell in table.rows[0]] == ["Rec, fixed gate", "2.250", "2.500"]


def test_times_and_bytes_are_relative_to_the_other_side(tmp_path):
    wide = "BlockRecurrentTransformer.window = 16"
    runs = [
        a_run(tmp_path / "rec", "map_rec", 2.0),
        a_run(tmp_path / "wide", "map_slide", 2.5, wide),
    ]
    entries = entries_of(runs)
    file = tmp_path / "times.csv"
    system = entries[0].system
    file.write_text(
        f'ladder,system,window,ratio,paper\nmap,"{system}",8,1.5,\nmap,Slide:7L,16,2,3\n'
    )
    spec = {"rows": [REC], "against": "map/Slide*", "columns": ["time", "paper", "time ratio"]}
    assert texts(spec, entries, read_times(file)) == [["1.50", "–", "0.75"]]
    spec["columns"] = ["bytes", "bytes ratio"]
    carried = 4 * (2 * 6 * 8 * 96 + 8 * 96)
    assert texts(spec, entries) == [[f"{carried:,}", f"{carried / (4 * 2 * 7 * 16 * 96):.2f}"]]


def test_the_figure_of_times_has_every_seed(tmp_path):
    runs = [a_run(tmp_path / f"{name}{seed}", name, bits, seed=seed)
            for name, bits in (("map_slide", 2.5), ("map_rec", 2.25))
            for seed in (0, 1)]  # fmt: skip
    entries = entries_of(runs)
    times = {
        ("map", entries[0].system, "8"): ("1", ""),
        ("map", entries[1].system, "8"): ("1.5", ""),
    }
    plot = time_plot("f", {"title": "T", "rows": [REC], "against": SLIDE}, entries, times)
    mean, seeds = plot.lines
    assert plot.rows == ("Rec, fixed gate, W = 8: 1.50",)
    assert (mean.name, mean.y, seeds.y) == ("Rec, fixed gate", [0.25], [0.25, 0.25])
    assert image(plot)[:4] == b"\x89PNG"


def test_an_archive_has_all_records_and_is_reproducible(tmp_path):
    run = a_run(tmp_path / "run", "map_rec", 2.0, cleared=2.5, config="small/map_rec.gin")
    (run / "studies").mkdir()
    (run / "studies" / "reach.json").write_text('{"study": "reach"}')
    long = f"compare-{'w' * 200}.json"
    (run / "studies" / long).write_text('{"study": "compare"}')
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "params").write_bytes(b"learned")
    whole = (run / "metrics.jsonl").read_bytes()
    cut_off = b'{"step": 9, "train/lo'
    (run / "metrics.jsonl").write_bytes(
        whole + b'{"step": 8, "train/loss": 12.345678901234567, "x": NaN}\n' + cut_off
    )
    pack(run, tmp_path / "one.tar.bz2")
    (run / "checkpoints" / "params").write_bytes(b"learned more")
    (run / "metrics.jsonl").touch()
    pack(run, tmp_path / "two.tar.bz2")
    assert (tmp_path / "one.tar.bz2").read_bytes() == (tmp_path / "two.tar.bz2").read_bytes()
    again = unpack(tmp_path / "one.tar.bz2", tmp_path / "out")
    kept = {path.relative_to(again): path for path in again.rglob("*") if path.is_file()}
    assert {str(name) for name in kept} == {
        "config.gin", "operative_config.gin", "metrics.jsonl", "stands_for.json",
        "evaluation_validation.json", "studies/reach.json", f"studies/{long}",
    }  # fmt: skip
    metrics = kept.pop(Path("metrics.jsonl")).read_bytes()
    rounded = b'{"step": 8, "train/loss": 12.34568, "x": NaN}\n'
    assert metrics == whole + rounded + cut_off
    assert all(path.read_bytes() == (run / name).read_bytes() for name, path in kept.items())


def test_a_mark_is_filled_with_its_table_or_says_none_was_run(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run", "map_rec", 2.0)
    pack(run, tmp_path / "runs" / "map" / "run.tar.bz2")
    specs = tmp_path / "tables.toml"
    lines = ["[rates]", "[figure]"]
    for name, rows in (("one", REC), ("two", "none/*")):
        lines += [f"[table.{name}]", f'rows = ["{rows}"]', 'columns = ["bits"]']
    specs.write_text("\n".join(lines))
    monkeypatch.setattr(page, "SPECS", specs)
    found = results(tmp_path)
    marks = [f"<!-- table {name} -->\nold\n<!-- end -->\n" for name in ("one", "two")]
    text = fill("Words.\n".join(marks), found)
    assert fill(text, found) == text and "old" not in text
    shown, other = text.split("Words.\n")
    assert " 2.000 |" in shown and "Not run." not in shown
    assert other == "<!-- table two -->\nNot run.\n<!-- end -->\n"
    unclosed = "<!-- table one -->\nWords.\n" + marks[1]
    with pytest.raises(ValueError, match="<!-- table one --> has no <!-- end -->"):
        fill(unclosed, found)
