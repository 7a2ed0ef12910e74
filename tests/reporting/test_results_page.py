"""The page of results says what the archived records say."""

import json
import math
import re

import pytest
from fabricated_runs import make_run
from paths import ROOT

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.gain_tables import gain_table
from results_page.gains import gains
from results_page.over_training import clearing_plot, training_plot
from results_page.overview import overview_plot, overview_table
from results_page.page import fill, results
from results_page.systems import systems_table

from brt.reporting.archive import pack, unpack
from brt.reporting.collect import collect
from brt.reporting.drawing.plots import png
from brt.reporting.runs import open_runs

PAGE = ROOT / "docs" / "results"


def a_run(
    folder, name, bits, *bindings, seed=0, ledger="0a", cleared=None, split="validation", **options
):
    """A run of 3,000 steps that ended with so many bits per byte on a split."""
    found = {"step": 3000, "bits_per_byte": bits}
    if cleared:
        found["cleared_bits_per_byte"] = cleared
    return make_run(
        folder,
        f"small/{name}+corpora/text",
        *bindings,
        seed=seed,
        evaluations={split: found},
        records=[{"step": 100, "data/ledger": f"00{seed}"}, {"step": 200, "data/ledger": ledger}],
        **options,
    )


def test_a_gain_is_taken_seed_by_seed_from_the_best_plain_stack_on_the_same_tokens(tmp_path):
    runs = [
        a_run(tmp_path / "rec0", "map_rec", 2.25, cleared=2.5),
        a_run(tmp_path / "rec1", "map_rec", 2.5, seed=1, cleared=2.625),
        a_run(tmp_path / "slow0", "map_slide", 2.5, "cosine.maximum = 0.001"),
        a_run(tmp_path / "slow1", "map_slide", 2.75, "cosine.maximum = 0.001", seed=1),
        a_run(tmp_path / "best0", "map_slide", 2.375),
        a_run(tmp_path / "best1", "map_slide", 2.75, seed=1),
        # Better than the best of a seed that the recurrent stack was not trained with.
        a_run(tmp_path / "best2", "map_slide", 1.0, seed=2),
        a_run(tmp_path / "slow2", "map_slide", 0.5, "cosine.maximum = 0.001", seed=2),
        # Lower than all, but on other tokens, with another window, or deeper by two layers.
        a_run(tmp_path / "other", "map_slide", 1.0, "cosine.maximum = 0.008", ledger="0b"),
        a_run(tmp_path / "wide", "map_slide", 1.5, "BlockRecurrentTransformer.window = 16"),
        a_run(tmp_path / "deep", "map_slide", 1.5, "BlockRecurrentTransformer.num_layers = 8"),
        # With another optimizer.
        a_run(tmp_path / "adafactor", "map_slide", 1.0, "Trainer.optimizer = @adafactor"),
    ]
    (gain,) = gains(collect(open_runs(runs)))
    assert [run.name for run in gain.plain.runs] == ["best0", "best1", "best2"]
    assert gain.gains == (0.125, 0.25) and gain.worth == (0.25, 0.125)
    (row,) = gain_table("map", [gain]).rows
    assert [cell.text for cell in row][5:10] == [
        "Rec:fixed:skip:6L, layer 4", "Slide:7L", "8", "adamw 0.002; 0.002", "2",
    ]  # fmt: skip
    assert [cell.values for cell in row][10:] == [
        (2.375, 2.75), (2.25, 2.5), (2.5, 2.625), (0.125, 0.25), (0.25, 0.125),
    ]  # fmt: skip


