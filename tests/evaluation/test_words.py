"""Words of a document: where their tokens are, when they were last seen, and of what kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.data.vocabularies.base import ByteVocabulary
from brt.evaluation.token_kinds import KINDS, token_kinds
from brt.evaluation.words import NAME, OTHER, TITLE, Words, token_texts


class Pieces:
    """Subwords with a mark for the space before a word, which vanishes at a text's beginning."""

    def __init__(self, pieces):
        self.pieces = pieces

    def decode(self, ids):
        return "".join(self.pieces[i] for i in ids).replace("_", " ").removeprefix(" ")


def as_bytes(text):
    return Words(ByteVocabulary(), np.frombuffer(text.encode(), np.uint8))


def word_at(words, text, fragment, occurrence=0):
    position = -1
    for _ in range(occurrence + 1):
        position = text.index(fragment, position + 1)
    return words.at(position)


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="aé€𝄞 \n", max_size=90))
def test_texts_of_bytes_join_to_the_document(text):
    tokens = np.frombuffer(text.encode(), np.uint8)
    texts = token_texts(ByteVocabulary(), tokens)
    assert len(texts) == len(tokens) and "".join(texts) == text
    begins = [len(c.encode()) for c in text]
    assert [t for t in texts if t] == list(text)
    assert np.flatnonzero(texts).tolist() == np.cumsum([0, *begins])[: len(text)].tolist()


@pytest.mark.parametrize("repeats", [1, 7, 40])
def test_texts_of_subwords_keep_their_spaces(repeats):
    pieces = ["_the", "_G", "omin", "'s", "."]
    vocabulary = Pieces(pieces)
    tokens = np.tile([0, 1, 2, 3, 4], repeats)
    texts = token_texts(vocabulary, tokens)
    spaced = [piece.replace("_", " ") for piece in pieces]
    assert texts == ["the", *(spaced * repeats)[1:]]
    words = Words(vocabulary, tokens)
    assert words.words == ["the", "Gomin"] * repeats
    assert words.at(1) == words.at(2) == words.at(3) == 1 and words.at(4) is None
    if repeats > 1:
        assert words.last_seen(3) == 5 and words.last_seen(1) is None


def test_a_name_is_capitalised_and_never_in_lower_case():
    text = "Then Gomin went. Then he saw day and Day and Gomin's Rose. Larne then went."
    words = as_bytes(text)
    assert words.kind(word_at(words, text, "Gomin")) == OTHER  # not seen before
    assert words.kind(word_at(words, text, "Gomin", 1)) == NAME
    assert words.kind(word_at(words, text, "Then", 1)) == OTHER  # "then" is a word
    assert words.kind(word_at(words, text, "Day")) == OTHER
    assert words.kind(word_at(words, text, "Larne")) == OTHER
    assert words.words[word_at(words, text, "Gomin", 1)] == "Gomin"


BOOK = """THE LONG WAY HOME

CONTENTS

The Tugboat
Day the Fifth

CHAPTER I

It was a day like any other.
"Yes."

The Tugboat

She took the tugboat home.

"Yes."

DAY THE FIFTH

There was not the slightest use.

The Unforeseen

And so on.
"""


def test_a_chapter_title_is_a_heading_read_before():
    words = as_bytes(BOOK)
    kinds = {
        ("Tugboat", 0): OTHER,  # in the table of contents, which is the first time
        ("Tugboat", 1): TITLE,
        ("DAY", 0): TITLE,
        ("FIFTH", 0): TITLE,
        ("tugboat", 0): OTHER,
        ("CHAPTER", 0): OTHER,
        ("Unforeseen", 0): OTHER,
        ("slightest", 0): OTHER,
        ('Yes."', 1): OTHER,  # a line of its own and read before, but speech
    }
    for (fragment, occurrence), kind in kinds.items():
        found = words.kind(word_at(words, BOOK, fragment, occurrence))
        assert found == kind, (fragment, occurrence)


def test_title_and_author_at_the_end_are_told_from_names():
    body = "words that go on and on. " * 60
    middle = f"{body}Not at the end, Moncure Daniel. {body}"
    text = f"Life of Paine\nby Moncure Daniel\n\n{middle}of Paine. End of Life of Paine, "
    text += "by Moncure Daniel, and Daniel alone."
    words = as_bytes(text)
    recalled = [n for n in range(len(words.words)) if words.is_recalled_opening(n)]
    assert [words.words[n] for n in recalled] == ["Moncure", "Daniel"]
    assert recalled[0] == word_at(words, text, "Moncure", 2)


def test_last_seen_is_what_a_plain_search_finds():
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(["Ann", "Annie", "annie", "x-y", "x"], 60))
    words, last = as_bytes(text), {}
    for number, word in enumerate(words.words):
        start = int(words.starts[number])
        assert text.startswith(word, start)
        expected = start - last[word] if word in last else None
        assert words.last_seen(number) == expected
        last[word] = start


def test_a_piece_is_of_the_kind_of_what_it_begins():
    pieces = ["The", "_wh", "ale", ".", "\n", "_", "\n\nA", "_h", "'s", "!"]
    words = Words(Pieces(pieces), np.arange(len(pieces)))
    assert words.texts == [piece.replace("_", " ") for piece in pieces]
    assert [KINDS[kind] for kind in token_kinds(words)] == [
        "first of a word", "first of a word", "inside a word", "other", "line break",
        "white space", "line break", "first of a word", "inside a word", "other",
    ]  # fmt: skip
