"""Fabricated runs land in the cells of the paper's tables that they belong in."""

import csv
import io
import re

import pytest
from fabricated_runs import filled_cells, make_run, tables_of

from brt.reporting.collect import collect
from brt.reporting.page import page
from brt.reporting.papers.fill import paper_plots
from brt.reporting.papers.published_tables import read_paper
from brt.reporting.runs import open_runs

BYTES = ("corpora/pg19_bytes.gin",)
PAPER = read_paper("block_recurrent")
SYSTEMS = {row.labels[0] for row in PAPER.table("table_1").rows}


def measured_of(table, row, head):
    """Cells of a column, of the rows whose label begins so."""
    at = table.heads().index(head)
    return [cells[at] for cells in table.rows if cells[0].text.startswith(row)]


def test_rows_of_ones_own_are_labelled_by_what_sets_them_apart(tmp_path):
    states = [f"RecurrentCell.num_states = {number}" for number in (16, 4)]
    biases, dual = 'RecurrentCell.gate_biases = "zero"', 'RecurrentCell.arrangement = "dual"'
    files = "small/rec_fixed_skip+corpora/text"
    for seed in (0, 1):
        for number, change in enumerate((*states, biases, dual)):
            folder = tmp_path / f"{number}-{seed}"
            make_run(folder, files, change, seed=seed, evaluations={"test": 2.5})
    table = tables_of(PAPER, sorted(tmp_path.iterdir()))["table_1"]
    labels = [cells[0].text for cells in table.rows if cells[0].text not in SYSTEMS]
    assert len(set(labels)) == len(labels) == 4
    kind = "Rec:fixed:skip (4 layers, d 128)"
    assert labels[:2] == [f"{kind}, {change}" for change in states]
    assert "gate_biases" in labels[2] and labels[3] == "Rec:fixed:dual (4 layers, d 128)"


@pytest.mark.parametrize("name", ["Slide:12L", "Rec:fixed:skip"])
def test_the_config_of_a_system_fills_its_own_row_of_table_1(tmp_path, name):
    stem = name.lower().replace(":", "_")
    runs = [
        make_run(tmp_path / "tokens", f"pg19_{stem}", evaluations={"test": 2.51}),
        make_run(tmp_path / "bytes", f"pg19_{stem}", files=BYTES, evaluations={"test": 0.952}),
        make_run(tmp_path / "arxiv", f"systems/{stem}+recipes/arxiv", evaluations={"test": 1.23}),
        make_run(
            tmp_path / "github", f"systems/{stem}+recipes/github", evaluations={"validation": 1.17}
        ),
    ]
    table = tables_of(PAPER, runs, {name: (1.234, "")})["table_1"]
    assert len(table.rows) == 14
    ((labels, cells),) = filled_cells(table).items()
    assert labels[0] == name and {head: cell.text for head, cell in cells.items()} == {
        "step time, measured": "1.23",
        "PG19 tokens, measured": "2.51",
        "PG19 bytes, measured": "0.952",
        "arXiv, measured": "1.23",
        "GitHub, measured": "1.17",
    }
    assert table.notes() == []  # these are the published settings


def test_unfinished_and_unevaluated_runs_say_so(tmp_path):
    early = {"bits_per_token": 3.6, "step": 100}
    runs = [
        make_run(tmp_path / "early", "pg19_slide_12l", evaluations={"test": early}),
        make_run(tmp_path / "none", "pg19_slide_13l"),
    ]
    table = tables_of(PAPER, runs)["table_1"]
    (cell,) = measured_of(table, "Slide:12L", "PG19 tokens, measured")
    assert cell.note == "early: evaluated at step 100 of 500,000"
    (cell,) = measured_of(table, "Slide:13L", "PG19 tokens, measured")
    assert cell.text == "not evaluated"
    assert "[1] early: evaluated" in table.as_markdown()


