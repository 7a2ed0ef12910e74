"""Published corpora: the right files, cut where the papers cut them, and wrong files refused."""

from collections import Counter

import pytest
from test_selections import parallel

from brt.data.sources.published import (
    Enwik8,
    OneBillionWord,
    PennTreebank,
    Text8,
    WikiText2,
    WikiText103,
)

SPLITS = ["train", "validation", "test"]


def data(source, split):
    return [document.data for document in source.documents(split)]


def resize(monkeypatch, make, **sizes):
    monkeypatch.setattr(make, "sizes", sizes)


# enwik8, text8


@pytest.fixture(params=[Enwik8, Text8])
def cut(request, tmp_path, monkeypatch):
    """A source of one file, with the sizes of a small one."""
    resize(monkeypatch, request.param, bytes=(90, 5, 5))
    content = bytes(range(100))
    (tmp_path / request.param.file).write_bytes(content)
    return request.param, tmp_path, content


def test_one_file_is_cut_into_the_splits_in_order(cut):
    make, folder, content = cut
    for path in [folder, folder / make.file]:
        source = make(str(path))
        assert data(source, "train") == [content[:90]]
        assert data(source, "validation") == [content[90:95]]
        assert data(source, "test") == [content[95:]]
        for split in SPLITS:
            assert source.count(split) == 1
            assert parallel(source, split) == list(source.documents(split))


@pytest.mark.parametrize("size", [99, 101])
def test_a_file_of_another_size_is_refused_with_both_sizes(cut, size):
    make, folder, _ = cut
    (folder / make.file).write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"{size} bytes .* 100: .*mattmahoney"):
        next(make(str(folder)).documents("train"))


def test_enwik8_without_line_feeds_has_the_published_symbols(tmp_path, monkeypatch):
    resize(monkeypatch, Enwik8, bytes=(90, 5, 5))
    content = b"<page>\n\n  caf\xc3\xa9 \n" * 7
    (tmp_path / "enwik8").write_bytes(content[:100])
    source = Enwik8(str(tmp_path), line_feeds=False)
    # The published preparation writes numbers between spaces and line ends for line feeds; its
    # loader strips each line and splits it.
    written = " ".join(str(c) if c != ord("\n") else "\n" for c in content[:90])
    loaded = [int(symbol) for line in written.split("\n") for symbol in line.strip().split()]
    assert list(data(source, "train")[0]) == loaded
    assert source.description("train") != Enwik8(str(tmp_path)).description("train")


# WikiText, Penn Treebank

TEXT = (
    " \n = First = \n \n Words , a <unk> . \n = = Part = = \n \n = not = \n a title \n"
    " \n = Second = one = \n \n More caf\u00e9 \u00a0 . \n = 1 / s and k = \n \n x \n"
).encode()
FIRST = TEXT[: TEXT.index(b" = Second")]
TOKENS = len(TEXT.decode().split()) + TEXT.count(b"\n")


@pytest.fixture(params=[(WikiText103, False), (WikiText2, False), (WikiText2, True)])
def wikitext(request, tmp_path, monkeypatch):
    make, raw = request.param
    resize(monkeypatch, make, lines=(TEXT.count(b"\n"),) * 3, tokens=(TOKENS,) * 3)
    for name in ["train", "valid", "test"]:
        (tmp_path / f"wiki.{name}.{'raw' if raw else 'tokens'}").write_bytes(TEXT)
    return lambda **settings: make(str(tmp_path), raw=raw, **settings)


@pytest.mark.parametrize("split", SPLITS)
def test_wikitext_is_one_document_a_split(wikitext, split):
    assert data(wikitext(), split) == [TEXT]
    assert wikitext().count(split) == 1


def test_an_article_begins_at_a_title_between_blank_lines(wikitext):
    source = wikitext(articles=True)
    assert [d.title for d in source.documents("train")] == ["First", "Second = one"]
    assert data(source, "train") == [FIRST, TEXT[len(FIRST) :]]
    assert source.count("train") is None
    assert parallel(source, "test") == list(source.documents("test"))


def test_penn_treebank_is_one_file_a_split(tmp_path, monkeypatch):
    resize(monkeypatch, PennTreebank, lines=(2, 2, 2), tokens=(7, 7, 6))
    for name in ["train", "valid", "test"]:
        (tmp_path / f"ptb.{name}.txt").write_text(f" the {name} N \n a <unk> \n")
    source = PennTreebank(str(tmp_path))
    assert data(source, "validation") == [b" the valid N \n a <unk> \n"]
    assert parallel(source, "train") == list(source.documents("train"))
    with pytest.raises(ValueError, match=r"7 .* 6"):
        next(source.documents("test"))
    with pytest.raises(ValueError, match="'valid'"):
        next(source.documents("valid"))
    with pytest.raises(FileNotFoundError, match=r"ptb\.train\.txt"):
        next(PennTreebank(str(tmp_path / "x")).documents("train"))


# One Billion Word


@pytest.fixture
def billion(tmp_path, monkeypatch):
    monkeypatch.setattr(OneBillionWord, "shards", range(1, 6))
    monkeypatch.setattr(OneBillionWord, "held_out_lines", 3)
    names = [OneBillionWord.file.format(n) for n in OneBillionWord.shards]
    for path in [*names, OneBillionWord.held_out]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        lines = 3 if path == OneBillionWord.held_out else 20
        (tmp_path / path).write_text("".join(f"{path[-14:]} {n} .\n" for n in range(lines)))
    return tmp_path


def sentences(source, split="train"):
    return [line for text in data(source, split) for line in text.splitlines()]


def test_every_sentence_comes_once_in_an_order_of_the_seed(billion):
    shards = [(billion / OneBillionWord.file.format(n)).read_bytes() for n in range(1, 6)]
    orders = [sentences(OneBillionWord(str(billion), seed=seed)) for seed in range(3)]
    for order in orders:
        assert Counter(order) == Counter(b"".join(shards).splitlines())
    assert len({tuple(order) for order in orders}) == 3
    titles = [[d.title for d in OneBillionWord(str(billion), s).documents("train")] for s in (1, 2)]
    assert titles[0] != titles[1] and set(titles[0]) == set(titles[1])
    assert orders[1] == sentences(OneBillionWord(str(billion), seed=1))
    numbers = []
    for document in OneBillionWord(str(billion)).documents("train"):
        numbers.append([line.split()[-2] for line in document.data.splitlines()])
        shard = (billion / OneBillionWord.file).parent / document.title
        assert document.data != shard.read_bytes()
        assert sorted(document.data.splitlines()) == sorted(shard.read_bytes().splitlines())
    assert len({tuple(order) for order in numbers}) == 5  # each shard has an order of its own


def test_validation_and_test_are_held_out_shard_0_as_it_is(billion):
    source = OneBillionWord(str(billion))
    held_out = (billion / OneBillionWord.held_out).read_bytes()
    assert data(source, "validation") == data(source, "test") == [held_out]
    assert source.count("train") == 5 and source.count("test") == 1
    for split in SPLITS:
        assert parallel(source, split) == list(source.documents(split))
