"""Word-level vocabularies: counted, ordered by frequency, with symbols for lines."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import SHARED

from brt.data.sources.base import Document
from brt.data.vocabularies.training import WordCounting
from brt.data.vocabularies.words import WordVocabulary

WIKITEXT = SHARED / "data" / "wikitext-103-eval.tar.gz"
TEXT = "the cat sat\n\nthe dog sat the\n"
words_text = st.lists(st.sampled_from(["a", "bb", "é", "<unk>", " ", "\n", "\t"]), max_size=30)


def made(path, text, min_count=1, max_size=None, **settings):
    """A vocabulary whose list was counted over one text."""
    vocabulary = WordVocabulary(str(path), **settings)
    documents = [Document("text", text.encode())]
    path.write_bytes(WordCounting(min_count, max_size).make(vocabulary, documents))
    return vocabulary


def listed(vocabulary):
    return [line.split() for line in Path(vocabulary.file).read_text(encoding="utf-8").splitlines()]


def test_words_fall_by_count_and_then_by_code_point(tmp_path):
    vocabulary = made(tmp_path / "words.txt", TEXT)
    assert listed(vocabulary) == [
        *(["<eos>", "3"], ["the", "3"], ["sat", "2"]),
        *(["cat", "1"], ["dog", "1"], ["<unk>", "0"]),
    ]
    assert vocabulary.size == 6
    assert vocabulary.special_ids == {"<unk>": 5, "<eos>": 0}
    assert vocabulary.unknown_id == 5


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(words_text.map("".join), min_size=1, max_size=5), st.randoms())
def test_the_list_depends_on_the_counts_alone(texts, random):
    vocabulary = WordVocabulary("unused")
    shuffled = random.sample(texts, len(texts))
    lists = [
        WordCounting().make(vocabulary, [Document("", t.encode()) for t in order])
        for order in (texts, shuffled)
    ]
    assert lists[0] == lists[1]
    plain = Counter(word for text in texts for word in text.split())
    plain["<eos>"] += sum(len(text.splitlines()) for text in texts)
    found = dict(line.split() for line in lists[0].decode().splitlines())
    assert {word: int(count) for word, count in found.items()} == {"<unk>": 0, **plain}
    counts = [int(count) for count in found.values()]
    assert counts == sorted(counts, reverse=True)


def test_rare_words_are_counted_as_the_unknown_word(tmp_path):
    vocabulary = made(tmp_path / "words.txt", TEXT, min_count=2)
    assert listed(vocabulary) == [["<eos>", "3"], ["the", "3"], ["<unk>", "2"], ["sat", "2"]]
    largest = made(tmp_path / "few.txt", TEXT + "<unk>\n", max_size=3)
    assert listed(largest) == [["<unk>", "5"], ["<eos>", "4"], ["the", "3"]]
    with pytest.raises(ValueError, match="max_size = 2"):
        made(tmp_path / "none.txt", TEXT, max_size=2)


def test_ids_are_those_of_a_plain_loop(tmp_path):
    vocabulary = made(tmp_path / "words.txt", TEXT)
    order = [word for word, _ in listed(vocabulary)]
    ids = vocabulary.encode(b"the bird\nsat", "new")
    assert ids.dtype == np.int32
    assert [order[i] for i in ids] == ["the", "<unk>", "<eos>", "sat", "<eos>"]


def test_lines_come_back_with_one_space_between_words(tmp_path):
    vocabulary = made(tmp_path / "words.txt", TEXT)
    assert vocabulary.decode(vocabulary.encode(b" the  cat \n\n sat", "any")) == "the cat\n\nsat\n"
    with pytest.raises(ValueError, match=r"Token id 6 is not in vocabulary 'words:words\.txt'"):
        vocabulary.decode([6])


def test_sentences_stand_between_their_marks(tmp_path):
    marks = {"before_line": "<S>", "after_line": "<S>", "unknown": "<UNK>"}
    vocabulary = made(tmp_path / "words.txt", "a b\nc\n", **marks)
    order = [word for word, _ in listed(vocabulary)]
    ids = vocabulary.encode(b"a d\nc\n", "any")
    assert [order[i] for i in ids] == ["<S>", "a", "<UNK>", "<S>", "<S>", "c", "<S>"]
    assert vocabulary.decode(ids) == "a <UNK>\nc\n"


@pytest.mark.skipif(not WIKITEXT.exists(), reason="needs WikiText-103's validation split")
def test_wikitext_103_has_its_official_number_of_tokens(tmp_path):
    import tarfile

    with tarfile.open(WIKITEXT) as archive:
        data = archive.extractfile("wikitext-103-eval/wiki.valid.tokens").read()
    vocabulary = made(tmp_path / "words.txt", data.decode())
    assert len(vocabulary.encode(data, "validation")) == 217_646
