"""An evaluation of labelled documents: figures of classes, words and spans, and the loss."""

import json

import jax
import numpy as np
import pytest
from gin_settings import bound
from stores import Ids
from tiny_reader import SummingReader
from tiny_run import build, command, one_device, records, train_here, write_config

from brt import evaluate
from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.labelled import LabelledDocuments, LabelledSegments
from brt.data.token_scores import TokenScores
from brt.data.vocabularies.base import Frame
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.labels.scores import label_score

LINES = (
    *bound("Trainer", model="@SummingReader", stream="labelled", labelled="@LabelledDocuments()"),
    *bound("Trainer", steps=40, segment_length=6, segments_per_step=3, tokens_per_step=144),
    *bound("Trainer", log_every=20, eval_every=40),
    *bound("Corpus", source="@LabelledTexts()"),
    *bound("LabelledTexts", vocabulary="bytes", classes=("calm", "loud", "odd")),
    *bound("LabelledDocuments", alignment="right"),
    *bound("SummingReader", vocabulary_size=256, classes=3),
    *bound("rsqrt", multiplier=0.5, warmup_steps=1),
)
OTHER = [f"LSTM.{n} = 8" for n in ("vocabulary_size", "width", "num_layers", "hidden_size")]
FEW_WORDS = [
    *bound("Trainer", model="@PretrainedReader"),
    *bound("PretrainedReader", body="@T5", targets="words", words=2),
    *bound("T5", vocabulary_size=256, num_layers=1, width=4, num_heads=1),
    *bound("T5", head_size=4, feed_forward_size=4),
    *bound("LabelledDocuments", targets="words"),
]
MARKS = {"calm": "a", "loud": "!", "odd": "?"}


def write(folder):
    """Writes texts whose first character determines the class, and returns a config for them."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 90), ("validation", 41), ("test", 5)):
        lines = []
        for _ in range(count):
            label = str(draw.choice(list(MARKS)))
            # Cut at 18: text behind that is not read.
            text = MARKS[label] + "." * int(draw.integers(0, 22))
            lines.append({"text": text, "label": label})
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    texts = f'LabelledTexts.path = "{folder}/{{split}}.jsonl"'
    return write_config(folder, *LINES, texts)


@pytest.fixture(scope="module")
def trained(folder):
    tiny = build(write(folder))
    return folder, tiny, train_here(tiny, folder / "run")


def test_classes_are_learned_and_their_figures_recorded(trained):
    _, _, run = trained
    found = {name: x for record in records(run.folder.path) for name, x in record.items()}
    assert found["eval/macro_f1"] == found["eval/accuracy"] == 1.0
    assert found["eval/f1/odd"] == found["eval/precision/loud"] == found["eval/recall/calm"] == 1.0
    assert found["eval/scored_tokens"] == 41
    # The mark is in the first of several segments.
    assert found["eval/cleared_accuracy"] < 0.8
    assert found["train/loss"] < 0.2
    assert "eval/bits_per_byte" not in found


def test_the_command_writes_the_figures_found_by_hand(trained, monkeypatch, capsys):
    folder, tiny, run = trained
    assert command(monkeypatch, evaluate, f"--workdir={folder / 'run'}") == 0
    written = json.loads((folder / "run" / "evaluation_validation.json").read_text())
    table = np.asarray(run.state.params["table_VD"])
    classes = np.asarray(run.state.params["classes_DC"])
    right, nats, behind, whole = 0, 0.0, 0, 0
    store = tiny.experiment.open_store("validation")
    for document, annotation in enumerate(store.annotations()):
        tokens = store.tokens(document)
        behind += max(0, len(tokens) - 18)
        whole += len(tokens)
        scores = table[tokens[:18]].sum(0) @ classes
        right += int(np.argmax(scores) == annotation["label"])
        nats += np.log(np.exp(scores).sum()) - scores[annotation["label"]]
    assert written["accuracy"] == right / 41
    assert written["loss"] == pytest.approx(nats / 41, rel=1e-4)
    assert written["truncated"] == pytest.approx(behind / whole) and behind
    assert "macro_f1" in capsys.readouterr().out


def test_a_bounded_evaluation_scores_a_document_per_element(trained):
    _, tiny, run = trained
    experiment, mesh = tiny.bind(), one_device()
    with jax.set_mesh(mesh):
        evaluator = Evaluator(experiment, experiment.open_store("validation"), mesh)
        scalars = evaluator.run(run.state.params, max_steps=1)
    # Each batch element begins with a document of three segments.
    assert evaluator.stream.rows <= scalars["scored_tokens"] < 2 * evaluator.stream.rows


@pytest.mark.parametrize("bindings, sentence", [
    (['Trainer.stream = "documents"', "Trainer.labelled = None"], "labelled documents"),
    (['Trainer.stream = "documents"'], r"Trainer\.labelled"),
    (['LabelledDocuments.targets = "words"'], "LabelledDocuments.targets"),
    ([*FEW_WORDS, "LabelledDocuments.words = 3"], r"\.words = 2 .*LabelledDocuments\.words = 3"),
    (['Trainer.loss = "half"'], "Trainer.loss"),
    (["Trainer.model = @LSTM", *OTHER], "Trainer.stream"),
])  # fmt: skip
def test_models_and_streams_that_do_not_go_together_are_refused(trained, bindings, sentence):
    _, tiny, _ = trained
    with pytest.raises(ValueError, match=sentence):
        build(tiny.path, *bindings)
    tiny.bind()


class Letters(Ids):
    """Ids are characters; an encoder's frame."""

    frame = Frame((1,), (2,))

    def decode(self, ids):
        return "".join(map(chr, ids))


