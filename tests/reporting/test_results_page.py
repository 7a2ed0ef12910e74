"""The page of results agrees with the archived records."""

import json
import math
import re
from pathlib import Path

import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.gain_tables import gain_table
from results_page.gains import fresh_bits, gains, gradient_tokens
from results_page.learning import learning_plot
from results_page.overview import DEPENDS, overview_plot, overview_table
from results_page.page import fill, results
from results_page.significance import holm
from results_page.systems import StepTimes, systems_table

from brt.reporting.archive import pack, unpack
from brt.reporting.collect import collect
from brt.reporting.drawing.plots import png
from brt.reporting.runs import open_runs


def a_run(folder, name, bits, *bindings, seed=0, ledger="0a", cleared=None, fresh=None, **options):
    """A run of 3,000 steps that ended with so many bits per byte on validation.

    fresh: bits per byte of the last two reports of training.
    """
    found = {"step": 3000, "bits_per_byte": bits}
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
    assert gain.gains == (0.125, 0.25) and gain.fresh == ()
    (row,) = gain_table("map", [gain]).rows
    assert [cell.text for cell in row][4:8] == ["adamw", "Rec:fixed:skip:6L, layer 4", "8", "2"]
    assert [cell.values for cell in row][8:] == [
        (2.375, 2.75), (2.25, 2.5), (2.5, 2.625), (0.125, 0.25), (),
    ]  # fmt: skip


def test_what_all_rows_share_is_said_once(tmp_path):
    runs = [
        a_run(tmp_path / "rec", "map_rec", 2.25),
        a_run(tmp_path / "slide", "map_slide", 2.5),
        a_run(tmp_path / "rec16", "map_rec", 2.0, "BlockRecurrentTransformer.window = 16"),
        a_run(tmp_path / "slide16", "map_slide", 2.5, "BlockRecurrentTransformer.window = 16"),
    ]
    table = gain_table("map", gains(collect(open_runs(runs))))
    assert table.heads() == ["window", "recurrent", "improvement"]
    assert "one more layer 2.500" in table.caption and "steps 3,000" in table.caption


