"""The n-grams of the pages of results predict by counts, and forget those of a document."""

import math

import pytest
from baselines import Ngram

TRAINED = [b"abababab" * 5, b"abcabc"]
TEXT = b"xyzxyzxyz ab xyzxyz"


def test_probabilities_of_a_text_add_up_to_one():
    ngram = Ngram(2, TRAINED)
    for before in (b"", b"a", b"ab", b"zz", b"ba"):
        bits = [ngram.bits(before + bytes([last])) - ngram.bits(before) for last in range(256)]
        assert math.fsum(2**-each for each in bits) == pytest.approx(1)


def test_counting_helps_with_what_the_document_repeats():
    ngram = Ngram(3, TRAINED)
    assert ngram.bits(TEXT, counting=True) < ngram.bits(TEXT) - 8


def test_the_counts_of_a_document_are_dropped_at_its_end():
    ngram = Ngram(3, TRAINED)
    fixed, counting = ngram.bits(TEXT), ngram.bits(TEXT, counting=True)
    assert ngram.bits(TEXT) == fixed and ngram.bits(TEXT, counting=True) == counting


def test_a_byte_counts_only_after_it_was_predicted():
    ngram = Ngram(3, TRAINED)
    assert ngram.bits(b"q", counting=True) == ngram.bits(b"q")
