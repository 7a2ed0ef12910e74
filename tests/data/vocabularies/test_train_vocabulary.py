"""Making vocabularies: the same file for the same text and seed, from text read once."""

import hashlib
import itertools
from collections import Counter

import pytest
from sentencepiece import SentencePieceProcessor
from stores import Texts
from tiny_run import command, write_config

from brt import prepare
from brt.data.sources import files
from brt.data.sources.base import Document
from brt.data.sources.files import TextFiles
from brt.data.sources.selections import FirstTokens
from brt.data.vocabularies import training as made_by
from brt.data.vocabularies.base import SentencePieceVocabulary
from brt.data.vocabularies.characters import CharacterVocabulary
from brt.data.vocabularies.report import report, sample_text
from brt.data.vocabularies.subwords import SubwordVocabulary
from brt.data.vocabularies.training import (
    SentencePieceTraining,
    SubwordTraining,
    SymbolCounting,
    WordCounting,
    sample_lines,
    train_vocabulary,
)
from brt.data.vocabularies.words import WordVocabulary
from brt.storage.file_parts import FileBytes
from brt.storage.paths import RemotePath

TEXT = "\n".join(
    f"{a}{b} {b}  {a}{a} {number * 37}\t{a}!"
    for number, (a, b) in enumerate([("ka", "to"), ("mi", "re"), ("su", "no"), ("vel", "dan")] * 8)
)


def made(vocabulary, training, source):
    train_vocabulary(vocabulary, training, source)
    return vocabulary


def trained(path, size=60, text=TEXT, **settings):
    training = SentencePieceTraining(size, **settings)
    return made(SentencePieceVocabulary(str(path)), training, Texts(train=[text.encode()]))


# SentencePiece.


def test_the_same_text_and_seed_give_the_same_bytes(tmp_path):
    first = trained(tmp_path / "first.model", max_lines=20, seed=1)
    again = trained(tmp_path / "elsewhere" / "again.model", max_lines=20, seed=1)
    other = trained(tmp_path / "other.model", max_lines=20, seed=2)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    content = (tmp_path / "first.model").read_bytes()
    assert hashlib.sha256(content).hexdigest() == first.fingerprint
    files = {path.name for path in tmp_path.rglob("*.*")}
    assert files == {"first.model", "again.model", "other.model"}


def test_models_have_the_settings_of_the_published_ones(tmp_path):
    vocabulary = trained(tmp_path / "pg19.model", keep_whitespace=False)
    assert vocabulary.special_ids == {"<unk>": 0} and vocabulary.unknown_id == 0
    processor = SentencePieceProcessor(model_file=vocabulary.path)
    pieces = [processor.id_to_piece(i) for i in range(vocabulary.size)]
    # Merges within words and of spaces alone, then characters; digits apart, and no bytes.
    assert " ".join(pieces) == (
        "<unk> el ka mi su ▁▁ vel an no re to dan ▁ka ▁mi ▁su ▁vel ▁no ▁re ▁to kaka mimi susu ▁dan "
        "▁kato ▁mire ▁suno velvel ▁veldan ak at da im ir ld ▁ a e ! i k l m n o s u v 1 d r t 7 4 "
        "2 5 8 9 0 3 6"
    )
    found = report(vocabulary, TEXT.encode())
    assert found.lost == ["tabs", "newlines"]


@pytest.mark.parametrize("symbols", ["<sep>,<cls>", ["<sep>", "<cls>"]])
def test_white_space_and_own_symbols_are_pieces(tmp_path, symbols):
    options = {"user_defined_symbols": symbols}
    vocabulary = trained(tmp_path / "white.model", options=options)
    found = report(vocabulary, TEXT.encode())
    assert found.exact and not found.lost
    processor = SentencePieceProcessor(model_file=vocabulary.path)
    pieces = [processor.id_to_piece(i) for i in range(vocabulary.size)]
    assert {"<sep>", "<cls>", "\n", "\t"} <= set(pieces)


def test_a_file_that_exists_is_never_replaced(tmp_path):
    (tmp_path / "old.model").write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=r"old\.model exists.*another file"):
        trained(tmp_path / "old.model")
    assert (tmp_path / "old.model").read_bytes() == b"precious"


def test_a_vocabulary_is_made_in_a_bucket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, training = RemotePath("memory://vocabularies/b.txt"), SymbolCounting(splits=("train",))
    vocabulary = made(CharacterVocabulary(str(file)), training, Texts(train=[b"abc"]))
    assert vocabulary.size == 3 and not list(tmp_path.iterdir())
    with pytest.raises(FileExistsError, match=str(file)):
        made(vocabulary, training, Texts(train=[b"abc"]))
    file.unlink()


# The sample.


def cut(lines, ends):
    """Yields the lines in documents that end after `ends` lines."""
    edges = [0, *sorted(ends), len(lines)]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        yield Document(str(number), "\n".join(lines[start:stop]).encode() + b"\n")


@pytest.mark.parametrize("count", [1, 3, 40, 200])
def test_the_sample_does_not_depend_on_where_documents_end(count):
    lines = [f"line {n}" for n in range(100)]
    samples = [sample_lines(cut(lines, b), count, 5, 99) for b in ([], [1, 2, 50], range(1, 100))]
    assert samples[0] == samples[1] == samples[2]
    assert len(samples[0]) == min(count, 100)
    assert set(samples[0]) <= set(lines) and len(set(samples[0])) == len(samples[0])
    if count > 100:
        assert samples[0] == lines


