"""Labelled documents: every segment as a tokenizer would write it, aligned, with its labels."""

import json

import numpy as np
import pytest
from paths import GOLDEN
from stores import Ids

from brt.data.sources.base import Document
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.labelled import (
    ALIGNMENTS,
    LabelledDocuments,
    LabelledPass,
    LabelledSegments,
    LabelledStream,
    segment_boundaries,
)
from brt.data.vocabularies.base import Frame
from brt.token_ids import PADDING

CLS, SEP = 7, 8
RECORDED = GOLDEN / "pretrained"
LENGTHS = [1, 3, 4, 5, 9, 13, 20]


class Framed(Ids):
    """Ids with the special tokens of an encoder around a text."""

    frame = Frame((CLS,), (SEP,))


def store_at(folder, annotations, lengths=LENGTHS):
    firsts = 1000 + np.cumsum([0, *lengths])
    documents = [
        Document(f"document {d}", tokens=np.arange(first, first + n), annotation=annotation)
        for d, (first, n, annotation) in enumerate(zip(firsts, lengths, annotations))
    ]
    write_store(folder, documents, Framed(), {}, quiet=True)
    return TokenStore(folder)


@pytest.fixture
def store(tmp_path):
    return store_at(tmp_path / "train", [{"label": d % 3} for d in range(len(LENGTHS))])


def plain_cut(length, size, most, alignment):
    """The same as the published wrapper's description of it, one token at a time."""
    tokens = list(range(min(length, size * most)))
    if alignment == "left":
        parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    elif alignment == "right":
        parts = []
        while tokens:
            parts.insert(0, tokens[-size:])
            tokens = tokens[:-size]
    else:
        count = int(np.ceil(len(tokens) / size))
        each = int(np.ceil(len(tokens) / count))
        parts = [tokens[at : at + each] for at in range(0, len(tokens), each)]
    return [(part[0], part[-1] + 1) for part in parts]


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_text_is_cut_as_the_published_wrapper_cuts_it(alignment):
    for length in (*range(1, 60), 499, 500, 1500):
        for size in (1, 2, 5, 7, 499):
            for most in (1, 2, 3, 4):
                found = segment_boundaries(length, size, most, alignment)
                expected = plain_cut(length, size, most, alignment)
                assert [(part.start, part.stop) for part in found] == expected


def segments_of(batch, row):
    """Inputs without padding, targets by position, weights by position, starts."""
    found = []
    for k in range(len(batch.starts_KB)):
        inputs = batch.inputs_KBT[k, row].tolist()
        count = sum(i != PADDING for i in inputs)
        assert PADDING not in inputs[:count]
        weights = batch.weights_KBT[k, row]
        scored = {int(t): int(batch.targets_KBT[k, row, t]) for t in np.flatnonzero(weights)}
        found.append((inputs[:count], scored, bool(batch.starts_KB[k, row])))
    return found


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("loss", ["last", "every"])
def test_a_step_reads_one_document_a_row_behind_empty_segments(store, alignment, loss):
    documents = LabelledDocuments(alignment, loss=loss)
    stream = LabelledStream(store, 3, 7, 4, seed=1, documents=documents)
    read = []
    for step in range(7):
        batch = stream.batch(step)
        for row in range(3):
            segments = segments_of(batch, row)
            first = next(token for inputs, *_ in segments for token in inputs if token >= 1000)
            document = next(d for d in range(len(LENGTHS)) if first in store.tokens(d))
            read.append(document)
            boundaries = plain_cut(LENGTHS[document], 4, 4, alignment)
            tokens = store.tokens(document).tolist()
            label = {0: document % 3}
            empty = [([], {}, True)] * (4 - len(boundaries))
            wanted = [
                (
                    [CLS, SEP, *tokens[start:stop], SEP],
                    label if loss == "every" or n == len(boundaries) - 1 else {},
                    n == 0,
                )
                for n, (start, stop) in enumerate(boundaries)
            ]
            assert segments == empty + wanted
    assert sorted(read) == sorted([*range(len(LENGTHS))] * 3)
    assert len({tuple(read[at : at + 7]) for at in (0, 7, 14)}) == 3


@pytest.mark.parametrize("rows", [1, 2, 10])
def test_evaluation_reads_every_document_once(store, rows):
    stream = LabelledPass(store, rows, 7, 4)
    asked = []
    for step in range(stream.num_steps):
        batch = stream.batch(step)
        documents_B, offsets_B = stream.positions(step)
        for row in range(rows):
            ((inputs, scored, start),) = segments_of(batch, row)
            assert bool(inputs) == (documents_B[row] >= 0)
            document, segment = stream.segment(step, row)
            last = int(stream.segments.counts_D[document]) - 1
            assert bool(scored) == (document >= 0 and segment == last)
            if inputs:
                assert start == (offsets_B[row] == 0)
                assert inputs[2] == store.tokens(documents_B[row])[offsets_B[row]]
            if scored:
                assert scored == {0: documents_B[row] % 3}
                asked.append(int(documents_B[row]))
    assert sorted(asked) == list(range(len(LENGTHS)))


