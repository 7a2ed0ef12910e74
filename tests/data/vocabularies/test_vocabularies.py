"""Vocabularies: ids, errors that name a remedy, and files opened only when needed."""

import io
import itertools

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.data.vocabularies.base import BEGIN, ByteVocabulary, SentencePieceVocabulary

SYLLABLES = ["ka", "to", "mi", "re", "su", "no", "vel", "dan"]
WORDS = ["".join(pair) for pair in itertools.product(SYLLABLES, SYLLABLES)]


def train_model(path, size):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS[n:] + WORDS[:n]) for n in range(60)]),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("pieces") / "tiny.model", 40)


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


def test_pieces_are_those_of_the_library_for_the_whole_document(model_file):
    vocabulary = SentencePieceVocabulary(model_file)
    text = " ".join(WORDS * 50)
    processor = sentencepiece.SentencePieceProcessor(model_file=model_file)
    ids = vocabulary.encode(text.encode(), "long")
    assert ids.tolist() == processor.encode(text)
    assert ids.dtype == np.int32
    assert vocabulary.size == 40
    assert vocabulary.decode(ids) == text
    with pytest.raises(ValueError, match="Token id 40"):
        vocabulary.decode([40])


def test_fingerprints_differ_exactly_where_mappings_differ(model_file, tmp_path):
    other = SentencePieceVocabulary(train_model(tmp_path / "other.model", 48))
    copy = tmp_path / "copy.model"
    with open(model_file, "rb") as file:
        copy.write_bytes(file.read())
    first = SentencePieceVocabulary(model_file)
    assert first.fingerprint == SentencePieceVocabulary(str(copy)).fingerprint
    assert len({first.fingerprint, other.fingerprint, ByteVocabulary().fingerprint}) == 3
    assert len(first.fingerprint) == 64