def segments_of(folder, texts, notes, length, most, targets):
    documents = [
        Document(str(n), text.encode(), np.array([ord(c) for c in text]), annotation=note)
        for n, (text, note) in enumerate(zip(texts, notes))
    ]
    write_store(folder, documents, Letters(), {}, quiet=True)
    asked = LabelledDocuments("left", targets)
    return LabelledSegments(TokenStore(folder), length, most, asked)


def add(score, sums, document, offset, answers_1N):
    """Adds the answers of a document's segment, and padding before it in the batch."""
    documents_B, offsets_B = np.array([-1, document]), np.array([0, offset])
    answers_BN = np.concatenate([np.zeros_like(answers_1N), answers_1N])
    score.add(sums, None, TokenScores(documents_B, offsets_B, *[None] * 5, answers_BN))


def test_words_end_at_the_end_token_and_join_by_question(tmp_path):
    notes = [
        {"id": "q", "words": [1], "answers": ["the cat"]},
        {"id": "q", "words": [1], "answers": ["a dog"]},
        {"id": "r", "words": [1], "answers": ["red bird"]},
        {"id": "s", "words": [1], "answers": ["unread"]},
    ]
    segments = segments_of(tmp_path / "s", ["text"] * 4, notes, 7, 2, "words")
    score = label_score(segments, Letters())
    written = [[*map(ord, "dog"), 2, ord("x")], [*map(ord, "cat"), 2, 2], [*map(ord, "bird"), 2]]
    sums = {}
    for document, ids in enumerate(written):
        add(score, sums, document, 0, np.array([ids]))
    found = score.figures(sums["labelled"])
    assert found["questions"] == 2
    assert found["exact_match"] == 0.5
    assert found["answer_f1"] == pytest.approx((1 + 2 / 3) / 2)


def test_a_class_is_scored_after_the_last_segment_alone(tmp_path):
    notes = [{"label": 1, "classes": 2}, {"label": 0, "classes": 2}]
    segments = segments_of(tmp_path / "s", ["text of two"] * 2, notes, 9, 2, "classes")
    score = label_score(segments, Letters())
    sums = {}
    for document, note in enumerate(notes):
        first, last = segments.boundaries(document)
        right_1C = np.eye(2)[[note["label"]]]
        add(score, sums, document, first.start, 1 - right_1C)  # not asked
        add(score, sums, document, last.start, right_1C)
    assert score.figures(sums["labelled"])["accuracy"] == 1.0
    assert sums["labelled"] == {0: 1, 1: 0}