def test_every_form_of_a_table_shows_the_same_cells(tmp_path):
    values = (3.52, 3.53)
    runs = [
        make_run(tmp_path / f"seed{s}", "pg19_rec_fixed_skip", seed=s, evaluations={"test": v})
        for s, v in enumerate(values)
    ]
    table = tables_of(PAPER, runs)["table_1"]
    shown = [[cell.text for cell in row] for row in table.rows]
    lines = [line for line in table.as_markdown().split("\n") if line.startswith("| ")]
    assert len({len(line) for line in lines}) == 1  # aligned, for a terminal
    in_markdown = [[text.strip() for text in line[2:-2].split(" | ")] for line in lines]
    assert in_markdown[2:] == shown
    rows = list(csv.DictReader(io.StringIO(table.as_csv())))
    (row,) = (row for row in rows if row["model"] == "Rec:fixed:skip")
    assert row["PG19 tokens, measured"] == "3.53 ± 0.01"
    assert row["PG19 tokens, measured, every seed"] == "3.52 3.53"
    pytest.importorskip("altair")
    html = page("", [("", "", [("table", table)])], [], []).partition("<script")[0]
    in_html = re.findall(r"<td[^>]*>([^<]*)<", html)
    assert in_html == [text for row in shown for text in row]


def test_points_of_the_scaling_figure_are_at_their_parameters(tmp_path):
    runs = [
        make_run(tmp_path / kind, f"pg19_size_40m_{kind}", evaluations={"test": bits})
        for kind, bits in (("rec", 3.9), ("xl", 4.0))
    ]
    plots = paper_plots(PAPER, collect(open_runs(runs)))
    found = {line.name: (line.x, line.y) for line in plots["figure_3"].lines}
    for name, millions, bits in (("Rec:fixed:skip", 40.4, 3.9), ("XL:512:13-layer", 40.9, 4.0)):
        ((x,), y) = found[f"{name}, PG19 SPM"]
        assert x == pytest.approx(millions, abs=0.1) and y == [bits]


def test_the_differences_are_those_of_the_measured_cells(tmp_path):
    runs = [
        make_run(tmp_path / "rec", "pg19_rec_fixed_skip", evaluations={"test": 2.5}),
        make_run(tmp_path / "slide", "pg19_slide_13l", evaluations={"test": 2.625}),
    ]
    table = tables_of(PAPER, runs)["table_1_differences"]
    (cell,) = measured_of(table, "Recurrence, or one more layer?", "PG19 tokens, measured")
    assert cell.values == (-0.125,) and cell.text == "−0.125"


def test_shares_of_used_states_stand_with_their_initial_gates(tmp_path):
    lines = ('RecurrentCell.gate = "lstm"', 'RecurrentCell.gate_biases = "one"')
    runs = [
        make_run(
            tmp_path / f"{begin}{seed}",
            "task_models/recall_rec_fixed_skip+tasks/recall",
            *lines[: 1 + (begin == "one")],
            seed=seed,
            evaluations={"validation": {"bits_per_token": 1, "loss": loss, "cleared_loss": 1.0}},
        )
        for begin, losses in (("small", (0.5, 0.9)), ("one", (0.5, 0.995, 1.0, 0.999)))
        for seed, loss in enumerate(losses)
    ]
    table = tables_of(PAPER, runs)["gate_biases"]
    shares = {tuple(cell.text for cell in row[:2]): row[2] for row in table.rows}
    assert shares["lstm", "N(0, 0.1²), ±1 outside"].values == (1, 1)
    assert shares["lstm", "keep 1, take 0"].values == (1, 0, 0, 0)
    assert shares["lstm", "keep 1, take 0"].text.startswith("0.25")
    assert shares["lstm", "0"].text == shares["fixed", "0"].text == "not run"
    # Such runs are no seeds of Table 1's system.
    of_table_1 = [make_run(tmp_path / "t1", "pg19_rec_fixed_skip", evaluations={"test": 3.5})]
    of_table_1.append(
        make_run(tmp_path / "t2", "pg19_rec_fixed_skip", lines[1], evaluations={"test": 3.9})
    )
    (cell,) = measured_of(
        tables_of(PAPER, of_table_1)["table_1"], "Rec:fixed:skip", "PG19 tokens, measured"
    )[:1]
    assert cell.values == (3.5,)
