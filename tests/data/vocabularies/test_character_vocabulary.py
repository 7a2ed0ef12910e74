"""Symbols: those that occur in a text, bytes or characters, and no others."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brt.data.sources.base import Document
from brt.data.vocabularies.characters import CharacterVocabulary, symbol_list

texts = st.lists(st.sampled_from("aab\n\t é€𝄞"), min_size=1, max_size=40).map("".join)


def made(path, data, unit="byte", unknown=False):
    """A vocabulary of the symbols of some bytes."""
    path.write_bytes(symbol_list([Document("text", data)], unit, unknown))
    return CharacterVocabulary(str(path))


@pytest.mark.parametrize("unit", ["byte", "character"])
@settings(deadline=None, derandomize=True, max_examples=20)
@given(text=texts)
def test_symbols_are_listed_by_falling_count_and_text_comes_back(tmp_path_factory, unit, text):
    data = text.encode()
    vocabulary = made(tmp_path_factory.mktemp("symbols") / "list.txt", data, unit)
    symbols = list(data) if unit == "byte" else [ord(character) for character in text]
    plain = sorted(Counter(symbols).items(), key=lambda item: (-item[1], item[0]))
    order = [code for code, _ in plain]
    ids = vocabulary.encode(data, "any")
    assert vocabulary.size == len(order)
    assert ids.dtype == np.int32
    assert [order[i] for i in ids] == symbols
    assert vocabulary.decode(ids) == text


@pytest.mark.parametrize(("unit", "where"), [("byte", "0xc3 at byte 2"), ("character", "U\\+00E9")])
def test_a_symbol_that_is_not_listed_is_refused_with_its_place(tmp_path, unit, where):
    vocabulary = made(tmp_path / "list.txt", b"ab", unit)
    assert vocabulary.unknown_id is None and vocabulary.special_ids == {}
    with pytest.raises(ValueError, match=rf"'Emma' has {where}.*SymbolCounting\.splits"):
        vocabulary.encode("abé".encode(), "Emma")


@pytest.mark.parametrize(("unit", "unknown_ids"), [("byte", 2), ("character", 1)])
def test_an_unknown_symbol_has_an_id_where_it_is_listed(tmp_path, unit, unknown_ids):
    vocabulary = made(tmp_path / "list.txt", b"ab", unit, unknown=True)
    ids = vocabulary.encode("aéb".encode(), "any").tolist()
    assert ids == [0, *[2] * unknown_ids, 1]
    assert vocabulary.special_ids == {"<unk>": 2}
    assert vocabulary.decode(ids) == f"a{chr(0xFFFD) * unknown_ids}b"


def test_fingerprints_tell_lists_apart_and_forget_counts(tmp_path):
    lists = [b"aab", b"aaaabb", b"abb"]
    prints = [made(tmp_path / f"{n}.txt", data).fingerprint for n, data in enumerate(lists)]
    assert prints[0] == prints[1] != prints[2]
    assert prints[0] != made(tmp_path / "c.txt", b"aab", "character").fingerprint