def test_the_overview_says_of_several_seeds_which_side_of_zero_their_interval_is_on(tmp_path):
    bits = {  # of the recurrent stack, a seed each; the plain one has 2.5
        "map_rec": (2.25, 2.26, 2.27),
        "map_lstm": (2.25, 2.5, 2.75),
        "map_rec W": (2.625, 2.615, 2.635),
        "map_lstm W": (2.0, 2.0),
    }
    runs = []
    for name, values in bits.items():
        window = ["BlockRecurrentTransformer.window = 16"] if name.endswith("W") else []
        for seed, value in enumerate(values):
            folder = tmp_path / f"{name}{seed}"
            runs.append(a_run(folder, name.split()[0], value, *window, seed=seed, cleared=3.0))
            if name.startswith("map_rec"):
                folder = tmp_path / f"slide{len(window)}{seed}"
                runs.append(a_run(folder, "map_slide", 2.5, *window, seed=seed))
    states = "RecurrentCell.num_states = 32"
    runs += [a_run(tmp_path / f"states{seed}", "map_rec", 2.5, states, seed=seed, cleared=2.75)
             for seed in range(3)]  # fmt: skip
    # Gates that begin otherwise are no rows.
    unusual = 'RecurrentCell.gate_biases = "one"'
    runs += [a_run(tmp_path / f"one{seed}", "map_rec", 2.0, unusual, seed=seed)
             for seed in range(3)]  # fmt: skip
    found = gains(collect(open_runs(runs)))
    rows = [[cell.text for cell in row] for row in overview_table(found).rows]
    assert [row[6:] for row in rows] == [
        ["fixed gate", "3", f"0.240 ± {4.3027 * 0.01 / math.sqrt(3):.3f}", "0.740 ± 0.025",
         "recurrence"],
        ["LSTM gate", "3", f"0.000 ± {4.3027 * 0.25 / math.sqrt(3):.3f}", "0.500 ± 0.621",
         "not distinguishable"],
        ["fixed gate", "3", "0.000 ± 0.000", "0.250 ± 0.000", "not distinguishable"],
        ["fixed gate", "3", "-0.125 ± 0.025", "0.375 ± 0.025", "one more layer"],
    ]  # fmt: skip
    assert [(row[1], row[5]) for row in rows] == [
        ("8", "8"), ("8", "8"), ("8", "32"), ("16", "8"),
    ]  # fmt: skip
    plot = overview_plot(found)
    assert [(mean.place, mean.series) for mean in plot.means] == [
        ("text_bytes, W 8, S 8, N 256, 3,000 steps", "fixed gate"),
        ("text_bytes, W 8, S 8, N 256, 3,000 steps", "LSTM gate"),
        ("text_bytes, W 8, S 32, N 256, 3,000 steps", "fixed gate"),
        ("text_bytes, W 16, S 8, N 256, 3,000 steps", "fixed gate"),
    ]
    assert f"{plot.means[0].mean:.3f} ± {plot.means[0].half:.3f}" == rows[0][8]
    assert png(plot) and plot.as_csv().count("\n") == 5
    assert overview_table(found[:0]) is None and overview_plot(found[:0]) is None


def test_a_run_that_was_evaluated_before_its_last_step_is_in_no_gain(tmp_path):
    runs = [a_run(tmp_path / name, f"map_{name}", 2.0) for name in ("rec", "slide")]
    file = tmp_path / "rec" / "evaluation_validation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 2999}))
    assert not gains(collect(open_runs(runs)))


def test_every_system_stands_beside_the_deepest_window_that_read_the_same_the_best_first(tmp_path):
    deep = "BlockRecurrentTransformer.num_layers = 9"
    runs = [
        a_run(tmp_path / "rec0", "map_rec", 2.25, cleared=2.5),
        a_run(tmp_path / "rec1", "map_rec", 2.5, seed=1, cleared=2.625),
        a_run(tmp_path / "deep0", "map_slide", 2.375, deep),
        a_run(tmp_path / "deep1", "map_slide", 2.75, deep, seed=1),
        # Better, and less deep: beside it, and not what the others are compared with.
        a_run(tmp_path / "wide", "map_slide", 2.0, "BlockRecurrentTransformer.window = 16"),
        a_run(tmp_path / "lstm", "map_lstm", 1.0, ledger="0b", cleared=1.5),
    ]
    table = systems_table("all", collect(open_runs(runs)))
    assert table.columns[7].title == "below Slide:9L"
    shown = [[cell.values or cell.text for cell in row] for row in table.rows]
    assert shown == [
        ["Slide:7L", "16", "256", "–", "1", (2.0,), "–", (0.375,), "–"],
        ["Rec:fixed:skip:6L, layer 4", "8", "256", "8", "2", (2.25, 2.5), (2.5, 2.625),
         (0.125, 0.25), (0.25, 0.125)],
        ["Slide:9L", "8", "256", "–", "2", (2.375, 2.75), "–", "–", "–"],
    ]  # fmt: skip
    assert systems_table("all", collect(open_runs(runs[:2]))) is None


