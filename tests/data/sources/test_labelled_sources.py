"""Labelled sources: each format as it is distributed, tokens and annotations as they are stored."""

import json
import tarfile

import pytest
from paths import SHARED
from stores import Words

from brt.data.corpus import Corpus
from brt.data.sources.classification import Hyperpartisan, LabelledTexts
from brt.data.sources.questions import HotpotQA, MuSiQue, Paragraph, Scrolls, question_example

DATA = SHARED / "data"


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def only(source, split="train"):
    (document,) = source.documents(split)
    return document


def test_texts_with_a_class_become_a_store_and_come_back(tmp_path):
    lines = [{"text": "one two", "label": "no"}, {"text": "three", "label": "yes", "id": 7}]
    write_lines(tmp_path / "train.jsonl", lines)
    source = LabelledTexts(str(tmp_path / "{split}.jsonl"), Words(), ("no", "yes"))
    corpus = Corpus(str(tmp_path / "stores"), source)
    corpus.prepare("train", quiet=True, workers=1)
    store = corpus.open("train")
    assert store.titles() == ["train-0", "7"]
    assert store.all_tokens[:].tolist() == [3, 3, 5]
    assert store.manifest["source"]["classes"] == ["no", "yes"]
    assert store.annotations() == [
        {"id": "train-0", "label": 0, "classes": 2, "answers": ["no"], "words": [2, 99]},
        {"id": "7", "label": 1, "classes": 2, "answers": ["yes"], "words": [3, 99]},
    ]


def test_a_byte_order_mark_before_records_is_skipped(tmp_path):
    source = LabelledTexts(str(tmp_path / "{split}.json"), Words(), ("no", "yes"))
    record = '{"text": "one two", "label": "no"}'
    for content in (record, f"[{record}]"):
        (tmp_path / "train.json").write_text(f"\ufeff{content}")
        assert only(source).data == b"one two"


def test_pairs_are_stored_one_after_the_other(tmp_path):
    write_lines(tmp_path / "dev.jsonl", [{"a": "is it", "b": "so it is", "gold": 1}])
    source = LabelledTexts(
        *(str(tmp_path / "{split}.jsonl"), Words(), ("0", "1")),
        **{"text_key": "a", "second_key": "b", "label_key": "gold"},
        splits={"validation": "dev"},
    )
    document = only(source, "validation")
    assert document.tokens.tolist() == [2, 2, 2, 2, 2]
    assert (document.annotation["question"], document.annotation["label"]) == (2, 1)
    assert document.data == b"is it\nso it is"


def test_texts_of_several_classes_keep_all_of_them(tmp_path):
    lines = [{"text": ["one two", "three"], "labels": [2, 0, 2]}, {"text": "four", "labels": []}]
    write_lines(tmp_path / "train.jsonl", lines)
    source = LabelledTexts(
        *(str(tmp_path / "{split}.jsonl"), Words(), ("0", "1", "2")),
        label_key="labels",
        several=True,
    )
    first, second = source.documents("train")
    assert first.data == b"one two\nthree" and first.tokens.tolist() == [3, 3, 5]
    assert first.annotation == {"id": "train-0", "labels": [0, 2], "classes": 3}
    assert second.annotation["labels"] == []
    write_lines(tmp_path / "train.jsonl", [{"text": "one", "labels": 1}])
    with pytest.raises(ValueError, match=r"line 1 .*LabelledTexts\.several"):
        only(source)
    write_lines(tmp_path / "train.jsonl", [{"text": ["one", 2], "labels": [1]}])
    with pytest.raises(ValueError, match=r"line 1 .*'text'"):
        only(source)


def test_missing_and_empty_files_and_wrong_classes_are_named(tmp_path):
    source = LabelledTexts(str(tmp_path / "{split}.jsonl"), Words(), ("no", "yes"))
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl: bind LabelledTexts\.path"):
        list(source.documents("train"))
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no record"):
        list(source.documents("train"))
    for classes in ("no", ("no",), ("no", "no"), (0, 1)):
        with pytest.raises(ValueError, match=r"LabelledTexts\.classes"):
            LabelledTexts("a", Words(), classes)


# Hyperpartisan news.

