"""Selections: first documents, first tokens, the text between Gutenberg's marks."""

import os
import pickle
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stores import Texts, Words

from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.sources.selections import FirstDocuments, FirstTokens, GutenbergText, UnwrappedLines


@pytest.fixture
def books(tmp_path):
    for split in ["train", "validation"]:
        (tmp_path / split).mkdir()
        for number in [10, 9, 100, 2]:
            (tmp_path / split / f"{number}.txt").write_text(
                f"book  {number} of\n{split} caf\u00e9s"
            )
    return TextFiles(f"{tmp_path}/{{split}}")


def parallel(source, split):
    """The documents as other processes would read them."""
    parts = pickle.loads(pickle.dumps(source.parts(split)))
    assert all(os.path.isfile(path) for part in parts for path in source.files(part))
    return [pickle.loads(pickle.dumps(source)).read(part) for part in parts]


def same(a, b):
    assert [d._replace(tokens=None) for d in a] == [d._replace(tokens=None) for d in b]
    assert [list(d.tokens) if d.tokens is not None else None for d in a] == [
        list(d.tokens) if d.tokens is not None else None for d in b
    ]


def test_the_first_documents_are_those_of_the_first_names(books):
    source = FirstDocuments(books, {"train": 3})
    assert [d.title for d in source.documents("train")] == ["10", "100", "2"]
    assert source.count("train") == 3
    assert list(source.documents("validation")) == list(books.documents("validation"))
    assert source.count("validation") == 4
    for split in ["train", "validation"]:
        same(parallel(source, split), list(source.documents(split)))


def test_the_first_tokens_are_those_of_the_whole_document(books):
    source = FirstTokens(books, Words(), {"validation": 3})
    for document, whole in zip(source.documents("validation"), books.documents("validation")):
        assert list(document.tokens) == list(Words().encode(whole.data, ""))[:3]
        assert document.data == whole.data[: whole.data.index(b"of") + 1]
    assert list(source.documents("train")) == list(books.documents("train"))
    for split in ["train", "validation"]:
        same(parallel(source, split), list(source.documents(split)))


class Annotated(Texts):
    def documents(self, split):
        return (d._replace(annotation=self.annotation) for d in super().documents(split))


def test_a_shortened_text_keeps_its_label_but_no_positions():
    texts = Annotated(test=[b"a b c d"])
    first = FirstTokens(texts, Words(), {"test": 2})
    texts.annotation = {"id": "1", "label": 1, "classes": 3}
    (document,) = first.documents("test")
    assert (document.annotation, len(document.tokens)) == (texts.annotation, 2)
    for positions in ({"spans": [(1, 2)]}, {"length": 4, "answers": [(2, 3, 1)]}):
        texts.annotation = positions
        with pytest.raises(ValueError, match=r"FirstTokens\.first = 2"):
            list(first.documents("test"))


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40), st.integers(1, 20))
def test_the_text_of_the_first_tokens_is_the_shortest(text, first):
    data = text.encode("utf-8", "replace")
    (document,) = FirstTokens(Texts(test=[data]), Words(), {"test": first}).documents("test")
    begins = list(accumulate((c.encode() for c in data.decode()), initial=b""))
    enough = [begin for begin in begins if len(Words().encode(begin, "")) >= first]
    assert document.data == (enough[0] if len(Words().encode(data, "")) > first else data)


def test_selections_nest_and_a_store_says_what_was_taken(books, tmp_path):
    source = FirstTokens(FirstDocuments(books, {"train": 2}), Words(), {"train": 1})
    same(parallel(source, "train"), list(source.documents("train")))
    corpus = Corpus(str(tmp_path / "stores"), source)
    corpus.prepare("train", quiet=True)
    manifest = corpus.open("train").manifest
    assert (manifest["documents"], manifest["tokens"], manifest["words"]) == (2, 2, 2)
    assert manifest["source"]["first_documents"] == 2
    assert manifest["source"]["first_tokens"] == 1


BODY = b"\nTitle\n\nThe text *** of a book.\nThe End of the Project\n\n"
NEW = (
    b"The Project Gutenberg EBook\n*** START OF THIS PROJECT GUTENBERG EBOOK TITLE ***\n%s"
    b"End of the Project Gutenberg EBook of Title\n\n"
    b"*** END OF THIS PROJECT GUTENBERG EBOOK TITLE ***\nlicence\n"
)
LONG = (
    b"head\n***START OF THE PROJECT GUTENBERG EBOOK A TITLE\nOF TWO LINES***\n%s"
    b"***END OF THE PROJECT GUTENBERG EBOOK A TITLE\nOF TWO LINES***\nlicence\n"
)
OLD = (
    b"***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nlegal\n"
    b"*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n%s"
    b"End of this Project Gutenberg Etext of Title\n"
)


@pytest.mark.parametrize("form", [NEW, LONG, OLD])
def test_gutenbergs_header_and_footer_are_cut_at_their_marks(form):
    (document,) = GutenbergText(Texts(train=[form % BODY])).documents("train")
    assert document.data == BODY


def test_the_ends_of_volumes_inside_a_collection_are_kept():
    body = BODY + b"End of Project Gutenberg's Volume 1\n" + b"words " * 500 + b"\n"
    (document,) = GutenbergText(Texts(train=[NEW % body])).documents("train")
    assert document.data == body


@pytest.mark.parametrize("selection", [GutenbergText, UnwrappedLines])
def test_a_change_of_text_refuses_documents_with_tokens(selection, books):
    source = selection(FirstTokens(books, Words(), {"train": 3}))
    assert len(list(source.documents("validation"))) == 4
    with pytest.raises(ValueError, match=rf"{selection.__name__}\.source"):
        next(source.documents("train"))


def unwrapped_line_by_line(data):
    """The same by a loop over lines."""
    lines = data.split(b"\n")
    text = lines[0]
    for before, line in pairwise(lines):
        goes_on = before.strip() and line.strip() and not line[:1].isspace()
        text = text.rstrip(b" \t\r") + b" " + line if goes_on else text + b"\n" + line
    return text


@given(st.lists(st.sampled_from([b"one", b"two words", b"", b"  verse", b"end \t", b"c\r", b" "])))
@example([b"Call me", b"Ishmael. Some", b"", b"  years", b"ago", b""])
def test_a_paragraph_is_one_line_and_verse_and_empty_lines_stay(lines):
    data = b"\n".join(lines)
    (document,) = UnwrappedLines(Texts(train=[data])).documents("train")
    assert document.data == unwrapped_line_by_line(data)