def test_fresh_text_is_the_last_fifth_of_training_seed_by_seed(tmp_path):
    runs = [
        a_run(tmp_path / "rec0", "map_rec", 2.25, fresh=(2.0, 1.5)),
        a_run(tmp_path / "rec1", "map_rec", 2.25, fresh=(2.0, 2.0), seed=1),
        a_run(tmp_path / "slide0", "map_slide", 2.5, fresh=(2.0, 2.0)),
        a_run(tmp_path / "slide1", "map_slide", 2.5, fresh=(2.5, 2.0), seed=1),
    ]
    opened = open_runs(runs)
    assert fresh_bits(opened[0]) == 1.75
    (gain,) = gains(collect(opened))
    assert gain.fresh == (0.25, 0.25)
    (curve,) = learning_plot("learning", [gain]).curves
    assert (curve.steps, curve.means, curve.seeds) == ((2700, 3000), (0.25, 0.25), 2)
    plot = learning_plot("learning", [gain])
    assert png(plot) and plot.as_csv().count("\n") == 3


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_the_overview_names_the_better_side_only_where_both_losses_agree(tmp_path):
    bits = {  # of the recurrent stack on validation, a seed each, and on fresh text; plain: 2.5
        "map_rec": ((2.25, 2.26, 2.27), (2.3, 2.31, 2.32)),
        "map_lstm": ((2.25, 2.5, 2.75), (2.3, 2.31, 2.32)),
        "map_rec W": ((2.625, 2.615, 2.635), (2.6, 2.61, 2.62)),
        "map_lstm W": ((2.0, 2.0), (2.0, 2.0)),
    }
    runs = []
    for name, both in bits.items():
        window = ["BlockRecurrentTransformer.window = 16"] if name.endswith("W") else []
        for seed, (value, fresh) in enumerate(zip(*both)):
            folder = tmp_path / f"{name}{seed}"
            options = {"seed": seed, "fresh": (fresh, fresh)}
            runs.append(a_run(folder, name.split()[0], value, *window, **options))
            if name.startswith("map_rec"):
                folder = tmp_path / f"slide{len(window)}{seed}"
                options["fresh"] = 2.5, 2.5
                runs.append(a_run(folder, "map_slide", 2.5, *window, **options))
    # Gates that begin otherwise are no rows.
    unusual = 'RecurrentCell.gate_biases = "one"'
    runs += [a_run(tmp_path / f"one{seed}", "map_rec", 2.0, unusual, seed=seed)
             for seed in range(3)]  # fmt: skip
    found = gains(collect(open_runs(runs)))
    rows = [[cell.text for cell in row] for row in overview_table(found).rows]
    assert [[row[1], *row[4:]] for row in rows] == [
        ["fixed", f"0.240 ± {4.3027 * 0.01 / math.sqrt(3):.3f}", "0.190 ± 0.025", "recurrence"],
        ["LSTM", f"0.000 ± {4.3027 * 0.25 / math.sqrt(3):.3f}", "0.190 ± 0.025", DEPENDS],
        ["fixed", "-0.125 ± 0.025", "-0.110 ± 0.025", "one more layer"],
    ]
    caption = overview_table(found).caption
    assert "2 of 3 survive on validation" in caption and "3 of 3 survive on fresh" in caption
    plot = overview_plot(found)
    assert [(mean.place, mean.series) for mean in plot.means[:2]] == [
        ("text_bytes, W 8, N 256, fixed", "validation"),
        ("text_bytes, W 8, N 256, fixed", "fresh training text"),
    ]
    assert f"{plot.means[0].mean:.3f} ± {plot.means[0].half:.3f}" == rows[0][4]
    assert png(plot) and plot.as_csv().count("\n") == 7
    assert overview_table(found[:0]) is None and overview_plot(found[:0]) is None


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, 64),
        ({"segments_per_step": 8}, 512),
        ({"segments_per_step": 8, "bptt_depth": 3}, 256),
        ({"segments_per_step": 2, "bptt_depth": 3}, 128),
    ],
)
def test_gradients_cross_the_segments_of_a_step_to_a_depth(settings, tokens):
    named = {f"Trainer.{name}": value for name, value in settings.items()}
    assert gradient_tokens({"Trainer.segment_length": 64, **named}) == tokens


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
    table = systems_table("all", collect(open_runs(runs)), [], StepTimes({}))
    assert table.columns[4].title == "below Slide:9L"
    assert [[cell.values or cell.text for cell in row[:5]] for row in table.rows] == [
        ["Slide:7L", "16", "documents", (2.0,), (0.375,)],
        ["Rec:fixed:skip:6L, layer 4", "8", "documents", (2.25, 2.5), (0.125, 0.25)],
        ["Slide:9L", "8", "documents", (2.375, 2.75), "–"],
    ]
    assert systems_table("all", collect(open_runs(runs[:2])), [], StepTimes({})) is None


def test_an_archive_holds_all_records_and_nothing_learned_and_equal_ones_are_equal(tmp_path):
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


def test_a_mark_is_filled_with_its_table_or_says_that_nothing_was_run(tmp_path):
    run = a_run(tmp_path / "run", "map_rec", 2.0)
    pack(run, tmp_path / "runs" / "map_steps" / "run.tar.bz2")
    found = results(tmp_path / "runs")
    marks = [f"<!-- table {name} -->\nold\n<!-- end -->\n" for name in ("map_steps", "map_window")]
    text = fill("Words.\n".join(marks), found)
    assert fill(text, found) == text and "old" not in text
    shown, other = text.split("Words.\n")
    assert " 2.000 |" in shown and "Not run." not in shown
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
    pack(run, tmp_path / "runs" / "map_window" / "run.tar.bz2")
    found = results(tmp_path / "runs").tables["map_window_excerpts"].as_markdown()
    (row,) = [line for line in found.splitlines() if "Ishmael" in line]
    assert [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] == [
        r"A \[b\]", r"the old \<b\>man\|<b>Ishmael</b>", "6.0", "1.0",
        "900 back",
    ]  # fmt: skip
    assert "the line|<b>↵</b>" in found.replace("\\", "")
    assert "Ahab" not in found
