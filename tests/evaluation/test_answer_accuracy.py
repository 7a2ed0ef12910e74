"""Scores, studies and maps of answers, against loops over the annotations."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from plain_reading import scalars_of
from random_runs import random_run
from tiny_run import PLAIN, TXL, build, one_device, write_config

from brt.data.corpus import Corpus
from brt.data.mixture import MixedStore
from brt.data.tasks.answers import Answer, Answers
from brt.data.tasks.ruler import VariableTracking
from brt.evaluation.answer_accuracy import AnswerScore, answers_of_store
from brt.evaluation.evaluator import Evaluator
from brt.reporting.drawing.heat_map import study_maps
from brt.reporting.run_files import read_study
from brt.studies.answers import AnswerAccuracy, accuracies, scores_of
from brt.studies.output import table, write_study
from brt.studies.study import run_study


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    task = VariableTracking(num_held_out=5, lengths=(300, 500), num_hops=2)
    corpus = Corpus(str(tmp_path_factory.mktemp("vt")), task)
    corpus.prepare("validation", quiet=True)
    return corpus.open("validation")


def evaluated(store, *arguments, **options):
    return scalars_of(AnswerScore(), store, *arguments, **options)


@pytest.mark.parametrize(
    "rows, length, stride", [(1, 7, None), (2, 4, None), (3, 600, None), (2, 16, 3)]
)
def test_an_answer_is_right_if_all_its_tokens_are(store, rows, length, stride):
    answers = {
        (number, answer.start, answer.stop)
        for number, document in enumerate(answers_of_store(store))
        for answer in document.answers
    }
    assert evaluated(store, rows, length, lambda d, t: True, stride=stride) == {
        "answer_accuracy": 1.0,
        "answers": len(answers),
    }

    def some(document, position):
        return (document * 31 + position) % 9 > 0

    share = np.mean([all(some(d, t) for t in range(*span)) for d, *span in answers])
    assert 0 < share < 1
    scalars = evaluated(store, rows, length, some, stride=stride)
    assert scalars["answer_accuracy"] == pytest.approx(share)

    def answered(document, position):  # wrong about all else
        return any(d == document and a <= position < b for d, a, b in answers)

    assert evaluated(store, rows, length, answered, stride=stride)["answer_accuracy"] == 1.0


def test_a_mixture_has_the_answers_of_its_stores(store):
    alone = evaluated(store, 2, 16, lambda d, t: t % 5 > 0)
    mixed = evaluated(MixedStore([store, store], [0.5, 0.5]), 2, 16, lambda d, t: t % 5 > 0)
    assert mixed == {**alone, "answers": 2 * alone["answers"]}


def test_answers_that_are_not_read_to_their_end_do_not_count(store):
    spans = [(a.start, a.stop) for document in answers_of_store(store) for a in document.answers]
    length = max(spans)[0] + 1
    read = sum(stop <= length for _, stop in spans)
    found = evaluated(store, store.num_documents, length, lambda d, t: True, steps=1)
    assert found == {"answer_accuracy": 1.0, "answers": read} and 0 < read < len(spans)
    assert evaluated(store, 1, 20, lambda d, t: True, steps=1) == {}


MQAR = (
    *("Corpus.source = @MultiQueryRecall()", "MultiQueryRecall.num_documents = 8"),
    *("MultiQueryRecall.num_held_out = 12", "MultiQueryRecall.lengths = (32, 64)"),
    *("MultiQueryRecall.num_pairs = (2, 4)", "MultiQueryRecall.vocabulary_size = 16"),
)


def test_texts_without_answers_are_refused_before_training(tmp_path):
    lines = "Trainer.eval_every = 3", "Evaluation.score = @AnswerScore()"
    experiment = build(write_config(tmp_path, *PLAIN, *lines)).experiment
    with pytest.raises(ValueError, match="documents without answers"):
        Evaluator.in_loop(experiment, one_device())


@contextlib.contextmanager
def studied(folder, *lines):
    """The study of an untrained model on a task, by run and content."""
    with random_run(folder, *lines) as run:
        yield run, run_study(AnswerAccuracy(), run)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    lines = *MQAR, "BlockRecurrentTransformer.vocabulary_size = 16"
    with studied(tmp_path_factory.mktemp("mqar"), *lines) as result:
        yield result


def test_the_loss_on_text_leaves_out_answers(measured, tmp_path):
    lines = (
        *("Corpus.source = @VariableTracking()", "VariableTracking.num_documents = 2"),
        *("VariableTracking.num_held_out = 3", "VariableTracking.lengths = (300,)"),
        *("VariableTracking.num_hops = 2", "VariableTracking.text_weight = 0.1"),
    )
    with studied(tmp_path, *lines) as (run, content):
        recording, bits, count = run.recording("kept"), 0.0, 0
        for number, document in enumerate(answers_of_store(run.store)):
            answered = {at for a in document.answers for at in range(a.start, a.stop)}
            for at, nats in enumerate(recording.document(number).nats_T):
                if at not in answered:
                    bits, count = bits + nats / np.log(2), count + 1
    assert content["numbers"]["text_bits_per_token"] == pytest.approx(bits / count)
    assert "text_bits_per_token" not in measured[1]["numbers"]  # all text has weight 0


def test_carried_bytes_are_those_of_the_evaluated_model(tmp_path):
    lines = (
        *(*MQAR, *TXL, "TransformerXL.vocabulary_size = 16"),
        "Evaluation.model = @evaluation/TransformerXL",
        "evaluation/TransformerXL.memory_length = 48",
    )
    with random_run(tmp_path, *lines) as run:
        found = run_study(AnswerAccuracy(), run)["numbers"]["carried_bytes"]
    assert found == 4 * (48 * 16 + 1)  # width 16; a count of remembered tokens


def test_shares_of_the_study_are_those_of_its_recordings(measured):
    run, content = measured
    answers = answers_of_store(run.store)
    for state in ("kept", "cleared", "swapped"):
        recording, right, by_cell = run.recording(state), [], {}
        for number, document in enumerate(answers):
            for answer in document.answers:
                hit = bool(recording.document(number).correct_T[answer.start])
                right.append(hit)
                by_cell.setdefault((document.facts, document.length), []).append(hit)
        assert content["numbers"][f"accuracy_{state}"] == pytest.approx(np.mean(right))
        found = content["arrays"][f"{state}_facts_length"]
        expected = [[np.mean(by_cell[facts, length]) for length in (32, 64)] for facts in (2, 4)]
        assert np.allclose(found, expected)
        (drawn,) = [each for each in content["maps"] if each["array"] == f"{state}_facts_length"]
        sizes = [len(hits) for hits in by_cell.values()]
        assert [int(n) for n in re.findall(r"\d+", drawn["caption"])] == [min(sizes), max(sizes)]
        if state == "kept":
            curves = {series["name"]: series["y"] for series in content["series"]}
            for facts, row in zip((2, 4), expected):
                assert np.allclose(curves[f"state kept, {facts} facts, by length"], row)
    assert content["numbers"]["answers"] == len(right) == 12 * 3
    names = {series["name"] for series in content["series"]}
    assert {"state kept, by length", "state swapped, by facts"} <= names
    assert "answers" in table(content)
    floats = 2 * 8 * (2 * 4) + 5 * 16  # a layer's keys and values of 8 tokens, and 5 states
    assert content["numbers"]["carried_bytes"] == 4 * floats


def test_an_oracle_is_right_at_every_length_and_depth(measured):
    run, _ = measured
    scored = []
    for number, document in enumerate(answers_of_store(run.store)):
        every = np.ones(run.store.lengths_D[number], bool)
        scored += scores_of(document, {"kept": every, "cleared": ~every})
    content = accuracies(scored)
    assert content["numbers"]["accuracy_kept"] == 1 and content["numbers"]["accuracy_cleared"] == 0
    for name, values in content["arrays"].items():
        assert set(values.ravel().tolist()) - {-1.0} == {float(name.startswith("kept"))}


def test_the_best_rule_that_reads_no_question_is_reported():
    scored = []
    for rank in (0, 2, 1, 2, 2):
        document = Answers(12, 4, [Answer(5, 7, 0, rank)])
        scored += scores_of(document, {"kept": np.ones(12, bool)})
    numbers = accuracies(scored)["numbers"]
    assert (numbers["rule_accuracy"], numbers["rule_rank"]) == (0.6, 2)


def test_a_study_replaces_an_earlier_one_of_its_name(measured, tmp_path):
    _, content = measured
    for step in (1, 2):
        write_study(content | {"run": str(tmp_path), "step": step})
    assert {path.name for path in tmp_path.glob("studies/*")} == {"answers.json", "answers.npz"}
    assert read_study(tmp_path / "studies" / "answers.json")["step"] == 2


def test_runs_of_one_name_are_compared_in_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "rec").mkdir(parents=True)
    content = {"study": "compare", "run": "runs/rec"}
    for other in ("runs/base", "./runs/base", "first/base", "second/base", tmp_path / "base"):
        write_study(content | {"other": str(other)})
    studies = {path.stem: read_study(path)["other"] for path in tmp_path.glob("runs/rec/studies/*")}
    assert studies == {
        "compare-base": "./runs/base",
        f"compare-{tmp_path.name}-base": str(tmp_path / "base"),
        "compare-first-base": "first/base",
        "compare-second-base": "second/base",
    }


def test_maps_have_the_values_of_their_rows_and_columns(measured, tmp_path):
    _, content = measured
    study = read_study(Path(write_study({**content, "run": str(tmp_path)})))
    assert study["study"] == "answers"

    class Shown:
        name, folder, studies, problems = "run", tmp_path, {"answers": study}, []

    maps = {each.title: each for each in study_maps(Shown, "answers")}
    assert not Shown.problems
    drawn = maps["Answers by facts and distance, state kept"]
    assert drawn.y_values == [2, 4] and all(x & (x - 1) == 0 for x in drawn.x_values)
    lines = [line.split(",") for line in drawn.as_csv().split("\n")]
    assert [float(x) for x in lines[0][-len(drawn.x_values) :]] == drawn.x_values
    assert "" in maps["Answers by length and depth, state kept"].as_csv().split("\n")[1].split(",")
    study["maps"][0]["x_values"] = [1.0]
    assert study_maps(Shown, "answers") == [] and "no value for each" in Shown.problems[0]
