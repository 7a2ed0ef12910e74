"""A page opens with the figures of its runs: kept and cleared, and the text that was written."""

import json

from fabricated_runs import make_run

from brt.reporting.collect import collect
from brt.reporting.figures import training_curves
from brt.reporting.runs import open_runs
from brt.reporting.sweep_tables import cards, results

RECORD = {"step": 60, "eval/bits_per_token": 2.5, "eval/cleared_bits_per_token": 2.75}


def numbers(folder):
    """The numbers of the card of a run, by their label and state."""
    ((_, (card,)),) = cards(open_runs([folder]))
    return {(label, state): n for label, pairs in card["figures"] for n, state in pairs}


def test_whole_splits_come_before_evaluations_in_training(tmp_path):
    first = make_run(tmp_path / "first", "quickstart", records=[RECORD])
    assert [*numbers(first).values()] == ["2.500", "2.750"]
    evaluation = {"step": 60, "bits_per_token": 2.25, "cleared_bits_per_token": 2.375}
    second = make_run(
        tmp_path / "second", "quickstart", evaluations={"test": evaluation}, records=[RECORD]
    )
    assert [*numbers(second).values()] == ["2.250", "2.375"]


def test_answers_count_more_than_the_loss_beside_them(tmp_path):
    figures = {"step": 1, "bits_per_token": 0.5, "recall_accuracy": 0.75}
    run = make_run(tmp_path / "recall", "quickstart", evaluations={"validation": figures})
    assert [*numbers(run).values()] == ["75.0%"]


def test_the_last_text_is_shown_with_its_prompt(tmp_path):
    run = make_run(tmp_path / "text", "quickstart")
    lines = [{"prompt": "old", "text": "er"}, {"prompt": "a <b>", "text": " & more"}]
    (run / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ((_, (card,)),) = cards(open_runs([run]))
    assert card["sample"] == ("a <b>", " & more")
    (run / "samples.jsonl").write_text('{"prompt": "cut')
    (opened,) = open_runs([run])
    assert not cards([opened]) and "samples.jsonl" in opened.problems[-1]


def test_comparable_entries_have_a_table_and_others_cards(tmp_path):
    names = ("Corpus.store = 'a'", "Corpus.store = 'a'", "Corpus.store = 'b'")
    runs = [
        make_run(tmp_path / f"run{n}", "quickstart", name, f"Trainer.steps = {n + 1}",
                 records=[RECORD])
        for n, name in enumerate(names)
    ]  # fmt: skip
    assert not results(collect(open_runs(runs[1:])), "t")
    table, _ = results(collect(open_runs(runs[:2])), "t")
    assert [row[0].text for row in table.rows] == ["run0", "run1"]


def test_runs_of_different_corpora_have_plots_of_their_own(tmp_path):
    names = ("Corpus.store = 'a'", "Corpus.store = 'a'", "Corpus.store = 'b'")
    runs = [
        make_run(tmp_path / f"run{n}", "quickstart", name, records=[RECORD])
        for n, name in enumerate(names)
    ]
    for n, run in enumerate(runs):
        with open(run / "operative_config.gin", "a") as file:
            file.write(f"Trainer.steps = {n + 1}\n")
    plots = training_curves(collect(open_runs(runs)))
    assert [len(plot.lines) for plot in plots] == [4, 2]
    assert len({plot.name for plot in plots}) == 2
    assert [len(plot.lines) for plot in training_curves(collect(open_runs(runs[:2])))] == [4]