def test_gain_and_worth_over_training_are_means_over_seeds_where_all_were_evaluated(tmp_path):
    def trained(name, kind, seed, own, cleared=()):
        run = a_run(tmp_path / name, kind, 2.0, seed=seed, cleared=2.5 if cleared else None)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for number, bits in enumerate(own):
            records.append({"step": 1000 * (number + 1), "eval/bits_per_token": bits})
            if cleared:
                records[-1]["eval/cleared_bits_per_token"] = cleared[number]
        (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        return run

    runs = [
        trained("rec0", "map_rec", 0, (3.0, 2.5, 2.25), (3.0, 3.0, 3.0)),
        trained("rec1", "map_rec", 1, (3.25, 2.5), (3.5, 2.75)),
        trained("slide0", "map_slide", 0, (2.75, 2.75, 2.75)),
        trained("slide1", "map_slide", 1, (2.75, 2.5)),
    ]
    found = gains(collect(open_runs(runs)))
    (line,) = training_plot("training", found).lines
    assert (line.x, line.y) == ([1000, 2000], [-0.375, 0.125])
    (line,) = clearing_plot("clearing", found).lines
    assert (line.x, line.y) == ([1000, 2000], [0.125, 0.375])
    assert training_plot("training", gains(collect(open_runs(runs[:2])))) is None


def test_an_archive_holds_all_records_and_nothing_learned_and_equal_ones_are_equal(tmp_path):
    run = a_run(tmp_path / "run", "map_rec", 2.0, cleared=2.5, config="small/map_rec.gin")
    (run / "studies").mkdir()
    (run / "studies" / "reach.json").write_text('{"study": "reach"}')
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "params").write_bytes(b"learned")
    pack(run, tmp_path / "one.tar.gz")
    (run / "checkpoints" / "params").write_bytes(b"learned more")
    (run / "metrics.jsonl").touch()
    pack(run, tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    again = unpack(tmp_path / "one.tar.gz", tmp_path / "out")
    kept = {path.relative_to(again): path for path in again.rglob("*") if path.is_file()}
    assert {str(name) for name in kept} == {
        "config.gin", "operative_config.gin", "metrics.jsonl", "stands_for.json",
        "evaluation_validation.json", "studies/reach.json",
    }  # fmt: skip
    assert all(path.read_bytes() == (run / name).read_bytes() for name, path in kept.items())


def test_an_archive_with_one_byte_changed_is_named(tmp_path):
    archive = tmp_path / "run.tar.gz"
    pack(a_run(tmp_path / "run", "map_rec", 2.0), archive)
    whole = archive.read_bytes()
    for place in range(10, len(whole), len(whole) // 50):  # after gzip's header, which is told by
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"run\.tar\.gz cannot be read"):
            unpack(archive, tmp_path / f"out{place}")


def test_a_mark_is_filled_with_its_table_or_says_that_nothing_was_run(tmp_path):
    run = a_run(tmp_path / "run", "map_rec", 2.0)
    pack(run, tmp_path / "runs" / "map_steps" / "run.tar.gz")
    found = results(tmp_path / "runs")
    marks = [f"<!-- table {name} -->\nold\n<!-- end -->\n" for name in ("map_steps", "map_window")]
    text = fill("Words.\n".join(marks), found)
    assert fill(text, found) == text and "old" not in text
    shown, other = text.split("Words.\n")
    assert " 2.0000 |" in shown and "Not run." not in shown
    assert other == "<!-- table map_window -->\nNot run.\n<!-- end -->\n"
    unclosed = "<!-- table map_steps -->\nWords.\n" + marks[1]
    with pytest.raises(ValueError, match="<!-- table map_steps --> has no <!-- end -->"):
        fill(unclosed, found)


def test_excerpts_show_the_tokens_that_the_state_helps_as_plain_text(tmp_path):
    run = a_run(tmp_path / "run", "map_rec", 2.0)
    excerpt = {
        "direction": "better", "token": 1234, "last_seen": 900, "where": "beyond", "title": "A [b]",
        "before": "the old\n<b>man|", "text": "Ishmael",
        "nats": math.log(2), "other_nats": math.log(64),
    }  # fmt: skip
    # Of the text before it the last 60 characters, whatever is marked in them.
    broken = excerpt | {"text": "\n", "before": "Ahab" + "*" * 51 + "the line|", "token": 1}
    worse = excerpt | {"direction": "worse", "text": "Ahab"}
    (run / "studies").mkdir()
    (run / "studies" / "compare-cleared.json").write_text(
        json.dumps({"study": "compare", "excerpts": [excerpt, broken, worse]})
    )
    pack(run, tmp_path / "runs" / "map_window" / "run.tar.gz")
    found = results(tmp_path / "runs").tables["map_window_excerpts"].as_markdown()
    (row,) = [line for line in found.splitlines() if "Ishmael" in line]
    assert [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] == [
        r"A \[b\]", "1,234", r"the old \<b\>man\|<b>Ishmael</b>", "6.00", "1.00",
        "900 back, beyond the window",
    ]  # fmt: skip
    assert "the line|<b>↵</b>" in found.replace("\\", "")
    assert "Ahab" not in found
