"""Fabricated runs land in the cells of the Transformer-XL and RMT papers that they belong in."""

import json

import pytest
from fabricated_runs import ROOT, make_run, make_task_run, make_xl_run
from sweeps import SCALES, read_sweep

from brt.reporting.collect import collect
from brt.reporting.gin_text import write_gin
from brt.reporting.page import evaluations
from brt.reporting.paper_positions import PaperPosition, paper_position
from brt.reporting.papers import recurrent_memory as rmt
from brt.reporting.papers import transformer_xl as xl
from brt.reporting.papers.all import PAPERS
from brt.reporting.papers.fill import paper_plots, paper_tables
from brt.reporting.papers.form import number
from brt.reporting.papers.recurrent_memory_plots import RECURRENT_MEMORY
from brt.reporting.papers.transformer_xl import TRANSFORMER_XL
from brt.reporting.runs import Run, open_runs

STANDARD = {"size": "151M", "memory": 150, "segment": 150, "steps": 200_000}
WIKITEXT = ('Corpus.store = "stores/wikitext103"', 'Corpus.vocabulary = "words:wikitext103.txt"')
OF_TEXT = [table for table in rmt.TABLES[1:-1] if table is not rmt.TABLE_3]
"""Tables of models of text; readers of labelled documents have tests of their own."""
RUN_ROWS = [(table, row) for table in OF_TEXT for row in table.rows if row.where]


def tables_of(paper, runs):
    return {table.name: table for table in paper_tables(paper, collect(open_runs(runs)))}


def filled(table):
    """Rows with measured cells: their labels and the texts measured, by heading."""
    heads, labels = table.heads(), sum(not column.group for column in table.columns)
    return {
        tuple(cell.text for cell in row[:labels]): {
            head: cell.text for head, cell in zip(heads, row) if cell.values
        }
        for row in table.rows
        if any(cell.values for cell in row)
    }


def run_of(folder, table, row, **scalars):
    """A run with exactly what a row of the RMT paper asks for."""
    where = row.where
    lines = ["RecurrentMemoryTransformer.memory_at_end = False"] * (where["system"] == "MemTr")
    depth = where["bptt_depth"] if "RMT" in where["system"] else None
    return make_xl_run(
        folder,
        *lines,
        size=table.where["size"],
        memory=where["memory"],
        tokens=where["memory_tokens"],
        segment=where["segment_length"],
        steps=where.get("steps", 400_000),
        depth=depth,
        evaluations={"test": scalars},
    )


# What is printed.


def test_the_tables_have_the_paper_s_rows_and_a_number_for_every_printed_column():
    assert [len(table.rows) for table in TRANSFORMER_XL.tables] == [8, 11, 11, 10, 12, 7, 4, 4]
    assert [len(table.rows) for table in RECURRENT_MEMORY.tables[:5]] == [3, 17, 9, 15, 50]
    for paper in PAPERS:
        for table in paper.tables:
            printed = sum(quantity.is_printed for quantity in table.quantities)
            for row in table.rows:
                assert len(row.labels) == len(table.labels) and len(row.printed) == printed
                assert all(number(text) for text in row.printed if text)


def test_every_rule_names_what_a_place_has():
    rules = [paper.where for paper in PAPERS]
    for table in (table for paper in PAPERS for table in paper.tables):
        rules += [table.where, *(row.where or {} for row in table.rows)]
        rules += [quantity.where for quantity in table.quantities]
        rules.append(dict.fromkeys(table.rest or ()))
    for plot in (plot for paper in PAPERS for plot in paper.plots):
        rules += [plot.rest or {}, *(curve.where for curve in plot.curves)]
    assert all(hasattr(PaperPosition, name) for rule in rules for name in rule)


def test_no_two_tables_or_figures_of_the_papers_share_a_file():
    names = [x.name for p in PAPERS for x in (*p.tables, *p.plots)]
    assert len(set(names)) == len(names)


def test_table_2_quotes_table_5_and_the_shared_rows_of_transformer_xl():
    for row in rmt.TABLE_2.rows:
        assert row in rmt.TABLE_5.rows
    by_labels = {row.labels[:3]: row.printed[0] for row in rmt.TABLE_5.rows}
    assert by_labels["Tr-XL (paper)", "150", "150"] == xl.TABLE_1.rows[6].printed[1]
    assert rmt.TABLE_4.rows[0].printed == xl.TABLE_2.rows[7].printed
    # Tables 5 and 8 print the same models' numbers in another order.
    for row in xl.TABLE_8.rows[:2]:
        (same,) = (r for r in xl.TABLE_5.rows if r.where and r.where == row.where)
        assert (same.printed[1], same.printed[0], same.printed[2]) == row.printed