ARTICLES = """<?xml version="1.0" encoding="UTF-8"?><articles>
<article id="0000000" published-at="2017" title="First &amp; best">Before <p>One
 <a href="x">link</a> &#160;here.</p> between <p>Two.</p></article>
<article id="0000001" title="Second"><p>Other.</p></article>
</articles>"""
TRUTHS = """<articles><article hyperpartisan="true" id="0000000" labeled-by="article"/>
<article hyperpartisan="false" id="0000001" labeled-by="article"/></articles>"""


@pytest.fixture
def news(tmp_path):
    (tmp_path / "articles-training-byarticle-20181122.xml").write_text(ARTICLES)
    (tmp_path / "ground-truth-training-byarticle-20181122.xml").write_text(TRUTHS)
    (tmp_path / "splits.json").write_text('{"train": [1], "dev": [0], "test": [0, 1]}')
    return Hyperpartisan(str(tmp_path), Words(), str(tmp_path / "splits.json"))


def test_articles_have_labels_and_published_splits(news):
    document = only(news, "validation")
    assert document.data.decode() == "First & best\nBefore\nOne link here.\nbetween\nTwo."
    assert document.annotation["label"] == 1 and document.annotation["classes"] == 2
    assert [d.annotation["label"] for d in news.documents("test")] == [1, 0]
    assert only(news).title == "0000001"
    without = Hyperpartisan(news.path, Words(), news.split_file, title=False)
    assert only(without).data == b"Other."


def test_files_that_do_not_belong_together_are_named(news, tmp_path):
    (tmp_path / "splits.json").write_text('{"train": [5]}')
    with pytest.raises(ValueError, match=r"splits\.json .*'train' \(KeyError\(5\)\)"):
        list(news.documents("train"))
    with pytest.raises(ValueError, match=r"splits\.json .*'test'"):
        list(news.documents("test"))
    (tmp_path / "ground-truth-training-byarticle-20181122.xml").write_text("<articles/>")
    with pytest.raises(ValueError, match="articles-training-byarticle"):
        list(news.documents("train"))
    (tmp_path / "ground-truth-training-byarticle-20181122.xml").write_text("<articles>")
    with pytest.raises(ValueError, match="is not XML"):
        list(news.documents("train"))
    (tmp_path / "ground-truth-training-byarticle-20181122.xml").unlink()
    with pytest.raises(FileNotFoundError, match=r"one file ground-truth-\*\.xml and holds 0"):
        list(news.documents("train"))


