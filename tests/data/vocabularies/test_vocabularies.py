"""Vocabularies: ids, errors that name a remedy, and files opened only when needed."""

import itertools
import shutil

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from pieces import train_pieces

from brt.data.vocabularies.base import BEGIN, ByteVocabulary, SentencePieceVocabulary

SYLLABLES = ["ka", "to", "mi", "re", "su", "no", "vel", "dan"]
WORDS = ["".join(pair) for pair in itertools.product(SYLLABLES, SYLLABLES)]
LINES = [" ".join(WORDS)]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "tiny.model"
    return train_pieces(path, 40, LINES, model_type="bpe")


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=50))
def test_byte_ids_are_the_bytes(data):
    ids = ByteVocabulary().encode(data, "any")
    assert ids.tolist() == [byte for byte in data]
    assert ids.dtype == np.int32


@pytest.mark.parametrize("bad", [BEGIN, 256])
def test_decoding_an_id_outside_the_vocabulary_names_it(bad):
    with pytest.raises(
        ValueError, match=f"Token id {bad} is not in vocabulary 'bytes' of size 256"
    ):
        ByteVocabulary().decode([65, bad])


def test_pieces_are_those_of_the_library_for_the_whole_document(pieces):
    text = " ".join(WORDS * 50)
    processor = sentencepiece.SentencePieceProcessor(model_file=pieces.path)
    ids = pieces.encode(text.encode(), "long")
    assert ids.tolist() == processor.encode(text)
    assert ids.dtype == np.int32
    assert pieces.size == 40
    assert pieces.decode(ids) == text
    with pytest.raises(ValueError, match="Token id 40"):
        pieces.decode([40])


def test_fingerprints_differ_exactly_where_mappings_differ(pieces, tmp_path):
    other = train_pieces(tmp_path / "other.model", 48, LINES, model_type="bpe")
    copy = SentencePieceVocabulary(shutil.copy(pieces.path, f"{tmp_path}/copy.model"))
    assert pieces.fingerprint == copy.fingerprint
    assert len({pieces.fingerprint, other.fingerprint, ByteVocabulary().fingerprint}) == 3
    assert len(pieces.fingerprint) == 64
