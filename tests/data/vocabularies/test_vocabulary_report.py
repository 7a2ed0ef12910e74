"""Reports: ratios that a plain count gives, and white space that is measured, not assumed."""

import io

import numpy as np
import pytest
import sentencepiece

from brt.data.sources.base import Document
from brt.data.vocabularies.base import ByteVocabulary, SentencePieceVocabulary, Vocabulary
from brt.data.vocabularies.report import report, sample_text
from brt.data.vocabularies.words import WordVocabulary

TEXT = "the  cat\tsat\non the mat\n\nthe end\n" * 20


class Scripted(Vocabulary):
    """Ids are words as `split` separates them; what comes back is `back` of the text."""

    name, fingerprint, special_ids, unknown_id, size = "scripted", "0" * 64, {"<unk>": 0}, 0, 9

    def __init__(self, back):
        self.back = back

    def encode(self, data, title):
        self.text = data.decode()
        return np.array([0 if word == "cat" else 1 for word in self.text.split()], np.int32)

    def decode(self, ids):
        return self.back(self.text)


def pieces(path, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        vocab_size=40,
        model_type="bpe",
        num_threads=1,
        minloglevel=2,
        **options,
    )
    path.write_bytes(model.getvalue())
    return SentencePieceVocabulary(str(path))


def test_ratios_are_those_of_a_plain_count():
    found = report(Scripted(lambda text: text), TEXT.encode())
    assert (found.bytes, found.words, found.tokens) == (len(TEXT), 160, 160)
    assert found.unknown == 20
    assert found.bytes_per_token == len(TEXT) / 160
    assert found.tokens_per_word == 1
    byte = report(ByteVocabulary(), TEXT.encode())
    assert byte.bytes_per_token == 1 and byte.tokens_per_word == len(TEXT) / 160


@pytest.mark.parametrize(
    ("back", "survives"),
    [
        (lambda text: text, (True, True, True, True)),
        (lambda text: text.replace("\t", " "), (False, False, True, True)),
        (lambda text: text.replace("\n", " "), (False, True, False, True)),
        (lambda text: text.replace("  ", " "), (False, True, True, False)),
        (lambda text: text.upper(), (False, True, True, True)),
        (lambda text: "", (False, False, False, False)),
    ],
)
def test_each_kind_of_white_space_is_measured_by_itself(back, survives):
    found = report(Scripted(back), TEXT.encode())
    assert (found.exact, found.tabs, found.newlines, found.double_spaces) == survives


def test_sentencepiece_keeps_what_it_was_trained_to_keep(tmp_path):
    usual = report(pieces(tmp_path / "usual.model"), TEXT.encode())
    assert (usual.tabs, usual.newlines, usual.double_spaces, usual.exact) == (False,) * 4
    assert usual.special_ids == {"<unk>": 0, "<s>": 1, "</s>": 2}
    kept = {"remove_extra_whitespaces": False, "user_defined_symbols": ["\n", "\t"]}
    kept = report(pieces(tmp_path / "kept.model", **kept), TEXT.encode())
    assert (kept.tabs, kept.newlines, kept.double_spaces, kept.exact) == (True,) * 4


def test_an_unknown_symbol_does_not_hide_that_spaces_survive(tmp_path):
    vocabulary = pieces(tmp_path / "kept.model", remove_extra_whitespaces=False)
    assert report(vocabulary, b"the cat sat on the mat").double_spaces
    found = report(vocabulary, b"the cat 8 9 sat on the mat")
    assert found.unknown and found.double_spaces
    assert not report(vocabulary, b"8 9").double_spaces


def test_words_keep_line_breaks_alone(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("<eos>\nthe\n<unk>\n")
    found = report(WordVocabulary(str(path)), TEXT.encode())
    assert (found.tabs, found.newlines, found.double_spaces, found.exact) == (
        *(False, True),
        *[False] * 2,
    )
    assert found.unknown == 100 and found.tokens == 160 + 80


def test_the_table_says_everything_and_shortens_long_lists():
    vocabulary = Scripted(lambda text: "")
    vocabulary.special_ids = {f"<extra_{n}>": n for n in range(100)}
    table = str(report(vocabulary, TEXT.encode()))
    for line in (
        "size                   9",
        "tokens per word        1.0000",
        "20 (12.500%), scored",
    ):
        assert line in table
    assert "<extra_7> 7, and 92 more" in table and "<extra_8>" not in table
    assert "tabs survive           no" in table


def test_a_sample_too_short_is_refused():
    with pytest.raises(ValueError, match="fewer than two words"):
        report(ByteVocabulary(), b"one")


def test_a_sample_is_the_first_documents_up_to_the_end_of_a_line():
    documents = [Document("a", b"one\ntwo\n"), Document("b", b"three\nfour\n"), Document("c", b"x")]
    assert sample_text(iter(documents), 100) == b"one\ntwo\nthree\nfour\nx"
    assert sample_text(iter(documents), 16) == b"one\ntwo\nthree\n"
    assert sample_text(iter(documents), 2) == b"one\ntwo\n"  # no shorter line
    with pytest.raises(ValueError, match="comes as token ids"):
        sample_text([Document("task", tokens=np.zeros(3, np.int32))])
