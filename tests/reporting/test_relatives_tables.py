"""Fabricated runs land in the cells of the Transformer-XL and RMT papers that they belong in."""

import json

import pytest
from fabricated_runs import (
    PUBLISHED,
    filled_cells,
    make_run,
    make_task_run,
    make_xl_run,
    tables_of,
)
from gin_settings import bound

from brt.reporting.collect import collect
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.fill import paper_plots, paper_tables
from brt.reporting.papers.published_tables import PAPERS
from brt.reporting.run_tables import evaluations
from brt.reporting.runs import Run, open_runs

STANDARD = {"size": "151M", "memory": 150, "segment": 150, "steps": 200_000}
WIKITEXT = ('Corpus.store = "stores/wikitext103"', 'Corpus.vocabulary = "words:wikitext103.txt"')
TRANSFORMER_XL, RECURRENT_MEMORY = PAPERS[1:3]
TABLE_5 = RECURRENT_MEMORY.table("rmt_table_5")


def filled(table):
    """Texts of measured cells, by the labels of their row and their heading."""
    return {row: {head: cell.text for head, cell in cells.items()}
            for row, cells in filled_cells(table).items()}  # fmt: skip


# Measured cells.


def test_seeds_have_a_spread_a_worst_and_a_peak_of_memory(tmp_path):
    (row,) = (r for r in TABLE_5.rows if r.labels[:3] == ["RMT BPTT-3", "10", "150"])
    names = ("memory", "memory_tokens", "segment_length", "steps", "bptt_depth")
    memory, tokens, segment, steps, depth = (int(row.where[name]) for name in names)
    sizes = dict(size=TABLE_5.where["size"], memory=memory, tokens=tokens, segment=segment)
    runs = [
        make_xl_run(
            tmp_path / f"{seed}", **sizes, steps=steps, depth=depth, seed=seed,
            evaluations={"test": {"perplexity": perplexity}},
            records=[{"step": 1, "perf/peak_bytes": 2**30 * (1 + seed)}],
        )
        for seed, perplexity in enumerate((25.0, 25.1, 25.204))
    ]  # fmt: skip
    tables = tables_of(RECURRENT_MEMORY, runs)
    ((_, found),) = filled(tables["rmt_table_5"]).items()
    assert found["perplexity, text"] == "25.10 ± 0.11"
    assert found["peak memory, GiB, text"] == "2.00 ± 1.00"
    ((labels, found),) = filled(tables["rmt_instability"]).items()
    assert labels == ("10", "150", "3")
    assert found["deviation, text"] == "0.11" and found["worst, text"] == "25.20"
    assert found["seeds, text"] == "3"


def test_gradients_cross_all_memories_unless_depth_is_bound(tmp_path):
    lines = ("Trainer.segments_per_step = 4", "Trainer.tokens_per_step = 512")
    runs = [
        make_xl_run(tmp_path / "all", *lines, tokens=5),
        make_xl_run(tmp_path / "two", *lines, "Trainer.bptt_depth = 2", tokens=5),
        make_xl_run(tmp_path / "one", tokens=5),
        make_xl_run(tmp_path / "again", tokens=5, depth=1),
    ]
    assert [paper_position(Run(run)).bptt_depth for run in runs] == [3, 2, 0, 1]
    assert [paper_position(Run(run)).visible_context for run in runs] == [512, 384, 128, 256]


def test_a_cell_names_evaluation_settings_unlike_the_runs(tmp_path):
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


def test_task_runs_are_points_of_the_figure_and_of_no_table(tmp_path):
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
    plots = paper_plots(RECURRENT_MEMORY, groups)
    found = {line.name: (line.x, line.y) for line in plots["rmt_figure_3a"].lines}
    assert found["Baseline, measured"][0] == [3] and found["Tr-XL, measured"][0] == [3]
    assert found["RMT, measured"][0] == [3, 6]
    assert found["Rec:fixed:skip, measured"] == ([3], [0.97])
    found = {line.name: (line.x, line.y) for line in plots["rmt_figure_8a"].lines}
    assert found["RMT, measured"][0] == [6]
    others = [t for p in PAPERS[:2] for t in paper_tables(p, groups).values()]
    assert not any(table.has_measurements for table in others)


def xl_parameters(layers, width, heads, head_size, inner):
    """Of matrices, network, norms and their biases; of u and v; of words and BEGIN."""
    heads = heads * head_size
    layer = 5 * width * heads + (width * inner + inner + inner * width + width) + 4 * width
    return layers * layer + 2 * heads + 257 * width + 256


def test_transformer_xl_fills_its_tables_with_counts(tmp_path):
    evaluations = {"validation": {"perplexity": 23.5}, "test": {"perplexity": 24.25}}
    run = make_xl_run(tmp_path / "standard", *WIKITEXT, **STANDARD, evaluations=evaluations)
    tables = tables_of(TRANSFORMER_XL, [run])
    ((labels, found),) = filled(tables["txl_table_1"]).items()
    assert labels[0] == "Transformer-XL Standard"
    assert found["validation, measured"] == "23.50" and found["test, measured"] == "24.25"
    standard = xl_parameters(*PUBLISHED["151M"])
    assert found["parameters, M, measured"] == f"{standard / 1e6:.1f}"
    # Penn Treebank's dimensions are not published: any model of it fills its row, with a note.
    lines = ('Corpus.store = "stores/penn_treebank"', 'Corpus.vocabulary = "words:ptb.txt"')
    run = make_xl_run(tmp_path / "ptb", *lines, memory=64, evaluations=evaluations)
    tables = tables_of(TRANSFORMER_XL, [run])
    ((labels, found),) = filled(tables["txl_table_3"]).items()
    assert labels[0] == "Transformer-XL" and found["parameters, M, measured"] == "0.0"
    (group,) = collect(open_runs([run]))
    assert group.at("all_parameters") * 1e6 == pytest.approx(xl_parameters(*PUBLISHED[None]))


def test_studies_fill_the_tables_of_context_and_attention(tmp_path):
    scalars = {"perplexity": 20.0, "given": ["Evaluation.stride = 2"]}  # of the evaluation alone
    evaluations = {split: scalars for split in ("validation", "test")}
    run = make_xl_run(tmp_path / "xl", **STANDARD, evaluations=evaluations)
    lstm = "LSTM.num_layers = 2", *bound("Trainer", model="@LSTM", segment_length=16, steps=10)
    other = make_run(tmp_path / "lstm", None, *lstm)
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


def test_a_config_that_no_longer_builds_is_told_and_not_counted(tmp_path):
    run = make_xl_run(
        tmp_path / "run", *WIKITEXT, "TransformerXL.no_such = 1", **STANDARD,
        evaluations={"test": {"perplexity": 24.0}},
    )  # fmt: skip
    (opened,) = open_runs([run])
    (group,) = collect([opened])
    ((_, found),) = filled(paper_tables(TRANSFORMER_XL, [group])["txl_table_1"]).items()
    assert "parameters, M, measured" not in found and found["test, measured"] == "24.00"
    assert any("cannot be built" in problem for problem in opened.problems)
