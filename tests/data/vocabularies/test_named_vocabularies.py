"""Strings that name vocabularies: one form for each kind, and no guesses."""

import pytest

from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.vocabularies.named import KINDS, named_vocabulary


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_and_a_path_name_its_class_and_open_nothing(kind):
    vocabulary = Corpus("store", TextFiles("x"), f"{kind}:absent/file.txt").vocabulary
    assert type(vocabulary) is KINDS[kind]
    assert "absent/file.txt" in vars(vocabulary).values()
    assert vocabulary.name.startswith(kind)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("byte", "bytes"), ("word:list.txt", "words"), ("words:", "words"), ("list.txt", None)],
)
def test_anything_else_is_refused_with_all_forms(text, nearest):
    with pytest.raises(ValueError, match=r"KIND:PATH .*sentencepiece, words") as e:
        named_vocabulary(text)
    assert (f"is {nearest} meant" in str(e.value)) == (nearest is not None)