@pytest.mark.skipif(not (DATA / "hyperpartisan.tar.gz").exists(), reason="needs the corpus")
def test_the_published_corpus_has_its_counts(tmp_path):
    with tarfile.open(DATA / "hyperpartisan.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    source = Hyperpartisan(str(tmp_path / "hyperpartisan"), "bytes")
    found = [d for split in ("train", "validation", "test") for d in source.documents(split)]
    assert len(found) == 645
    assert sum(d.annotation["label"] for d in found) == 238
    assert not any("<p>" in d.data.decode() or "\n\n" in d.data.decode() for d in found)


# Questions.


def test_scrolls_records_are_joined_outside_training(tmp_path):
    lines = [
        {"id": "q1", "pid": "q1_0", "input": "who is it", "output": "She"},
        {"id": "q2", "pid": "q2_0", "input": "what", "output": "Yes"},
        {"id": "q1", "pid": "q1_1", "input": "who is it", "output": "the queen"},
        {"id": "q1", "pid": "q1_2", "input": "who is it", "output": "She"},
    ]
    for split in ("train", "validation"):
        write_lines(tmp_path / f"{split}.jsonl", lines)
    source = Scrolls(str(tmp_path / "{split}.jsonl"), Words())
    trained = [(d.title, d.annotation["answers"]) for d in source.documents("train")]
    expected = [("q1", ["She"]), ("q2", ["Yes"]), ("q1", ["the queen"]), ("q1", ["She"])]
    assert trained == expected
    read = [(d.title, d.annotation["answers"]) for d in source.documents("validation")]
    assert read == [("q1", ["She", "the queen"]), ("q2", ["Yes"])]
    document = next(source.documents("train"))
    assert document.annotation["words"] == [3, 99] and "question" not in document.annotation
    write_lines(tmp_path / "test.jsonl", [{"id": "q", "input": "a", "output": None}])
    with pytest.raises(ValueError, match=r"test\.jsonl, line 1 .*output"):
        list(source.documents("test"))


def test_an_answer_is_looked_for_where_it_is_told():
    paragraphs = [Paragraph("Ann", "Ann saw Rome.", False), Paragraph("Bo", "Rome, in Rome", True)]
    found = question_example("q", "Where?", paragraphs, ["Rome", "Roma"])
    assert found.text == "Ann\nAnn saw Rome.\nBo\nRome, in Rome"
    assert [found.text[a:b] for a, b in found.spans] == ["Rome", "Rome"]
    assert found.spans[0][0] == found.text.index("Rome, in")
    assert (found.kind, found.answers) == (0, ("Rome", "Roma"))
    # Otherwise the whole text is searched, then without regard to case, for whole words only.
    assert len(question_example("q", "?", paragraphs, ["saw"]).spans) == 1
    assert len(question_example("q", "?", paragraphs, ["ANN"]).spans) == 2
    assert question_example("q", "?", paragraphs, ["Rom"]).spans == ()
    assert question_example("q", "?", paragraphs, [" Yes "]).kind == 1
    found = question_example("q", "?", paragraphs, ["no"])
    assert (found.kind, found.spans) == (2, ())


def test_hotpot_questions_are_stored_before_their_context(tmp_path):
    question = {
        "_id": "5a",
        "question": "Who rose?",
        "answer": "the river",
        "supporting_facts": [["Night", 0]],
        "context": [["Day", ["By the river."]], ["Night", ["In it", " the river rose."]]],
    }
    (tmp_path / "train.json").write_text(json.dumps([question] * 5))
    source = HotpotQA(str(tmp_path / "{split}.json"), Words())
    document = next(source.documents("train"))
    assert document.annotation["question"] == 2
    # Day By the river. Night In it the river rose.
    assert document.annotation["spans"] == [(7, 9)]
    assert document.annotation["kind"] == 0
    assert len(list(source.documents("train"))) == 5
    few = HotpotQA(str(tmp_path / "{split}.json"), Words(), questions=2)
    assert len(list(few.documents("train"))) == 2
    with pytest.raises(ValueError, match=r"HotpotQA\.vocabulary"):
        list(HotpotQA(str(tmp_path / "{split}.json"), "bytes").documents("train"))
    (tmp_path / "train.json").write_text(json.dumps([question | {"context": ["Day"]}]))
    with pytest.raises(ValueError, match="record 0"):
        list(source.documents("train"))


def test_musique_leaves_out_what_is_not_answered(tmp_path):
    supports = {"title": "T", "paragraph_text": "It is Ann.", "is_supporting": True}
    question = {
        "id": "2hop",
        "question": "Who?",
        "answer": "Ann",
        "answer_aliases": ["Anna"],
        "answerable": True,
        "paragraphs": [supports | {"is_supporting": False}, supports],
    }
    write_lines(tmp_path / "train.jsonl", [question, question | {"answerable": False}])
    document = only(MuSiQue(str(tmp_path / "{split}.jsonl"), Words()))
    assert document.annotation["answers"] == ["Ann", "Anna"]
    assert document.annotation["spans"] == [(7, 8)]


@pytest.mark.skipif(not (DATA / "qa-samples.tar.gz").exists(), reason="needs the questions")
def test_published_questions_hold_their_answers(tmp_path):
    with tarfile.open(DATA / "qa-samples.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "qa-samples"
    for source in (
        HotpotQA(str(folder / "hotpot_{split}_distractor_100.json"), Words()),
        MuSiQue(str(folder / "musique_{split}_100.json"), Words()),
    ):
        found = list(source.examples("train"))
        assert len(found) == 100
        spans = [example for example in found if example.kind == 0]
        held = [
            example
            for example in spans
            if example.spans
            and all(
                example.text[a:b].lower() == example.answers[0].lower() for a, b in example.spans
            )
        ]
        assert len(held) / len(spans) > 0.97
    dev = HotpotQA(
        str(folder / "hotpot_{split}_distractor_100.json"), Words(), splits={"validation": "dev"}
    )
    assert {example.kind for example in dev.examples("validation")} == {0, 1, 2}
