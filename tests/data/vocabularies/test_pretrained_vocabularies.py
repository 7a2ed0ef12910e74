"""Byte-level BPE and WordPiece: the published ids."""

import json
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import SHARED

from brt.data.vocabularies import pretrained as pretrained_vocabularies
from brt.data.vocabularies.pretrained import ByteLevelBpeVocabulary, WordPieceVocabulary, parts

PUBLISHED = SHARED / "data" / "vocabs.tar.gz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "whale", "##s", "sep", "[", "]", "."]
texts = st.lists(st.sampled_from(["a", "b", "'s", " ", "\n", "\t", "é", "1", "\x1c", "\u2028"]))

published = pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published files")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A byte-level BPE of the 256 bytes with merges for some white space and letters."""
    tokenizers = pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')
    folder = tmp_path_factory.mktemp("bpe")
    merges = [("Ċ", "Ċ"), ("Ġ", "Ġ"), ("Ġ", "a"), ("a", "b"), ("Ċ", "Ġ"), ("ĊĊ", "ĊĊ")]
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    symbols += ["".join(pair) for pair in merges] + ["<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({s: n for n, s in enumerate(symbols)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ByteLevelBpeVocabulary(str(folder))


@pytest.fixture
def wordpiece(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return WordPieceVocabulary(str(tmp_path / "vocab.txt"))


@settings(deadline=None, derandomize=True)
@given(texts.map("".join), st.integers(0, 3))
def test_byte_level_bpe_is_lossless_and_parts_change_no_token(bpe, text, part):
    whole = bpe.tokenizer.named.encode(text, add_special_tokens=False).ids
    usual, pretrained_vocabularies.PART = pretrained_vocabularies.PART, part
    try:
        ids = bpe.encode(text.encode(), "any")
    finally:
        pretrained_vocabularies.PART = usual
    assert ids.tolist() == whole
    assert ids.dtype == np.int32
    assert bpe.decode(ids) == text


@settings(deadline=None, derandomize=True)
@given(texts.map("".join), st.integers(0, 5))
def test_parts_are_the_text_cut_at_allowed_places(text, size):
    found = parts(text, size)
    assert "".join(found) == text
    for part in found[:-1]:
        assert len(part) > size and part[-1] == "\n" and not part[-2].isspace()


def test_wordpiece_lowers_case_strips_accents_marks_unknowns(wordpiece):
    ids = wordpiece.encode("Café  WHALES\nxyz.".encode(), "any")
    assert [WORDS[i] for i in ids] == ["cafe", "whale", "##s", "[UNK]", "."]
    assert wordpiece.decode(ids) == "cafe whales [UNK] ."
    assert wordpiece.unknown_id == 1
    cased = WordPieceVocabulary(wordpiece.file, lower_case=False)
    assert [WORDS[i] for i in cased.encode(b"Cafe whales", "any")] == ["[UNK]", "whale", "##s"]
    assert cased.fingerprint != wordpiece.fingerprint


def test_names_of_special_tokens_in_a_text_are_text(bpe, wordpiece):
    assert bpe.special_ids["<|endoftext|>"] not in bpe.encode(b"<|endoftext|>", "any")
    assert [WORDS[i] for i in wordpiece.encode(b"[SEP]", "any")] == ["[", "sep", "]"]
    assert wordpiece.special_ids == {name: n for n, name in enumerate(WORDS[:5])}


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_vocabulary_in_use_can_be_sent_to_workers(kind, request):
    vocabulary = request.getfixturevalue(kind)
    ids = vocabulary.encode(b"ab cafe", "any").tolist()
    sent = pickle.loads(pickle.dumps(vocabulary))
    assert sent.encode(b"ab cafe", "any").tolist() == ids


@published
def test_published_ids_are_those_of_gpt_2_and_bert(tmp_path):
    with tarfile.open(PUBLISHED) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before 3.11.4
        archive.extractall(tmp_path)
    gpt2 = ByteLevelBpeVocabulary(str(tmp_path / "vocabs/gpt2"))
    assert gpt2.encode(b"Hello, my dog is cute", "any").tolist() == [
        *(15496, 11, 616, 3290, 318, 13779)
    ]
    assert (gpt2.size, gpt2.special_ids) == (50257, {"<|endoftext|>": 50256})
    bert = WordPieceVocabulary(str(tmp_path / "vocabs/bert-base-uncased/vocab.txt"))
    assert bert.encode(b"Hello, my dog is cute", "any").tolist() == [
        *(7592, 1010, 2026, 3899, 2003, 10140)
    ]
    assert (bert.size, bert.unknown_id) == (30522, 100)
