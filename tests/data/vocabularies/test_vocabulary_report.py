"""Reports: ratios that a plain count gives, and white space that is measured, not assumed."""

import time

import numpy as np
import pytest

from brt.data.sources.base import Document
from brt.data.vocabularies.base import SentencePieceVocabulary, Vocabulary
from brt.data.vocabularies.report import report, sample_text
from brt.data.vocabularies.training import SentencePieceTraining

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


@pytest.mark.parametrize(
    ("back", "exact", "lost"),
    [
        (lambda text: text, True, []),
        (lambda text: text.replace("\t", " "), False, ["tabs"]),
        (lambda text: text.replace("\n", " "), False, ["newlines"]),
        (lambda text: text.replace("  ", " "), False, ["double spaces"]),
        (lambda text: text.upper(), False, []),
        (lambda text: "", False, ["tabs", "newlines", "double spaces"]),
    ],
)
def test_each_kind_of_white_space_is_measured_by_itself(back, exact, lost):
    found = report(Scripted(back), TEXT.encode())
    assert (found.exact, found.lost) == (exact, lost)


def test_a_sample_is_the_first_documents_up_to_the_end_of_a_line():
    documents = [Document("a", b"one\ntwo\n"), Document("b", b"three\nfour\n"), Document("c", b"x")]
    assert sample_text(iter(documents), 100) == b"one\ntwo\nthree\nfour\nx"
    assert sample_text(iter(documents), 16) == b"one\ntwo\nthree\n"
    assert sample_text(iter(documents), 2) == b"one\ntwo\n"  # no shorter line
    with pytest.raises(ValueError, match="task"):
        sample_text([Document("task", tokens=np.zeros(3, np.int32))])


def test_the_time_of_a_sample_is_in_proportion_to_its_rows():
    seconds = []
    for count in (2**14, 2**17):
        rows = [Document("row", b"twenty bytes a row.\n")] * count
        begun = time.process_time()
        assert len(sample_text(rows)) == 20 * count
        seconds.append(time.process_time() - begun)
    assert seconds[1] < 30 * seconds[0]


@pytest.mark.parametrize("coverage", [0.999, 1.0])
def test_a_report_names_the_rare_characters_that_pieces_lack(coverage, tmp_path):
    """And the option that keeps them, unless all are kept."""
    vocabulary = SentencePieceVocabulary(str(tmp_path / "tiny.model"))
    documents = [Document("code", b"the cat sat on the mat\n" * 200 + b"a $ and a ^\n")]
    training = SentencePieceTraining(32, options={"character_coverage": coverage})
    (tmp_path / "tiny.model").write_bytes(training.make(vocabulary, documents))
    found = report(vocabulary, documents[0].data)
    lacking = coverage < 1
    for named in ("'$'", "'^'", "SentencePieceTraining.options", "character_coverage"):
        assert (named in str(found)) == lacking, named
