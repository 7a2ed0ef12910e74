"""Reports: ratios that a plain count gives, and white space that is measured, not assumed."""

import numpy as np
import pytest

from brt.data.sources.base import Document
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.report import report, sample_text

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
    with pytest.raises(ValueError, match="comes as token ids"):
        sample_text([Document("task", tokens=np.zeros(3, np.int32))])
