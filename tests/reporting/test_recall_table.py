"""The tables of recall of pairs show each memory at the rate that its search chooses."""

import json

import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.recall_table import rates_table, recall_plots, recall_table

from brt.reporting.collect import collect
from brt.reporting.runs import open_runs

DELTA = "BlockRecurrentTransformer.memories = ((@GatedDeltaMemory, (4,)),)"
WINDOW = "BlockRecurrentTransformer.window = {}"


def run_of(folder, bindings, rate, seed, loss, right, study=None, carried=640, back=None):
    """A run with a loss and a share of right answers, and a study of shares by distance.

    back: of pairs 256 tokens back.
    """
    name = f"{len(bindings)}{'_'.join(bindings)[-2:]}_{rate}_{seed}"
    scores = {"validation": {"loss": loss, "answer_accuracy": right}}
    run = make_run(folder / name, "small/map_slide+corpora/text", *bindings,
                   f"cosine.maximum = {rate}", seed=seed, evaluations=scores)  # fmt: skip
    if study:
        series = [{"name": "state kept, by distance", "x": [*study], "y": [*study.values()]}]
        series.append(series[0] | {"name": "state kept, 16 facts, by length"})
        if back is not None:
            series[0] = series[0] | {"x": [64, 256, 1024], "y": [study[64], back, study[1024]]}
        fewer = [min(1.0, 2 * share) for share in study.values()]
        series.append(series[0] | {"name": "state kept, 2 facts, by length", "y": fewer})
        series = [each | {"x_label": "", "y_label": ""} for each in series]
        content = {"study": "answers", "numbers": {"carried_bytes": carried}, "series": series}
        (run / "studies").mkdir()
        (run / "studies" / "answers.json").write_text(json.dumps(content))
    return run


@pytest.fixture
def groups(tmp_path):
    delta, short, long = (DELTA,), (WINDOW.format(8),), (WINDOW.format(32),)
    runs = [
        # More right answers, but not the lowest loss: not chosen.
        run_of(tmp_path, delta, 0.005, 0, 0.5, 1.0, {64: 1.0, 1024: 1.0}),
        # A default that a newer version binds by name is no other model.
        run_of(
            tmp_path,
            (*delta, "BlockRecurrentTransformer.attention_form = 'auto'"),
            0.002,
            0,
            0.25,
            0.9,
            {64: 0.95, 1024: 0.9},
            back=0.9375,
        ),
        run_of(tmp_path, delta, 0.002, 1, 0.75, 0.95, {64: 0.925, 1024: 0.25}, back=0.75),
        run_of(tmp_path, delta, 0.002, 2, 0.75, 0.5),
        run_of(tmp_path, short, 0.001, 0, 0.5, 0.5),
        run_of(tmp_path, short, 0.002, 0, 0.75, 0.75, {64: 0.75, 1024: 0.125}),
        run_of(tmp_path, short, 0.004, 0, 1.0, 0.25),
        run_of(tmp_path, short, 0.001, 1, 0.5, 0.5, {64: 0.5, 1024: 0.25}, back=0.375),
        # The other size has the rate that was chosen for the first.
        run_of(tmp_path, long, 0.001, 0, 0.5, 0.75, {64: 0.75, 1024: 0.5}, carried=1280),
        run_of(tmp_path, long, 0.002, 0, 0.25, 1.0, {64: 1.0, 1024: 1.0}, carried=1280),
    ]
    return collect(open_runs(runs))


def test_a_rate_is_chosen_by_the_loss_of_the_first_seed(groups):
    table = rates_table("rates", groups)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["gated delta memory", "–", "0.90", "–", "1.00", "0.002"],
        ["window (Slide)", "0.50", "0.75", "0.25", "–", "0.001"],
    ]


def test_memories_and_sizes_have_all_seeds_of_the_chosen_rate(groups):
    table = recall_table("recall", groups)
    rows = [dict(zip(table.heads(), (cell.text for cell in row))) for row in table.rows]
    titles = ["memory", "bytes carried", "pairs", "reach", "as in training"]
    titles += ["16 pairs, 1,024 tokens", "256 tokens back"]
    assert [[row[title] for title in titles] for row in rows] == [
        ["gated delta memory", "640", "16", "1,024", "0.95 / 0.90 / 0.50", "0.90 / 0.25",
         "0.94 / 0.75"],
        ["window (Slide)", "640", "2", "0", "0.50 / 0.50", "0.25", "0.38"],
        ["window (Slide)", "1,280", "2", "0", "0.75", "0.50", "–"],
    ]  # fmt: skip
    by_bytes, by_distance = recall_plots("recall", groups)
    points = {line.name: (list(line.x), list(line.y)) for line in by_bytes.lines}
    assert points["gated delta memory"] == ([640], [pytest.approx(0.575)])
    assert points["window (Slide)"] == ([640, 1280], [0.25, 0.5])
    assert by_distance.lines[0].name == "gated delta memory, 640 bytes"


def test_runs_without_answers_have_none(tmp_path):
    run = make_run(tmp_path / "run", "small/map_slide+corpora/text",
                   evaluations={"validation": {"loss": 1.0}})  # fmt: skip
    found = collect(open_runs([run]))
    assert recall_table("recall", found) is None and rates_table("rates", found) is None
    assert recall_plots("recall", found) == []
