"""The n-grams of the pages of results predict by counts, and forget those of a document."""

import math
import re

import baselines
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


@pytest.mark.parametrize("counting", [False, True])
def test_words_have_the_mean_bits_of_their_distances(monkeypatch, counting):
    monkeypatch.setattr(baselines, "STRETCHES", 1)
    train = b"one two three four " * 40
    texts = [b"one two one, one", b"four" + b" " * 96 + b"four"]  # 100 bytes between the two
    ngram, bits = Ngram(4, [train]), {}
    for text in texts:
        each, seen = [*ngram.each(text, counting)], {}
        for word in re.finditer(rb"\w+", text):
            distance = word.start() - seen.get(word[0], -math.inf)
            first = max((x for x in baselines.DISTANCES if x <= distance), default=None)
            bits.setdefault(first, []).extend(each[word.start() : word.end()])
            seen[word[0]] = word.start()
    name = "4-gram, counting" if counting else "4-gram"
    found = dict(baselines._of_words(train, texts))
    del bits[baselines.DISTANCES[-1]]  # seen for the first time
    for distance, each in bits.items():
        mean = math.fsum(each) / len(each)
        assert found.pop(f"{name}, words from {distance}") == pytest.approx(mean)
    assert {1, 100} <= {*bits} and not [x for x in found if x.startswith(f"{name}, words")]
