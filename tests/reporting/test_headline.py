"""A page opens with the figures of its runs: kept and cleared, and the text that was written."""

import json

from fabricated_runs import make_run

from brt.reporting.figures import training_curves
from brt.reporting.headline import headline_html
from brt.reporting.runs import open_runs

RECORD = {"step": 60, "eval/bits_per_token": 2.5, "eval/cleared_bits_per_token": 2.75}


def html(*folders):
    return headline_html(open_runs(folders))


def test_whole_splits_come_before_evaluations_in_training(tmp_path):
    first = make_run(tmp_path / "first", "quickstart", records=[RECORD])
    assert "2.500" in html(first) and "2.750" in html(first)
    evaluation = {"step": 60, "bits_per_token": 2.25, "cleared_bits_per_token": 2.375}
    second = make_run(
        tmp_path / "second", "quickstart", evaluations={"test": evaluation}, records=[RECORD]
    )
    assert "2.250" in html(second) and "2.375" in html(second) and "2.500" not in html(second)


def test_answers_count_more_than_the_loss_beside_them(tmp_path):
    figures = {"step": 1, "bits_per_token": 0.5, "recall_accuracy": 0.75}
    found = html(make_run(tmp_path / "recall", "quickstart", evaluations={"validation": figures}))
    assert "75.0%" in found and "0.500" not in found


def test_text_is_shown_with_its_prompt_and_escaped(tmp_path):
    run = make_run(tmp_path / "text", "quickstart")
    lines = [{"prompt": "old", "text": "er"}, {"prompt": "a <b>", "text": " & more"}]
    (run / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = html(run)
    assert "a &lt;b&gt;" in found and " &amp; more" in found and "old" not in found
    (run / "samples.jsonl").write_text('{"prompt": "cut')
    (opened,) = open_runs([run])
    assert not headline_html([opened]) and "samples.jsonl" in opened.problems[-1]


def test_many_runs_have_no_headline(tmp_path):
    runs = [make_run(tmp_path / f"run{n}", "quickstart", records=[RECORD]) for n in range(7)]
    assert html(*runs[:6]) and not html(*runs)


def test_runs_of_different_corpora_have_plots_of_their_own(tmp_path):
    names = ("Corpus.store = 'a'", "Corpus.store = 'a'", "Corpus.store = 'b'")
    runs = [
        make_run(tmp_path / f"run{n}", "quickstart", name, records=[RECORD])
        for n, name in enumerate(names)
    ]
    plots = training_curves(open_runs(runs))
    assert [len(plot.lines) for plot in plots] == [4, 2]
    assert len({plot.name for plot in plots}) == 2
    assert [len(plot.lines) for plot in training_curves(open_runs(runs[:2]))] == [4]
