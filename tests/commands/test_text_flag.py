"""--text: a corpus from a path alone, for every command that reads one."""

import gzip
import itertools
import json
import sys

import fsspec
import pytest
from tiny_run import PLAIN, command, write_config, write_corpus

from brt import evaluate, prepare, train
from brt.data.sources.text import Text
from brt.data.stores.token_store import TokenStore
from brt.data.text_flag import text_bindings


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The path of a model config, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    lines = [*PLAIN, "BlockRecurrentTransformer.vocabulary_size = %vocabulary_size"]
    lines += ["Trainer.steps = 2", "Trainer.eval_every = 0"]
    return write_config(tmp_path, *lines)


def content(text, ending):
    return text if ending.endswith("txt") else json.dumps({"text": text})


def texts(path, split):
    return [bytes(document.data[:]) for document in Text(str(path)).documents(split)]


def test_text_trains_and_evaluates_other_text(config, tmp_path, monkeypatch):
    (tmp_path / "one.txt").write_text("a line of text\n" * 900)
    rows = "".join(json.dumps({"text": "another text " * 20}) + "\n" for _ in range(120))
    (tmp_path / "rows.jsonl").write_text(rows)
    flags = [f"--gin_file={config}", "--text=one.txt", "--workdir=run"]
    assert command(monkeypatch, train, *flags) == 0
    store = TokenStore(tmp_path / "stores" / "one_txt" / "train")
    assert store.manifest["bytes"] == 900 * 15 * 9 // 10
    assert "vocabulary_size = 256" in (tmp_path / "run" / "config.gin").read_text()
    assert "TextFiles" not in (tmp_path / "run" / "config.gin").read_text()
    assert command(monkeypatch, train, *flags, "--eval_only") == 0  # the text is the run's own
    (tmp_path / "run" / "evaluation_validation.json").unlink()
    assert command(monkeypatch, evaluate, "--workdir=run") == 0  # by the run folder alone
    (tmp_path / "run" / "evaluation_validation.json").unlink()
    assert command(monkeypatch, evaluate, "--workdir=run", "--text=rows.jsonl") == 0
    assert not (tmp_path / "run" / "evaluation_validation.json").exists()
    record = tmp_path / "run" / "evaluation_own_text_rows_jsonl_validation.json"
    figures = json.loads(record.read_text())
    assert figures["documents"] == 6 and figures["bytes"] == 6 * 13 * 20
    assert not [line for line in figures["given"] if line.endswith(".gin")]


def test_an_evaluation_reads_one_text_as_its_run_reads_texts(config, tmp_path, monkeypatch):
    assert command(monkeypatch, train, f"--gin_file={config}", "--text=texts", "--workdir=run") == 0
    (tmp_path / "one.txt").write_text("a line of text\n" * 900)
    assert command(monkeypatch, evaluate, "--workdir=run", "--text=one.txt") == 0
    record = tmp_path / "run" / "evaluation_own_text_one_txt_validation.json"
    figures = json.loads(record.read_text())
    assert figures["scored_tokens"] == figures["tokens"]  # the first one, too


def test_texts_named_in_any_script_have_stores_of_their_own():
    names = "книги", "роман", "本", "naïve book.txt", "roman"
    stores = {text_bindings(f"texts/{name}")[3] for name in names}
    assert len(stores) == 5 and 'Corpus.store = "stores/naïve_book_txt"' in stores


def test_bindings_override_what_text_is_short_for(config, tmp_path, monkeypatch):
    flags = [f"--gin_file={config}", "--text=texts", "--splits=validation"]
    assert command(monkeypatch, prepare, *flags, '--gin.Corpus.store="elsewhere"') == 0
    assert TokenStore(tmp_path / "elsewhere" / "validation").num_documents > 0


def test_text_replaces_the_mixture_of_a_config(config, tmp_path, monkeypatch):
    lines = (
        *("Trainer.corpus = @Mixture()", "Mixture.corpora = [@a/Corpus()]"),
        *("Mixture.weights = [1]", 'a/Corpus.store = "mixed"'),
        *("a/Corpus.source = @a/TextFiles()", 'a/TextFiles.path = "a"'),
    )
    path = write_config(tmp_path, *lines, without=("RecurrentCell",))
    flags = [f"--gin_file={path}", "--text=texts", "--splits=validation"]
    assert command(monkeypatch, prepare, *flags) == 0
    assert (tmp_path / "stores" / "texts").exists() and not (tmp_path / "mixed").exists()


