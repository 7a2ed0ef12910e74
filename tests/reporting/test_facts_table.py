"""The table and figure of facts in text show the numbers of the runs' studies."""

import json

import numpy as np
import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page import facts_rule
from results_page.facts_table import BY_DEPTH, RULE, facts_map, facts_plot, facts_table

from brt.reporting.collect import collect
from brt.reporting.runs import open_runs

DELTA = "BlockRecurrentTransformer.memories = ((@GatedDeltaMemory, (4,)),)"


def study(run, shares, bits):
    """Writes a study of shares by length, the same shares by half the length as distance."""
    series = [
        {"name": f"state kept, by {by}", "x": [x // part for x in shares], "y": [*shares.values()]}
        | {"x_label": "", "y_label": ""}
        for by, part in (("length", 1), ("distance", 2))
    ]
    series.append(series[0] | {"name": "state kept, by facts", "x": [2, 4], "y": [0.5, 0.25]})
    numbers = {"carried_bytes": 640, "accuracy_cleared": 0.2, "accuracy_kept": max(shares.values())}
    numbers |= {} if bits is None else {"text_bits_per_token": bits}
    (run / "studies").mkdir()
    titles = {"cleared": "Answers by length and depth, state cleared", "kept": BY_DEPTH}
    np.savez(run / "studies" / "answers.npz", cleared=[[0.0]], kept=[[*shares.values()]])
    ends = {"x_label": "", "y_label": "", "x_ends": [0, 9], "y_ends": [1, 1]}
    ends |= {"x_borders": [], "y_borders": []}
    maps = [ends | {"array": name, "title": title, "caption": ""} for name, title in titles.items()]
    content = {"study": "answers", "numbers": numbers, "series": series, "maps": maps}
    content["arrays"] = "answers.npz"
    (run / "studies" / "answers.json").write_text(json.dumps(content))
    return run


def groups_of(folder, bits):
    runs = []
    for seed, (bindings, shares) in enumerate(
        [((), {64: 0.3, 512: 0.1}), ((DELTA,), {64: 0.9, 512: 0.8}), ((DELTA,), {64: 0.7})]
    ):
        scores = {"validation": {"bits_per_byte": 1.0, "answer_accuracy": 0.5 + seed / 10}}
        name = "small/map_slide+corpora/text"
        task = ("BabiLong.task = 'qa1'", "BabiLong.num_facts = (1, 2)")
        run = make_run(folder / str(seed), name, *bindings, *task, seed=seed, evaluations=scores)
        runs.append(study(run, shares, bits))
    return collect(open_runs(runs))


def test_each_memory_has_its_shares_by_length_and_its_loss_on_text(tmp_path):
    table = facts_table("babilong_facts", groups_of(tmp_path, 3.25))
    by_title = [dict(zip(table.heads(), (cell.text for cell in row))) for row in table.rows]
    rows = {row["memory"]: row for row in by_title}
    assert by_title[0]["memory"] == RULE and by_title[0]["512 pieces"] == "0.59"
    assert (by_title[0]["as in training"], by_title[0]["4 facts"]) == ("0.84", "0.49")
    delta, window = rows["gated delta memory"], rows["window (Slide)"]
    assert delta["as in training"] == "0.60 / 0.70"  # all columns in the order of seeds
    assert (delta["64 pieces"], delta["512 pieces"]) == ("0.90 / 0.70", "0.80 / –")
    assert (window["64 pieces"], window["512 pieces"]) == ("0.30", "0.10")
    assert window["state cleared"] == "0.20" and window["bits per piece of text"] == "3.25"
    assert delta["bytes carried"] == "640"


def test_the_figure_has_means_at_the_distances_that_all_runs_have(tmp_path):
    plot = facts_plot("babilong_facts", groups_of(tmp_path, 3.25))
    lines = {line.name: (list(line.x), list(line.y)) for line in plot.lines}
    assert lines["window (Slide)"] == ([32, 256], [0.3, 0.1])
    assert lines["gated delta memory"] == ([32], [pytest.approx(0.8)])
    assert len(lines) == 3 and set(lines[RULE][0]) <= set(range(32, 257))


def test_the_map_is_that_of_the_run_with_the_most_right_answers(tmp_path):
    shown = facts_map("babilong_facts_map", groups_of(tmp_path, 3.25))
    assert np.array_equal(shown.values_RC, [[0.9, 0.8]])
    assert shown.name == "babilong_facts_map" and "gated delta memory" in shown.caption


def test_tasks_whose_text_is_not_scored_have_none(tmp_path):
    groups = groups_of(tmp_path, None)
    assert facts_table("mqar_facts", groups) is None and facts_plot("mqar_facts", groups) is None


def test_the_rule_is_right_as_often_as_counted_by_hand():
    assert facts_rule.share((1,)) == 1
    # Both facts of one person; or the last is asked for; or the other one, and rooms are equal.
    assert facts_rule.share((2,)) == pytest.approx(1 / 4 + 3 / 4 * (1 / 2 + 1 / 2 / 6), abs=0.01)
    both = (facts_rule.share((2,)) + facts_rule.share((4,))) / 2
    assert facts_rule.share((2, 4)) == pytest.approx(both)


def test_the_rule_is_right_more_often_for_facts_nearby():
    shares = facts_rule.share_by_distance((2, 4), (512,))
    assert max(shares) == 256 and shares[256] < shares[64] < shares[16] <= 1