def test_figures_of_several_labels_are_those_of_plain_counts(tmp_path):
    random = np.random.default_rng(0)
    right_DC = random.random((30, 4)) < 0.4
    scores_DC = random.normal(size=(30, 4))
    scores_DC[:, 3] = -1  # a class that is never predicted
    notes = [{"labels": np.flatnonzero(row).tolist(), "classes": 4} for row in right_DC]
    segments = segments_of(tmp_path / "s", ["text of two"] * 30, notes, 9, 2, "labels")
    score = label_score(segments, Letters())
    sums = {}
    for document in range(30):
        first, last = segments.boundaries(document)
        answers_1C = scores_DC[document : document + 1]
        add(score, sums, document, first.start, -answers_1C)  # not asked
        add(score, sums, document, last.start, answers_1C)
    found = score.figures(sums["labelled"])

    def f1(predicted, right):
        both = sum(p and r for p, r in zip(predicted, right))
        return 2 * both / (sum(predicted) + sum(right)) if sum(predicted) + sum(right) else 0.0

    predicted_DC = scores_DC > 0
    assert found["micro_f1"] == pytest.approx(f1(predicted_DC.ravel(), right_DC.ravel()))
    each = [f1(predicted_DC[:, c], right_DC[:, c]) for c in range(4)]
    assert [found[f"f1/{c}"] for c in range(4)] == pytest.approx(each) and each[3] == 0.0
    assert found["macro_f1"] == pytest.approx(np.mean(each))
    assert found["exact_match"] == np.mean((predicted_DC == right_DC).all(axis=1))
    hits = (predicted_DC & right_DC).sum()
    assert found["micro_precision"] == pytest.approx(hits / predicted_DC.sum())
    assert found["micro_recall"] == pytest.approx(hits / right_DC.sum())


def test_the_best_span_of_all_segments_is_the_answer(tmp_path):
    notes = [
        {"id": "q", "question": 2, "kind": 0, "answers": ["ink"], "spans": [[4, 7]]},
        {"id": "r", "question": 2, "kind": 1, "answers": ["yes"], "spans": []},
    ]
    texts = ["q?the ink", "q?the ink"]
    segments = segments_of(tmp_path / "s", texts, notes, 9, 3, "spans")  # four characters a segment
    assert segments.boundaries(0) == [range(4), range(4, 7)]
    score = label_score(segments, Letters())
    T = segments.length

    def answers(first, last, at, kind):
        found = np.zeros(2 * T + 3)
        found[first] = found[T + last] = at
        found[2 * T + kind] = 1
        return found[None]

    sums = {}
    # A better span of the question does not count, nor does the first segment's kind.
    low = answers(4, 5, 1.0, 2)
    low[0, 1] = low[0, T + 2] = 9.0
    for document in (0, 1):
        add(score, sums, document, 0, low)
        add(score, sums, document, 4, answers(4, 6, 2.0, document))
    assert sums["labelled"] == {0: "ink", 1: "yes"}
    assert score.figures(sums["labelled"])["exact_match"] == 1.0
    worse = {}
    add(score, worse, 0, 0, low)
    add(score, worse, 0, 4, answers(4, 6, 0.5, 0))
    assert worse["labelled"] == {0: "th"}


def test_a_store_with_other_classes_than_the_model_is_refused(trained, monkeypatch):
    _, tiny, _ = trained
    sentence = r"3 classes \(calm, loud, odd\), .* SummingReader\.classes = 3"
    monkeypatch.setattr(SummingReader, "num_classes", 2)
    with pytest.raises(ValueError, match=sentence):
        tiny.experiment.open_store("validation")
    monkeypatch.setattr(SummingReader, "num_classes", 3)
    tiny.experiment.open_store("validation")