def test_a_missing_text_is_named(config, monkeypatch, capfd):
    assert command(monkeypatch, prepare, f"--gin_file={config}", "--text=gone.txt") == 1
    assert "gone.txt" in capfd.readouterr().err


def test_folders_are_divided_by_name_or_by_position(tmp_path):
    write_corpus(tmp_path / "split")
    names = sorted((tmp_path / "split" / "test").iterdir())
    assert texts(tmp_path / "split", "test") == [path.read_bytes() for path in names]
    deep = tmp_path / "plain" / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(200):
        (deep / f"{number:03}.txt").write_text(f"{number}\n")
    assert texts(tmp_path / "plain", "validation") == [b"%d\n" % n for n in range(180, 190)]


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_names_with_brackets_are_no_patterns(ending, tmp_path):
    file = tmp_path / "books [old]" / f"a [1].{ending}"
    file.parent.mkdir()
    text = "a line of text\n" * 100
    file.write_text(content(text, ending))
    for path in (file, file.parent):
        splits = [texts(path, split) for split in ("train", "validation", "test")]
        assert b"".join(itertools.chain(*splits)) == text.encode()


@pytest.mark.parametrize(
    "names", [("test-driven", "a"), ("test_a", "test_b"), ("valid.x",), ("train-of-thought", "b")]
)
@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_titles_that_begin_like_a_split_divide_nothing(names, ending, tmp_path):
    for name in names:
        (tmp_path / f"{name}{ending}").write_text(content("a line of text\n" * 100, ending))
    splits = [texts(tmp_path, split) for split in ("train", "validation", "test")]
    assert len(b"".join(itertools.chain(*splits))) == 1500 * len(names)
    assert all(splits)


FORMS = ["{}", "{}/a", "{}-00", "{}/deep/a", "deep/{}/a", "{}/test"]


@pytest.mark.parametrize("form", [f"{form}.{end}" for form in FORMS for end in ("txt", "jsonl")])
@pytest.mark.parametrize("validation", ["valid", "validation"])
def test_files_and_folders_named_after_splits_divide(form, validation, tmp_path):
    for name, split in (("train", "train"), (validation, "validation"), ("test", "test")):
        file = tmp_path / form.format(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content(split, form))
    for split in ("train", "validation", "test"):
        assert texts(tmp_path, split) == [split.encode()]


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
@pytest.mark.parametrize("storage", ["{}", "memory:/{}"])
def test_a_split_in_the_path_may_be_a_folder(ending, storage, tmp_path):
    root = storage.format(tmp_path)
    for split in ("train", "test"):
        with fsspec.open(f"{root}/{split}/deep/a.{ending}", "w", auto_mkdir=True) as file:
            file.write(content(split, ending))
    with fsspec.open(f"{root}/about.json", "w") as file:
        file.write("{}")
    assert texts(f"{root}/{{split}}", "test") == [b"test"]
    assert texts(f"{root}/{{split}}/deep/a.{ending}", "train") == [b"train"]


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_empty_texts_are_skipped_by_the_binding_named(ending, tmp_path):
    for number in range(200):
        text = "" if number % 2 else f"text {number}"
        (tmp_path / f"{number:03}.{ending}").write_text(content(text, ending))
    with pytest.raises(ValueError, match=r"bind Text\.skip_empty = True"):
        texts(tmp_path, "train")
    source = Text(str(tmp_path), skip_empty=True)
    found = [document.data for document in source.documents("test")]
    assert found == [b"text %d" % n for n in range(190, 200, 2)]
    described = Text(str(tmp_path)).description("test")
    assert source.description("test") == described | {"skip_empty": True}


def test_files_that_are_not_read_are_counted(tmp_path, capfd):
    for name in ("train/a", "test/b", "notes", "more"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text("text")
    assert texts(tmp_path, "train") == [b"text"]
    assert "2 files that are not read, such as more.txt" in capfd.readouterr().err
    (tmp_path / "about.json").write_text('{\n "title": "texts"\n}')
    assert texts(tmp_path, "train") == [b"text"]
    assert "3 files that are not read, such as about.json" in capfd.readouterr().err
    (tmp_path / "about.json").unlink()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "a line of text\n" * 9}))
    assert texts(tmp_path, "train") != [b"text"]
    assert "4 files that are not read" in capfd.readouterr().err