@pytest.mark.parametrize("count", [1, 4, 15])
def test_every_line_is_drawn_equally_often(count):
    lines = [f"{n}" for n in range(20)]
    documents, draws = list(cut(lines, [7])), 1500
    counts = Counter(
        line for seed in range(draws) for line in sample_lines(documents, count, seed, 99)
    )
    share = count / 20
    deviation = (draws * share * (1 - share)) ** 0.5
    assert counts.total() == draws * count
    assert max(abs(counts[line] - draws * share) for line in lines) < 4 * deviation


# Counted vocabularies.


def test_words_and_symbols_are_counted_over_the_splits_named(tmp_path):
    source = Texts(train=[b"a b a\n", b"c\n"], validation=[b"d\n"], test=["é\n".encode()])
    words = made(WordVocabulary(str(tmp_path / "words.txt")), WordCounting(), source)
    assert (tmp_path / "words.txt").read_text() == "<eos> 2\na 2\nb 1\nc 1\n<unk> 0\n"
    assert source.reads == {"train": 1}
    symbols = made(CharacterVocabulary(str(tmp_path / "bytes.txt")), SymbolCounting(), source)
    assert symbols.size == len({*"a b a\nc\nd\né\n".encode()})
    assert source.reads == {"train": 2, "validation": 1, "test": 1}
    few = SymbolCounting("character", unknown=True, splits=("train",))
    characters = made(CharacterVocabulary(str(tmp_path / "few.txt")), few, source)
    assert characters.encode("éa".encode(), "any").tolist()[0] == characters.unknown_id
    assert words.encode(b"d", "any")[0] == words.unknown_id


@pytest.mark.filterwarnings("ignore")  # TensorFlow's own, while it is imported
def test_subwords_are_built_and_give_text_back(tmp_path):
    pytest.importorskip("tensorflow_datasets", reason='needs pip install -e ".[data]"')
    vocabulary = SubwordVocabulary(str(tmp_path / "s.subwords"))
    made(vocabulary, SubwordTraining(size=300), Texts(train=[TEXT.encode()] * 3))
    found = report(vocabulary, TEXT.encode())
    assert found.exact and 257 < vocabulary.size < 400
    assert found.bytes / found.tokens > 1.1
    assert [path.name for path in tmp_path.iterdir()] == ["s.subwords"]


# From gin and from the command line.


def test_the_command_makes_a_vocabulary_and_describes_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "book.txt").write_text(TEXT)
    flags = [
        f"--gin_file={write_config(tmp_path, without=['Corpus.vocabulary'])}",
        f"--gin.TextFiles.path='{tmp_path}/texts'",
        f"--gin.Corpus.vocabulary='{tmp_path}/made.model'",
        "--gin.vocabulary_size=@corpus_vocabulary_size()",
        "--gin.BlockRecurrentTransformer.vocabulary_size=%vocabulary_size",
    ]
    size = "--gin.SentencePieceTraining.size=60"
    assert command(monkeypatch, prepare, *flags, size, "--train_vocabulary") == 0
    first, table = capsys.readouterr().out.split("\n", 1)
    assert first == f"{tmp_path}/made.model is made"
    same = trained(tmp_path / "same.model")
    assert f"sentencepiece:made.model ({same.fingerprint:.12})" in table
    assert command(monkeypatch, prepare, *flags, "--describe_vocabulary") == 0
    assert capsys.readouterr().out == table
    assert not (tmp_path / "stores").exists()


class Large(bytes):
    def __getitem__(self, part):
        assert len(range(*part.indices(len(self)))) < 200 < len(self)
        return super().__getitem__(part)


def test_a_large_text_is_sampled_in_parts(monkeypatch):
    monkeypatch.setattr(made_by, "PIECE", 100)
    documents = [Document("text", Large(TEXT.encode()))]
    assert sample_lines(documents, 99, 0, 4192) == TEXT.split("\n")


@pytest.mark.parametrize(
    ("make", "training"),
    [
        (SentencePieceVocabulary, SentencePieceTraining(60)),
        (WordVocabulary, WordCounting()),
        (CharacterVocabulary, SymbolCounting("character")),
        (CharacterVocabulary, SymbolCounting("byte")),
    ],
    ids=["pieces", "words", "characters", "bytes"],
)
def test_a_text_read_in_parts_gives_the_same_vocabulary(tmp_path, monkeypatch, make, training):
    training.splits = ("train",)
    (tmp_path / "text.txt").write_text(TEXT)
    source = TextFiles(str(tmp_path))
    read = made(make(str(tmp_path / "read.model")), training, source)
    monkeypatch.setattr(files, "WHOLE", 10)
    assert isinstance(next(source.documents("train")).data, FileBytes)
    mapped = made(make(str(tmp_path / "mapped.model")), training, source)
    assert mapped.fingerprint == read.fingerprint
    assert len(next(FirstTokens(source, mapped, {"train": 5}).documents("train")).tokens) == 5
    assert sample_text(source.documents("train")) == TEXT.encode()