def test_more_memory_and_depth_are_better_but_for_the_rows_the_caption_names():
    worse = []
    for segment in (150, 50):
        rows = {r.labels: number(r.printed[0]) for r in rmt.TABLE_5.rows if r.where}
        for labels, perplexity in rows.items():
            if labels[0].startswith("RMT BPTT-") and labels[2] == str(segment):
                depth = int(labels[0][-1])
                before = [
                    found
                    for other, found in rows.items()
                    if other[0] == f"RMT BPTT-{depth - 1}" and other[1:3] == labels[1:3]
                ]
                worse += [(labels[1], depth, segment) for b in before if perplexity > b]
    assert worse == [("25", 2, 50)]


@pytest.mark.parametrize(
    "system, numbers, expected",
    [
        ("Baseline", (50, 0, 0), 50),
        ("Tr-XL", (50, 200, 0), 250),
        ("Tr-XL", (150, 150, 0), 300),
        ("RMT", (50, 0, 4), 250),
        ("RMT", (150, 0, 0), 150),
        ("MemTr", (150, 0, 0), 150),
        ("Tr-XL + RMT", (150, 75, 3), None),
    ],
)
def test_the_visible_context_is_k_plus_one_segments_or_memory_and_segment(
    system, numbers, expected
):
    assert rmt.visible_context(system, *numbers) == expected


def test_a_transformer_xl_carries_its_cache_in_every_layer_and_an_rmt_its_memory_once():
    shown = {row.labels[:2]: row.labels[3] for row in rmt.TABLE_5.rows if row.labels[2] == "50"}
    assert shown["Tr-XL", "10"] == "160" and shown["RMT BPTT-1", "10"] == "10"
    assert shown["Baseline", "0"] == "0"
    shown = {row.labels[:2]: row.labels[3] for row in rmt.TABLE_5.rows if row.labels[2] == "150"}
    assert shown["MT", "10"] == "0" and shown["Tr-XL + RMT BPTT-3", "75+5"] == "1,205"


# What is measured.


@pytest.mark.parametrize("table, row", RUN_ROWS, ids=lambda x: "-".join(getattr(x, "labels", ())))
def test_a_run_with_a_row_s_settings_fills_that_row(tmp_path, table, row):
    run = run_of(tmp_path / "run", table, row, perplexity=26.254, bits_per_token=1.2345)
    found = filled(tables_of(RECURRENT_MEMORY, [run])[table.name])
    labels = tuple(row.labels)
    assert list(found) == [labels]
    head = f"{table.quantities[0].head}, text"
    assert found[labels][head] in ("26.25", "1.235")


SWEPT = (rmt.TABLE_1, rmt.TABLE_2, rmt.TABLE_4, rmt.TABLE_5, xl.TABLE_5, xl.TABLE_8)


@pytest.mark.parametrize(
    "table",
    [
        # The longest sweep by far.
        pytest.param(table, marks=pytest.mark.slow if table is rmt.TABLE_5 else ())
        for table in SWEPT
    ],
    ids=lambda table: table.name,
)
def test_the_entries_of_a_table_s_sweep_fill_its_rows_in_order_and_no_other_cell(tmp_path, table):
    path = ROOT / "configs/sweeps" / f"{table.name}.txt"
    entries, runs = read_sweep(path, SCALES["paper"], None, [], None), []
    for number_, entry in enumerate(entries):
        runs.append(tmp_path / entry.name)
        runs[-1].mkdir()
        (runs[-1] / "config.gin").write_text(write_gin(entry.settings))
        (runs[-1] / "stands_for.json").write_text(json.dumps(entry.paper))
        names = ("perplexity", "bits_per_token", "answer_accuracy")
        scalars = {"step": 10**9, **dict.fromkeys(names, 100.0 + number_)}
        (runs[-1] / "evaluation_test.json").write_text(json.dumps(scalars))
    paper = TRANSFORMER_XL if table.name.startswith("txl") else RECURRENT_MEMORY
    made = tables_of(paper, runs)[table.name]
    rows = [
        (data, row)
        for data, row in zip(table.rows, made.rows, strict=True)
        # Constants of other papers, and the standard model, whose rows are one study's.
        if data.where and "151M)" not in data.labels[0]
    ]
    values = [cell.values for _, row in rows for cell in row if cell.values]
    assert values == [(100.0 + number_,) for number_ in range(len(entries))]
    assert made.notes() == []  # these are the published settings
    assert len(entries) == len(rows) >= len(table.rows) - 3