@pytest.mark.parametrize("store", ["/dev/null/x", "file/x", "foreign"])
def test_a_dry_run_refuses_a_store_that_cannot_be_made(store, config, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("x")
    foreign = tmp_path / "foreign" / "train"
    foreign.mkdir(parents=True)
    (foreign / "a").write_text("x")
    flags = [f"--gin_file={config}", "--dry_run", "--text=texts", f"--gin.Corpus.store={store!r}"]
    assert command(monkeypatch, train, *flags) == 1
    assert store in capfd.readouterr().err


@pytest.mark.parametrize("name", ["rows.jsonl.zst", "rows.parquet"])
def test_a_dry_run_warns_of_a_missing_extra(name, config, tmp_path, monkeypatch, caplog):
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd rows")
    remove(monkeypatch, "pyarrow")
    assert command(monkeypatch, train, f"--gin_file={config}", f"--text={name}", "--dry_run") == 0
    assert "tables" in caplog.text


def remove(monkeypatch, *libraries):
    for module in {*libraries, *sys.modules}:
        if module.partition(".")[0] in libraries:
            monkeypatch.setitem(sys.modules, module, None)


WORDS = {"words/vocab.json": "{}", "words/merges.txt": "", "a.subwords": "### SubwordTextEncoder\n"}
NEEDS = {
    "TfdsText": ("tensorflow_datasets", "Corpus.source=@TfdsText()", 'TfdsText.name="pg19"'),
    "SeqioText": ("seqio", "Corpus.source=@SeqioText()", 'SeqioText.task="pg19"'),
    "ByteLevelBpe": ("tokenizers", 'Corpus.vocabulary="bpe:words"'),
    "Subword": ("tensorflow_datasets", 'Corpus.vocabulary="subwords:a.subwords"'),
}


@pytest.mark.parametrize("user", NEEDS)
def test_a_dry_run_warns_of_a_missing_library(user, config, tmp_path, monkeypatch, caplog):
    (tmp_path / "words").mkdir()
    for name, content in WORDS.items():
        (tmp_path / name).write_text(content)
    library, *bindings = NEEDS[user]
    remove(monkeypatch, library)
    flags = [f"--gin_file={config}", "--dry_run", *(f"--gin.{line}" for line in bindings)]
    assert command(monkeypatch, train, *flags, "--gin.vocabulary_size=257") == 0
    assert library in caplog.text and user in caplog.text


def test_a_step_larger_than_the_memory_is_refused(config, monkeypatch, capfd):
    flags = f"--gin_file={config}", "--text=texts", "--dry_run"
    size = "--gin.Trainer.tokens_per_step=2000000000"
    assert command(monkeypatch, train, *flags, size) == 1
    assert "Trainer.tokens_per_step" in capfd.readouterr().err


def test_a_folder_of_compressed_text_names_its_files(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a line of text\n"))
    with pytest.raises(FileNotFoundError, match=r"a\.txt\.gz"):
        texts(tmp_path, "train")


def test_an_error_of_a_compiled_library_shows_no_line_of_it(config, tmp_path, monkeypatch, capfd):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"text" * 9)
    assert command(monkeypatch, prepare, f"--gin_file={config}", "--text=a.parquet") == 1
    error = capfd.readouterr().err
    assert "a.parquet is damaged" in error and ".pxi" not in error


@pytest.mark.parametrize("path", ["~/one.txt", "memory://of_text_flag/one.txt"])
def test_one_plain_file_anywhere_is_read_by_all_elements(path, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with fsspec.open(path.replace("~", str(tmp_path)), "w") as file:
        file.write("a line of text\n")
    assert 'Trainer.stream = "contiguous"' in text_bindings(path)


@pytest.mark.parametrize("ending", ["jsonl", "json.gz", "parquet", "arrow"])
def test_a_file_of_rows_is_read_by_documents(ending, tmp_path):
    (tmp_path / f"rows.{ending}").write_text("rows")
    assert not [line for line in text_bindings(f"{tmp_path}/rows.{ending}") if "stream" in line]