def test_words_of_an_answer_stand_at_the_first_positions(tmp_path):
    notes = [{"words": [11, 12, 1]}, {"words": [13, 14, 15, 16, 1]}]
    store = store_at(tmp_path / "train", notes, [3, 9])
    documents = LabelledDocuments(targets="words", words=4)
    batch = LabelledPass(store, 2, 7, 3, documents).batch(0)
    assert segments_of(batch, 1)[0][1] == {0: 11, 1: 12, 2: 1}
    stream = LabelledPass(store, 1, 7, 3, documents)
    last = segments_of(stream.batch(2), 0)[0]
    assert last[1] == {0: 13, 1: 14, 2: 15, 3: 16}


def test_spans_are_positions_in_the_segment_of_the_answer(tmp_path):
    notes = [
        {"question": 2, "kind": 0, "spans": [[3, 5], [4, 6], [0, 1]]},
        {"question": 2, "kind": 1, "spans": []},
    ]
    store = store_at(tmp_path / "train", notes, [2 + 6, 2 + 6])
    documents = LabelledDocuments("left", "spans")
    stream = LabelledPass(store, 2, 9, 3, documents)  # [CLS] q q [SEP] 4 of text [SEP]
    tokens = store.tokens(0).tolist()
    first, second = (segments_of(stream.batch(step), 0)[0] for step in (0, 1))
    assert first[0] == [CLS, *tokens[:2], SEP, *tokens[2:6], SEP]
    assert first[1] == {0: 4, 1: 4}  # [3, 5] crosses the segment boundary
    assert second[0] == [CLS, *tokens[:2], SEP, *tokens[6:], SEP]
    assert second[1] == {0: 4, 1: 5, 2: 0}
    assert [segments_of(stream.batch(step), 1)[0][1] for step in (0, 1)] == [{}, {2: 1}]


@pytest.mark.skipif(not RECORDED.exists(), reason="needs recordings of the published wrapper")
@pytest.mark.parametrize("name, frame", [
    ("rmt_bert", Frame((2,), (3,))),
    ("rmt_roberta_all_losses", Frame((0,), (2,))),
    ("rmt_t5", Frame((), (1,))),
])  # fmt: skip
def test_segments_are_those_of_the_published_wrapper(tmp_path, name, frame):
    recorded = np.load(RECORDED / f"{name}.npz", allow_pickle=False)
    memory = len(recorded["memory_rows"])
    config = json.loads(str(recorded["config_json"]))
    vocabulary = Framed()
    vocabulary.frame = frame
    documents = [
        Document(str(n), tokens=row[row >= 0], annotation={"label": 0})
        for n, row in enumerate(recorded["documents"])
    ]
    inputs_SBI = recorded["segment_input_ids"]
    write_store(tmp_path / "train", documents, vocabulary, {}, quiet=True)
    segments = LabelledSegments(
        TokenStore(tmp_path / "train"),
        inputs_SBI.shape[2] - memory,
        len(inputs_SBI),
        LabelledDocuments(config["segment_alignment"]),
    )
    assert segments.counts_D.tolist() == recorded["segment_present"].sum(0).tolist()
    stream = LabelledStream(segments.store, len(documents), inputs_SBI.shape[2] - memory, 3)
    stream.segments = segments
    step = stream.batch(0)
    order = [int(stream._order(0)[turn]) for turn in range(len(documents))]
    at = len(frame.before)
    for b, document in enumerate(order):
        for k in range(len(inputs_SBI)):
            ids = inputs_SBI[k, document]
            wanted = np.delete(ids, range(at, at + memory))
            found = step.inputs_KBT[k, b]
            if not recorded["segment_present"][k, document]:
                assert (found == PADDING).all()
                continue
            real = found != PADDING
            assert found[real].tolist() == wanted[: real.sum()].tolist()
            assert len(set(wanted[real.sum() :].tolist())) <= 1


def test_labels_are_a_target_for_every_class(tmp_path):
    notes = [{"labels": [0, 2], "classes": 3}, {"labels": [], "classes": 3}]
    store = store_at(tmp_path / "train", notes, [9, 4])
    asked = LabelledDocuments(targets="labels")
    segments = LabelledSegments(store, 8, 2, asked)
    stream = LabelledStream(store, 2, 8, 2, documents=asked)
    batch = stream.batch(0)
    for row in range(2):
        long = bool((batch.inputs_KBT[0, row] != PADDING).any())
        assert batch.targets_KBT[1, row, :3].tolist() == ([1, 0, 1] if long else [0, 0, 0])
        assert batch.weights_KBT[1, row].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert not batch.weights_KBT[0].any()
    assert segments.counts_D.tolist() == [2, 1]
    many = store_at(tmp_path / "many", [{"labels": [8], "classes": 9}], [4])
    with pytest.raises(ValueError, match=r"9 classes, .* Trainer\.segment_length = 9 or more"):
        LabelledSegments(many, 8, 2, asked)
