"""The tables of recall of pairs show each memory at the rate that its search chooses."""

import json
import math
from collections import Counter

import pytest
from fabricated_runs import make_run

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.recall_runs import recalls
from results_page.recall_table import best_table, rates_table, recall_plots, recall_table

from brt.data.sources.mqar import MultiQueryRecall
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
        ["gated delta memory", "640", "16", "1,024", "0.90 / 0.95 / 0.50", "0.90 / 0.25 / –",
         "0.94 / 0.75 / –"],
        ["window (Slide)", "640", "2", "0", "0.50 / 0.50", "– / 0.25", "– / 0.38"],
        ["window (Slide)", "1,280", "2", "0", "0.75", "0.50", "–"],
    ]  # fmt: skip
    by_distance, by_bytes = recall_plots("recall", groups)
    points = {line.name: (list(line.x), list(line.y)) for line in by_bytes.lines}
    assert points["gated delta memory"] == ([640], [pytest.approx(0.575)])
    assert points["window (Slide)"] == ([640, 1280], [0.25, 0.5])
    line = by_distance.lines[0]
    assert line.name == "gated delta memory, 640 bytes"
    assert list(line.y) == pytest.approx([0.9375, 0.84375, 0.575])  # of two runs
    assert line.errors is None  # three were trained


def test_the_short_table_has_the_better_size_of_each_memory(groups):
    rows = [[cell.text for cell in row] for row in best_table("best", groups).rows]
    assert rows == [
        ["window (Slide)", "1,280", "0.75", "0.50", "–"],
        ["gated delta memory", "640", "0.95 / 0.93 / –", "0.90 / 0.25 / –", "0.94 / 0.75 / –"],
    ]  # fmt: skip


def test_shares_far_back_have_the_number_of_their_queries(tmp_path):
    task = {"lengths": (32, 128), "num_pairs": (2, 4), "vocabulary_size": 12, "num_documents": 9}
    lines = [f"MultiQueryRecall.{name} = {value}" for name, value in task.items()]
    run = run_of(tmp_path, (DELTA, *lines), 0.002, 0, 0.25, 0.9, {32: 0.95, 128: 0.9})
    file = run / "studies" / "answers.json"
    study = json.loads(file.read_text())
    study["series"].append(study["series"][-1] | {"name": "state kept, by length", "x": [32, 128]})
    file.write_text(json.dumps(study | {"documents": [1, 2, 3, 5]}))
    groups = collect(open_runs([run]))
    (recall,) = recalls(groups)
    expected = Counter()
    source = MultiQueryRecall(**task | {"num_held_out": 6})
    for number, document in enumerate(source.documents("validation")):
        for start, _, needed in document.annotation["answers"] if number in (1, 2, 3, 5) else ():
            expected[2 ** int(math.log2(start - needed))] += 1
    assert recall.counts == [expected] and expected[32] > 0
    table = recall_table("recall", groups)
    cells = dict(zip(table.heads(), (cell.text for cell in table.rows[0])))
    assert cells["32 tokens back"] == f"0.95 ({expected[32]})"
