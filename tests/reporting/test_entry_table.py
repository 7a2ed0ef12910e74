"""A page opens with the numbers of its entries, and the text that runs generated."""

import json

from fabricated_runs import make_run

from brt.reporting.collect import collect
from brt.reporting.figures import training_curves
from brt.reporting.runs import open_runs
from brt.reporting.sweep_tables import generated, results

RECORD = {"step": 60, "eval/bits_per_token": 2.5, "eval/cleared_bits_per_token": 2.75}


def numbers(*folders):
    """The numbers in the rows of the table, by their heads, and the figures after the table."""
    table, *plots = results(collect(open_runs(folders)), "t")
    rows = [dict(zip(table.heads(), (cell.text for cell in row))) for row in table.rows]
    return rows, plots


def test_whole_splits_come_before_evaluations_in_training(tmp_path):
    run = make_run(tmp_path / "first", "quickstart", records=[RECORD])
    (row,), _ = numbers(run)
    assert (row["bits per token"], row["state cleared"]) == ("2.500", "2.750")
    evaluation = {"step": 60, "bits_per_token": 2.25, "cleared_bits_per_token": 2.375}
    run = make_run(
        tmp_path / "second", "quickstart", evaluations={"test": evaluation}, records=[RECORD]
    )
    (row,), _ = numbers(run)
    assert (row["bits per token"], row["state cleared"]) == ("2.250", "2.375")


def test_recall_and_text_are_rows_without_a_figure(tmp_path):
    recall = {"step": 1, "recall_accuracy": 0.75, "cleared_recall_accuracy": 0.0625}
    runs = []
    for steps, (name, scores) in enumerate((("recall", recall), ("text", {"bits_per_token": 2.5}))):
        bindings = f"Corpus.store = '{name}'", f"Trainer.steps = {steps + 1}"
        evaluations = {"test": scores}
        runs.append(make_run(tmp_path / name, "quickstart", *bindings, evaluations=evaluations))
    (first, second), plots = numbers(*runs)
    assert (first["recall"], first["recall, state cleared"]) == ("0.750", "0.063")
    assert (second["bits per token"], second["text"]) == ("2.500", "text") and not plots


def test_entries_of_one_corpus_have_a_figure(tmp_path):
    runs = [
        make_run(tmp_path / f"run{n}", "quickstart", f"Trainer.steps = {n + 1}", records=[RECORD])
        for n in range(2)
    ]
    rows, plots = numbers(*runs)
    assert [row["entry"] for row in rows] == ["run0", "run1"] and len(plots) == 1


def test_the_last_text_is_shown_with_its_prompt(tmp_path):
    run = make_run(tmp_path / "text", "quickstart")
    lines = [{"prompt": "old", "text": "er"}, {"prompt": "a <b>", "text": " & more"}]
    (run / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ((_, (text,)),) = generated(open_runs([run]))
    assert text["parts"] == [("a <b>", "quiet"), (" & more", "")]
    (run / "samples.jsonl").write_text('{"prompt": "cut')
    (opened,) = open_runs([run])
    assert not generated([opened]) and "samples.jsonl" in opened.problems[-1]


def test_runs_of_different_corpora_have_plots_of_their_own(tmp_path):
    runs = []
    for n, store in enumerate("aab"):
        bindings = f"Corpus.store = '{store}'", f"Trainer.steps = {n + 1}"
        runs.append(make_run(tmp_path / f"run{n}", "quickstart", *bindings, records=[RECORD]))
    plots = training_curves(collect(open_runs(runs)))
    assert [len(plot.lines) for plot in plots] == [4, 2]
    assert len({plot.name for plot in plots}) == 2
    assert [len(plot.lines) for plot in training_curves(collect(open_runs(runs[:2])))] == [4]