def test_seeds_have_a_spread_a_worst_and_a_peak_of_memory(tmp_path):
    (row,) = (
        r for r in rmt.TABLE_5.rows if r.labels[:3] == ("RMT BPTT-3", "10", "150")
    )  # fmt: skip
    runs = []
    for seed, perplexity in enumerate((25.0, 25.1, 25.204)):
        run = run_of(tmp_path / f"{seed}", rmt.TABLE_5, row, perplexity=perplexity)
        config = (run / "config.gin").read_text() + f"Trainer.seed = {seed}\n"
        (run / "operative_config.gin").write_text(config)
        records = [{"step": 1, "perf/peak_bytes": 2**30 * (1 + seed)}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        runs.append(run)
    tables = tables_of(RECURRENT_MEMORY, runs)
    ((_, found),) = filled(tables["rmt_table_5"]).items()
    assert found["perplexity, text"] == "25.10 ± 0.11"
    assert found["peak memory, GiB, text"] == "2.00 ± 1.00"
    ((labels, found),) = filled(tables["rmt_instability"]).items()
    assert labels == ("10", "150", "3")
    assert found["deviation, text"] == "0.11" and found["worst, text"] == "25.20"
    assert found["seeds, text"] == "3"


def test_other_steps_and_longer_memory_in_evaluation_are_other_rows(tmp_path):
    sizes = {"size": "151M", "memory": 75, "segment": 150}
    scalars = {"evaluations": {"test": {"perplexity": 24.5}}}
    longer = "evaluation/TransformerXL.memory_length = 400"
    runs = [
        make_xl_run(tmp_path / "a", steps=400_000, **sizes, **scalars),
        make_xl_run(tmp_path / "b", longer, steps=200_000, **sizes, **scalars),
    ]
    found = filled(tables_of(RECURRENT_MEMORY, runs)["rmt_table_5"])
    assert [labels[0] for labels in found] == ["Tr-XL 2x steps"]
    assert paper_position(Run(runs[1])).evaluation_memory == 400


def test_gradients_cross_all_memories_of_a_step_unless_a_depth_is_bound(tmp_path):
    lines = ("Trainer.segments_per_step = 4", "Trainer.tokens_per_step = 512")
    runs = [
        make_xl_run(tmp_path / "all", *lines, tokens=5),
        make_xl_run(tmp_path / "two", *lines, "Trainer.bptt_depth = 2", tokens=5),
        make_xl_run(tmp_path / "one", tokens=5),
        make_xl_run(tmp_path / "again", tokens=5, depth=1),
    ]
    assert [paper_position(Run(run)).bptt_depth for run in runs] == [3, 2, 0, 1]
    assert [paper_position(Run(run)).visible_context for run in runs] == [512, 384, 128, 256]


def test_the_depths_of_one_unroll_fill_the_row_of_their_depth_and_are_named(tmp_path):
    sizes = {"size": "151M", "tokens": 10, "segment": 150, "steps": 200_000}
    scalars = {"evaluations": {"test": {"perplexity": 24.5}}}
    lines = (
        "Trainer.segments_per_step = 4",
        "Trainer.bptt_depth = 3",
        "Trainer.tokens_per_step = 9000",
    )
    named = {}
    for folder, given in (("unroll", {"bindings": lines}), ("again", {"depth": 3})):
        bindings = given.pop("bindings", ())
        run = make_xl_run(tmp_path / folder, *bindings, **sizes, **scalars, **given)
        table = tables_of(RECURRENT_MEMORY, [run])["rmt_table_5"]
        (labels,) = filled(table)
        assert labels[0] == "RMT BPTT-3"
        named[folder] = " ".join(table.notes())
    assert "Trainer.reread_segments = 0 for 3" in named["unroll"]
    assert "Trainer.segments_per_step = 4 for 1" in named["unroll"]
    assert not any(name in named["again"] for name in ("reread", "segments_per_step", "bptt"))


def test_a_cell_says_what_its_evaluation_was_given_besides_the_run_s_own_settings(tmp_path):
    given = ["configs/parts/longer.gin", 'Evaluation.split = "test"', "Evaluation.stride = 2"]
    scalars = {"perplexity": 24.5, "given": given}
    run = make_xl_run(
        tmp_path / "run", size="151M", memory=75, segment=150, steps=200_000,
        evaluations={"test": scalars},
    )  # fmt: skip
    (note,) = tables_of(RECURRENT_MEMORY, [run])["rmt_table_5"].notes()
    given, _, settings = note.partition("; ")
    assert given == "run: evaluated with configs/parts/longer.gin, Evaluation.stride = 2"
    assert settings.startswith("settings other than the published number's: ")
    (note,) = evaluations(open_runs([run])).notes()
    assert note == "run, test: evaluated with configs/parts/longer.gin, Evaluation.stride = 2"


@pytest.mark.parametrize("system", ["Baseline", "Tr-XL", "RMT"])
def test_quadratic_equations_fill_table_1(tmp_path, system):
    kind = {"Baseline": {}, "Tr-XL": {"memory": 30}, "RMT": {"tokens": 30}}[system]
    cut = (
        {"segments": 1, "segment": 180} if system == "Baseline" else {"segments": 6, "segment": 30}
    )
    scalars = {"answer_accuracy": 0.9876, "task_accuracy": 0.999, "accuracy": 0.9}
    evaluations = {"test": scalars}
    run = make_task_run(
        tmp_path / "r", "QuadraticEquations", length=100, **cut, **kind, evaluations=evaluations
    )
    tables = tables_of(RECURRENT_MEMORY, [run])
    ((labels, found),) = filled(tables["rmt_table_1"]).items()
    assert labels[0] == system and found == {"accuracy, measured": "0.988"}
    smaller = make_task_run(
        tmp_path / "s", "QuadraticEquations", length=30, **cut, **kind, evaluations=evaluations
    )
    tables = tables_of(RECURRENT_MEMORY, [smaller])
    ((labels, _),) = filled(tables["rmt_table_1"]).items()
    assert labels[0] == f"{system} (2 layers, d 8), quadratic 30"
    ((labels, found),) = filled(tables["rmt_tasks"]).items()
    assert labels[1:3] == ("quadratic", "30") and found["accuracy, measured"] == "0.999"


def test_task_runs_are_points_of_the_figure_with_their_memory_and_of_no_text_table(tmp_path):
    runs = []
    for name, segments, segment, kind in (
        ("base", 3, 24, {}),
        ("xl", 3, 24, {"memory": 24}),
        ("rmt", 3, 24, {"tokens": 24}),
        ("rmt6", 6, 12, {"tokens": 12}),
        ("half", 6, 12, {"tokens": 6}),
    ):
        runs.append(
            make_task_run(
                tmp_path / name, "CopyTask", segments=segments, segment=segment, **kind,
                evaluations={"test": {"task_accuracy": 0.1 * segments, "bits_per_token": 1.0}},
            )
        )  # fmt: skip
    lines = ("Corpus.source = @CopyTask()", "Trainer.segments_per_step = 3")
    evaluations = {"test": {"task_accuracy": 0.97}}
    runs.append(
        make_run(
            tmp_path / "rec", "small/rec_fixed_skip+corpora/text", *lines, evaluations=evaluations
        )
    )
    groups = collect(open_runs(runs))
    plots = {plot.name: plot for plot in paper_plots(RECURRENT_MEMORY, groups)}
    found = {line.name: (line.x, line.y) for line in plots["rmt_figure_3a"].lines}
    assert found["Baseline, measured"][0] == [3] and found["Tr-XL, measured"][0] == [3]
    assert found["RMT, measured"][0] == [3, 6]
    assert found["Rec:fixed:skip, measured"] == ([3], [0.97])
    found = {line.name: (line.x, line.y) for line in plots["rmt_figure_8a"].lines}
    assert found["RMT, measured"][0] == [6]
    others = [t for p in PAPERS[:2] for t in paper_tables(p, groups)]
    assert not any(table.has_measurements for table in others)


def test_figure_5_shows_published_and_measured_runs_where_they_see_that_far(tmp_path):
    runs = [
        make_xl_run(tmp_path / name, size="151M", segment=50, steps=200_000, **kind,
                    evaluations={"test": {"perplexity": perplexity}})
        for name, kind, perplexity in (
            ("a", {"memory": 100}, 25.5),
            ("b", {"tokens": 10, "depth": 1}, 28.0),
            ("c", {"tokens": 10, "depth": 3}, 26.0),
        )
    ]  # fmt: skip
    groups = collect(open_runs(runs))
    plots = {plot.name: plot for plot in paper_plots(RECURRENT_MEMORY, groups)}
    a = {line.name: line for line in plots["rmt_figure_5a"].lines}
    assert (a["RMT, m = 10, text"].x, a["RMT, m = 10, text"].y) == ([100, 200], [28.0, 26.0])
    assert a["RMT, m = 10, text"].sizes == [10, 10] and a["Tr-XL, text"].x == [150]
    assert a["Tr-XL, text"].sizes == [100]
    assert a["RMT, m = 10, paper"].x == [50, 100, 150, 200, 250]
    assert a["Tr-XL, paper"].x == [51, 55, 60, 75, 100, 150, 250]
    b = {line.name: line for line in plots["rmt_figure_5b"].lines}
    assert b["RMT BPTT-3, text"].x == [10] and b["RMT BPTT-4, paper"].x == [5, 10]


def test_transformer_xl_fills_its_tables_and_its_parameters_are_counted(tmp_path):
    evaluations = {"validation": {"perplexity": 23.5}, "test": {"perplexity": 24.25}}
    run = make_xl_run(tmp_path / "standard", *WIKITEXT, **STANDARD, evaluations=evaluations)
    tables = tables_of(TRANSFORMER_XL, [run])
    ((labels, found),) = filled(tables["txl_table_1"]).items()
    assert labels[0] == "Transformer-XL Standard"
    assert found["validation, measured"] == "23.50" and found["test, measured"] == "24.25"
    # Penn Treebank's dimensions are not published: any model of it fills its row, with a note.
    lines = ('Corpus.store = "stores/penn_treebank"', 'Corpus.vocabulary = "words:ptb.txt"')
    run = make_xl_run(tmp_path / "ptb", *lines, memory=64, evaluations=evaluations)
    tables = tables_of(TRANSFORMER_XL, [run])
    ((labels, found),) = filled(tables["txl_table_3"]).items()
    # Matrices, network, norms and their biases of two layers; u and v; words and BEGIN.
    layer = 5 * 8 * 8 + (8 * 12 + 12 + 12 * 8 + 8) + 4 * 8
    count = 2 * layer + 16 + 257 * 8 + 256
    assert labels[0] == "Transformer-XL"
    assert found["parameters, M, measured"] == f"{count / 1e6:.1f}"
    (group,) = collect(open_runs([run]))
    assert group.all_parameters * 1e6 == pytest.approx(count, abs=300)


def test_studies_fill_the_tables_of_context_and_attention_lengths(tmp_path):
    scalars = {"perplexity": 20.0, "given": ["Evaluation.stride = 2"]}  # of the evaluation alone
    evaluations = {split: scalars for split in ("validation", "test")}
    run = make_xl_run(tmp_path / "xl", **STANDARD, evaluations=evaluations)
    other = make_run(tmp_path / "lstm", None, *make_lstm())
    (run / "studies").mkdir()
    rows = [
        {"run": str(folder), "r0.1": 10 * n, "r0.5": 20 * n, "r1.0": 30 * n}
        for n, folder in enumerate((run, other), 1)
    ]
    study = {"study": "recl", "numbers": {}, "series": [], "table": rows, "verdict": "."}
    (run / "studies" / "recl.json").write_text(json.dumps(study))
    table = tables_of(TRANSFORMER_XL, [run, other])["txl_table_6"]
    found = filled(table)
    assert not any("evaluated with" in note for note in table.notes())
    assert [*found["Transformer-XL 151M",].values()] == ["10", "20", "30"]
    assert [*found["LSTM",].values()] == ["20", "40", "60"]


def test_a_memory_that_is_longer_in_evaluation_is_not_the_initial_length_of_table_5(tmp_path):
    longer = "evaluation/TransformerXL.memory_length = 640"
    found = []
    for name, lines in (("as_trained", ()), ("longer", (longer,))):
        evaluations = {"validation": {"perplexity": 22.0}}
        run = make_xl_run(tmp_path / name, *lines, **STANDARD, evaluations=evaluations)
        found.append(filled(tables_of(TRANSFORMER_XL, [run])["txl_table_5"]))
    as_trained, longer = found
    assert [*as_trained.values()] == [{"initial, text": "22.00"}] and not longer


def make_lstm():
    return (
        "Trainer.model = @LSTM",
        "LSTM.num_layers = 2",
        "Trainer.segment_length = 16",
        "Trainer.steps = 10",
    )


def test_a_config_that_no_longer_builds_is_told_and_not_counted(tmp_path):
    run = make_xl_run(
        tmp_path / "run", *WIKITEXT, "TransformerXL.no_such = 1", **STANDARD,
        evaluations={"test": {"perplexity": 24.0}},
    )  # fmt: skip
    (opened,) = open_runs([run])
    (group,) = collect([opened])
    table = next(t for t in paper_tables(TRANSFORMER_XL, [group]) if t.name == "txl_table_1")
    ((_, found),) = filled(table).items()
    assert "parameters, M, measured" not in found and found["test, measured"] == "24.00"
    assert any("cannot be built" in problem for problem in opened.problems)
