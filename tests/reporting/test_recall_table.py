"""Tables and figure of answers show each memory at its chosen rate, one number a run."""

import json

import pytest
from fabricated_runs import make_run

pytest.importorskip("altair", reason='the page needs pip install -e ".[report]"')

from results_page.recall import answers_table, board_plot, distance_plot
from results_page.records import entry_of

from brt.reporting.collect import collect
from brt.reporting.runs import open_runs

DELTA = "BlockRecurrentTransformer.memories = ((@GatedDeltaMemory, (4,)),)"


def run_of(folder, bindings, rate, seed, right, study=None, carried=640):
    """A run with a share of right answers, and a study of shares by distance and by length."""
    folder = folder / f"{len(bindings)}_{rate}_{seed}_{carried}"
    run = make_run(folder, "small/map_slide+corpora/text",
                   *bindings, f"cosine.maximum = {rate}", seed=seed,
                   evaluations={"validation": {"answer_accuracy": right}})  # fmt: skip
    if study:
        names = ("distance", study), ("16 facts, by length", study)
        names += (("2 facts, by length", {x: min(1.0, 2 * share) for x, share in study.items()}),)
        series = [{"name": f"state kept, {'by ' * (name == 'distance')}{name}", "x": [*shares],
                   "y": [*shares.values()], "x_label": "", "y_label": ""}
                  for name, shares in names]  # fmt: skip
        numbers = {"carried_bytes": carried, "accuracy_cleared": 0.125}
        content = {"study": "answers", "numbers": numbers, "series": series}
        (run / "studies").mkdir()
        (run / "studies" / "answers.json").write_text(json.dumps(content))
    return run


@pytest.fixture
def entries(tmp_path):
    wide = ("BlockRecurrentTransformer.window = 32",)
    runs = [
        run_of(tmp_path, (DELTA,), 0.005, 0, 1.0, {64: 1.0, 1024: 1.0}),  # not the chosen rate
        run_of(tmp_path, (DELTA,), 0.002, 0, 0.9, {64: 0.95, 256: 0.9375, 1024: 0.5}),
        run_of(tmp_path, (DELTA,), 0.002, 1, 0.95, {64: 0.925, 256: 0.75, 1024: 0.25}),
        run_of(tmp_path, (DELTA,), 0.002, 2, 0.5),  # without a study
        run_of(tmp_path, (), 0.001, 0, 0.5, {64: 0.75, 1024: 0.125}),
        run_of(tmp_path, wide, 0.001, 0, 0.75, {64: 0.75, 1024: 0.5}, carried=1280),
    ]
    return [entry_of("mqar", group) for group in collect(open_runs(runs))]


SPEC = {
    "answers": ["mqar"],
    "title": "Recalled",
    "trained": 64,
    "best": "state kept, 16 facts, by length | 1024",
    "rates": {"mqar": {"gated delta memory": 0.002}, "other": {"gated delta memory": 0.005}},
    "columns": ["pairs = pairs at 64", "reach", "as in training",
                "far = state kept, by distance | 1024", "cleared = accuracy_cleared"],
}  # fmt: skip


def test_each_memory_and_size_has_all_runs_of_the_chosen_rate(entries):
    table = answers_table("recall", SPEC, entries, {})
    assert table.heads() == ["memory", "bytes carried", "pairs", "reach", "as in training", "far",
                             "cleared"]  # fmt: skip
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["gated delta memory", "640", "16", "256", "0.90 / 0.95 / 0.50", "0.50 / 0.25 / –",
         "0.12 / 0.12 / –"],
        ["window (Slide)", "640", "2", "0", "0.50", "0.12", "0.12"],
        ["window (Slide)", "1,280", "2", "0", "0.75", "0.50", "0.12"],
    ]  # fmt: skip
    assert answers_table("other", SPEC | {"answers": ["none"]}, entries, {}) is None


def test_memories_are_chosen_and_ordered_in_the_table(entries):
    order = ["window (Slide)", "gated delta memory"]
    spec = SPEC | {"memories": order, "first_row": ["a rule", "–", *["0.50"] * 5]}
    rows = [row[0].text for row in answers_table("recall", spec, entries, {}).rows]
    assert rows == ["a rule", "window (Slide)", "window (Slide)", "gated delta memory"]


@pytest.fixture
def board(entries):
    """Runs of two ladders, in which the window has another name; each memory of one size."""
    other = [entry._replace(ladder="other") for entry in entries]
    spec = {
        "answers": ["mqar", "other"],
        "memories": {"full attention": 1280, "window (Slide)": 640},
        "names": {"other/window (Slide)": "full attention"},
        "columns": ["near = state kept, by distance | 64", "far = state kept, by distance | 1024",
                    "time"],
    }  # fmt: skip
    return SPEC | spec, [*entries, *other]


def test_a_board_joins_ladders_with_one_size_for_each_memory(board):
    times = {("board", "full attention", ""): ("1.25", "")}
    rows = answers_table("board", *board, times).rows
    assert [[cell.text for cell in row] for row in rows] == [
        ["full attention", "1,280", "0.75", "0.50", "1.25"],
        ["window (Slide)", "640", "0.75", "0.12", "–"],
    ]


def test_the_picture_of_a_board_is_ordered_by_bytes(board):
    spec, entries = board
    spec |= {
        "columns": spec["columns"][:2],
        "memories": {"gated delta memory": 640, **spec["memories"]},
    }
    plot = board_plot("board", spec, entries)
    assert plot.rows == (
        "gated delta memory: 1\u00a0kB",
        "window (Slide): 1\u00a0kB, 1\u00a0seed",
        "full attention: 1\u00a0kB, 1\u00a0seed",
    )
    means, seeds = (line for line in plot.lines if line.name == "far")
    assert (means.x, means.y) == ([1, 2, 3], [(0.5 + 0.25 + 1.0) / 3, 0.125, 0.5])
    assert list(zip(seeds.x, seeds.y)) == [(1, 0.5), (1, 1.0), (1, 0.25), (2, 0.125), (3, 0.5)]


def test_the_figure_has_the_mean_of_the_runs_and_each_of_several(entries):
    lines = {line.label: line for line in distance_plot("recall", SPEC, entries).lines}
    mean = lines["gated delta memory, 640 bytes"]
    assert (mean.x, mean.y) == ([64, 256, 1024], [pytest.approx(0.9375), 0.84375, 0.375])
    assert lines["gated delta memory, 640 bytes, run 1"].y == [0.95, 0.9375, 0.5]
    assert len(lines) == 4 and "window (Slide), 1,280 bytes" in lines
