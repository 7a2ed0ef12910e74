"""Spoilt files: each is refused by name, or gives what was written."""

import bz2
import importlib.util
import json
import shutil
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import gin
import jax
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, random_model
from checkpoints import abstract, make_state, opened, saved
from fabricated_recordings import fabricate
from fabricated_runs import make_run
from fuzzing import CONTENTS, Tally, same_arrays, spoil_file, spoil_json
from paths import ROOT
from pieces import train_pieces
from stores import make_store, small_vocabulary
from tiny_run import differing

from brt import config
from brt.data.corpus import Corpus
from brt.data.sources.files import SourceTree, TextFiles
from brt.data.stores.inspection import describe, verify
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.named import as_vocabulary
from brt.evaluation.recording import Recording
from brt.generation.generator import Generator
from brt.model_folder import load_run
from brt.report import report
from brt.reporting import archive
from brt.reporting.runs import open_runs
from brt.training.checkpoints.parameters import load_params
from brt.training.records.run_folder import RunFolder, read_metrics

both = pytest.mark.parametrize(
    "scale", [pytest.param(0, id="short"), pytest.param(1, id="long", marks=pytest.mark.slow)]
)


def draws(seed, count):
    """So many generators, each of its own seed."""
    return ((number, np.random.default_rng([seed, number])) for number in range(count))


class Subject(NamedTuple):
    """A folder of files, made at `base` by one of the functions below.

    Args:
        spoil: from a generator and a copy of the folder to what it did to the copy, and to the
            names of which a refusal must have one.
        read: from the copy to its content.
        is_right: of what was read and what was done: whether it may be read.
    """

    spoil: Callable
    read: Callable
    is_right: Callable


def one_of(names):
    """Spoils one of these files; most often, in one of JSON, a value."""

    def spoil(rng, folder):
        name = names[int(rng.integers(len(names)))]
        if name.endswith((".json", ".jsonl")) and rng.random() < 0.6:
            return f"{name} {spoil_json(rng, folder / name)}", [folder]
        return f"{name} {spoil_file(rng, folder / name)}", [folder]

    return spoil


LENGTHS = (1, 7, 30, 12, 5)


def a_store(base, shard_bytes=None):
    def content(store):
        whole = [store.all_tokens[:], store.all_weights[:], store.lengths_D]
        return whole, store.titles(), store.annotations()

    def read(folder):
        store = TokenStore(folder)
        verify(store)
        describe(store)
        return content(store)

    expected = content(make_store(base, LENGTHS, True, 0, True, shard_bytes))
    names = sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())
    assert len(names) == (5 if shard_bytes is None else 2 + 2 * 3)

    def is_right(found, what):
        return same_arrays(found[0], expected[0]) and found[1:] == expected[1:]

    return Subject(one_of(names), read, is_right)


def a_recording(base):
    store = make_store(base.parent / "store", LENGTHS, False, 0, False)
    rng = np.random.default_rng(0)
    fabricate(base, store, [rng.exponential(size=length) for length in LENGTHS])

    def read(folder):
        found = Recording(folder, store)
        return [array for n in range(len(LENGTHS)) for array in found.document(n)]

    expected = read(base)
    is_right = lambda found, what: same_arrays(found, expected)  # noqa: E731
    names = ["manifest.json", *(f"{n}.npz" for n in range(len(LENGTHS)))]
    return Subject(one_of(names), read, is_right)


def a_memory_file(base):
    generator = Generator(
        random_model("feedback_two_cells"), small_vocabulary(VOCABULARY), SEGMENT, 5
    )
    memory = generator.read(range(1, 9))
    base.mkdir()
    generator.save(base / "book.memory", memory)

    def spoil(rng, folder):
        return spoil_file(rng, folder / "book.memory"), [folder / "book.memory"]

    def is_right(found, what):
        return same_arrays(jax.tree.leaves(found), jax.tree.leaves(memory))

    assert is_right(generator.load(base / "book.memory"), "as it is")
    return Subject(spoil, lambda folder: generator.load(folder / "book.memory"), is_right)


def spoil_header(rng, path):
    """Changes bytes of the header of a safetensors file, or a value in it; returns which."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    if rng.random() < 0.4:
        spoilt, positions = bytearray(content), rng.integers(8 + size, size=int(rng.integers(1, 4)))
        for position in positions:
            spoilt[position] = int(rng.integers(256))
        path.write_bytes(spoilt)
        return f"header bytes {positions.tolist()}"
    header = path.with_name("header.json")
    header.write_bytes(content[8 : 8 + size])
    what = spoil_json(rng, header)
    text = header.read_bytes()
    header.unlink()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return what


def a_model_folder(base):
    shutil.copytree(ROOT / "configs/trained/recall", base)
    experiment, params, _ = load_run(str(base))
    config.parse([str(base / "config.gin")])
    shapes = experiment.abstract_state()

    def spoil(rng, folder):
        weights, way = folder / "model.safetensors", rng.random()
        if way < 0.4:
            return f"config.json {spoil_json(rng, folder / 'config.json')}", [folder]
        if way < 0.8:
            return f"header {spoil_header(rng, weights)}", [folder]
        return spoil_file(rng, weights if way < 0.9 else folder / "config.json"), [folder]

    def is_right(state, what):
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
        # A folder has no hash of its parameters.
        return finite and (what in CONTENTS or not differing(state.params, params))

    return Subject(spoil, lambda folder: load_params(str(folder), shapes)[0], is_right)


def checkpoints_of_two_steps(base):
    """Nothing of them is deleted, whatever they hold."""
    saved(base, 2, 4)
    states = {step: make_state(step) for step in (2, 4)}

    def spoil(rng, folder):
        files = sorted(p for p in (folder / "4").rglob("*") if p.is_file())
        path = files[int(rng.integers(len(files)))]
        of_json = path.name == "metadata" and rng.random() < 0.7
        what = spoil_json(rng, path) if of_json else spoil_file(rng, path)
        return f"{path.relative_to(folder)} {what}", [folder]

    def read(folder):
        with opened(folder) as checkpoints:
            state, _ = checkpoints.restore_latest(abstract(make_state()))
            checkpoints.quarantine(int(state.step))
            return state, len(list(folder.glob("aside/*"))) + len(checkpoints.steps())

    def is_right(found, what):
        state, kept = found
        step = int(state.step)
        return step in states and not differing(state, states[step]) and kept == 2

    return Subject(spoil, read, is_right)


def records(base):
    """Lines that are spoilt are left out, and the run is resumed."""
    base.mkdir()
    written = {step: 1 / step for step in range(1, 6)}
    lines = "".join(f'{{"step": {s}, "train/loss": {x}}}\n' for s, x in written.items())
    (base / "metrics.jsonl").write_text(lines)

    def read(path):
        read_metrics(str(path), [])
        folder = RunFolder(str(path))
        folder.open_metrics(3)
        folder.record(4, {"train/loss": 0.25})
        folder.close()
        return read_metrics(str(path))

    def is_right(found, what):
        own = [r for r in found if written.get(r["step"]) == r.get("train/loss")]
        return found[-1] == {"step": 4, "train/loss": 0.25} and len(own) >= len(found) - 1

    def spoil(rng, folder):
        what, _ = one_of(["metrics.jsonl"])(rng, folder)
        return what, [folder / "metrics.jsonl"]

    return Subject(spoil, read, is_right)


def vocabularies(base):
    """Files of every kind, by the name that `Corpus.vocabulary` takes."""
    base.mkdir()
    train_pieces(base / "pieces.model")
    (base / "words.txt").write_text("the 5\ntea 3\n<unk> 1\n<eos> 1\nhen 1\n")
    (base / "letters.txt").write_text("".join(f"{c}\n" for c in "thea n"))
    (base / "wordpieces.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nthe\n##a\ntea\nt\n")
    kinds = {"words": "words.txt", "characters": "letters.txt", "wordpiece": "wordpieces.txt"}
    if not importlib.util.find_spec("tokenizers"):
        kinds.pop("wordpiece")
    kinds, drawn = {**kinds, "sentencepiece": "pieces.model"}, []

    def spoil(rng, folder):
        kind = list(kinds)[int(rng.integers(len(kinds)))]
        drawn[:] = [f"{kind}:{folder / kinds[kind]}"]
        return f"{kind} {spoil_file(rng, folder / kinds[kind])}", [folder / kinds[kind], "a title"]

    def read(folder):
        vocabulary = as_vocabulary(drawn[0])
        ids = vocabulary.encode(b"the tea then", "a title")
        return vocabulary.size, np.asarray(ids), vocabulary.decode(ids), vocabulary.fingerprint

    def is_right(found, what):
        size, ids, text, fingerprint = found
        return (ids < size).all() and isinstance(text, str) and len(fingerprint) == 64

    return Subject(spoil, read, is_right)


def texts(base):
    base.mkdir()
    for name in "abc":
        (base / f"{name}.txt").write_text(f"the tea of {name}\nten hens\n" * 3)
    stores, drawn = base.parent / "stores", []

    def spoil(rng, folder):
        shutil.rmtree(stores, ignore_errors=True)
        what = spoil_file(rng, folder / f"{'abc'[int(rng.integers(3))]}.txt")
        source = TextFiles(str(folder), skip_empty=bool(rng.integers(2)))
        if rng.random() < 0.3:
            source = SourceTree(str(folder), suffixes=(".txt",), held_out=0.3)
        drawn[:] = [source]
        titles = (f"document '{name}" for name in "abc")
        return f"{type(source).__name__} {what}", [folder, *titles]

    def read(folder):
        corpus = Corpus(str(stores), drawn[0], "bytes")
        corpus.prepare("train", quiet=True, workers=1)
        store = corpus.open("train")
        verify(store)
        files = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix == ".txt")
        found = [bytes(store.tokens(d).astype(np.uint8)) for d in range(store.num_documents)]
        return found, [path.read_bytes() for path in files]

    def is_right(read, what):
        found, held = read
        if isinstance(drawn[0], SourceTree):
            return len(found) <= 1 + len(held)
        return found == [content for content in held if content]

    return Subject(spoil, read, is_right)


def a_run_folder(base):
    make_run(
        base,
        "small/rec_fixed_skip+corpora/text",
        evaluations={
            "test": {"loss": 1.0, "cleared_loss": 1.1, "bits_per_token": 1.4, "given": ["a"]}
        },
        records=[{"step": s, "train/loss": 1 / s, "train/bits_per_token": 1.0} for s in (1, 2, 3)],
        settings={"BlockRecurrentTransformer.width": 1024},
    )
    of_json = ["evaluation_test.json", "stands_for.json", "metrics.jsonl"]
    others = ["operative_config.gin", "config.gin"]

    def read(folder):
        page = base.parent / "report.html"
        report(open_runs([folder]), str(page))
        return page.read_text(encoding="utf-8")

    def is_right(page, what):
        return page.endswith("</html>\n") and "<script>alert" not in page

    return Subject(one_of(of_json * 2 + others), read, is_right)


SUBJECTS = {
    "a store": (a_store, 1, (60, 400)),
    "a sharded store": (partial(a_store, shard_bytes=100), 1, (60, 400)),
    "a recording": (a_recording, 2, (40, 300)),
    "a memory file": (a_memory_file, 3, (15, 200)),
    "a model folder": (a_model_folder, 14, (60, 1_000)),
    "checkpoints": (checkpoints_of_two_steps, 4, (4, 100)),
    "records": (records, 5, (20, 100)),
    "a vocabulary": (vocabularies, 6, (40, 250)),
    "texts": (texts, 7, (25, 200)),
    "a run folder": (a_run_folder, 8, (3, 150)),
}
"""How each is made, its seed, and how many cases are drawn."""


@both
@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.usefixtures("collect_garbage")
def test_spoilt_files_are_refused_or_give_what_was_written(scale, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("brt.report.image", lambda plot: b"")  # which pages do not need
    make, seed, counts = SUBJECTS[kind]
    tally, subject = Tally(kind), make(tmp_path / "base")
    for number, rng in draws(seed, counts[scale]):
        shutil.rmtree(tmp_path / "spoilt", ignore_errors=True)
        folder = shutil.copytree(tmp_path / "base", tmp_path / "spoilt")
        what, culprits = subject.spoil(rng, folder)
        is_right = partial(subject.is_right, what=what)
        tally.judge(f"{number}: {what}", partial(subject.read, folder), is_right, culprits)
    gin.clear_config()
    tally.check()


# Archives


@pytest.mark.parametrize("position", [0.2, 0.5, 0.9, 0.99])
def test_an_archive_with_a_changed_bit_is_refused(position, tmp_path):
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text", evaluations={"test": 2.0})
    archive.pack(run, path := tmp_path / "run.tar.bz2")
    spoilt = bytearray(path.read_bytes())
    spoilt[int(position * len(spoilt))] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(ValueError, match=r"run\.tar\.bz2 cannot be read"):
        archive.unpack(path, tmp_path / "out")


@both
def test_a_spoilt_archive_is_refused_or_unpacked(scale, tmp_path):
    """Tar has no checksum of contents. A damaged header costs one file at most."""
    tally, path, out = Tally("spoilt archives"), tmp_path / "run.tar.bz2", tmp_path / "out"
    run = make_run(tmp_path / "run", "small/rec_fixed_skip+corpora/text", evaluations={"test": 2.0})
    archive.pack(run, path)
    content = bz2.decompress(path.read_bytes())
    ways = [way for name, way in CONTENTS.items() if name != "in UTF-16"]

    def call():
        files = [file for file in archive.unpack(path, out).rglob("*") if file.is_file()]
        return {file.name: file.read_bytes() for file in files}

    def right(found):
        if spoilt[124:136] == content[124:136] and spoilt[512:] == content[512:]:
            return len(expected.items() - found.items()) <= 1
        return len(found) <= len(expected)  # a changed size moves the headers after it

    expected = call()
    assert expected["config.gin"] == (run / "config.gin").read_bytes()
    for number, rng in draws(9, (60, 3_000)[scale]):
        shutil.rmtree(out, ignore_errors=True)
        spoilt = bytearray(content)
        if rng.random() < 0.3:
            spoilt = ways[int(rng.integers(len(ways)))](rng, content)
        else:
            for position in rng.integers(0, 512, size=int(rng.integers(1, 6))):  # the first header
                spoilt[position] = int(rng.integers(256))
            spoilt[148:156] = b"%06o\0 " % (sum(spoilt[:148]) + 256 + sum(spoilt[156:512]))
        path.write_bytes(bz2.compress(bytes(spoilt), 1))
        tally.judge(f"{number}", call, right, [path])
    tally.check()
    assert {file.name for file in tmp_path.iterdir()} <= {"run", "run.tar.bz2", "out"}


# Tokenizers: ids that a list of all ids has no room for.

TOO_FAR = {"id": 2**31, "content": "b", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": False}  # fmt: skip
WORD_LEVEL = {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"}


OF_BPE = [{"a": 1, "b": 2**31}, {"u": -1}, {"u": 1.5}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": WORD_LEVEL}),
        ("tokenizer.json", {"added_tokens": [TOO_FAR]}),
        *(("vocab.json", {"<|endoftext|>": 0, **ids}) for ids in OF_BPE),
    ],
)
def test_a_tokenizer_with_an_id_out_of_range_is_refused(name, content, tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')
    kind = "bpe"
    if name == "tokenizer.json":
        whole = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).to_str()
        kind, content = "pretrained", json.loads(whole) | content
    (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(ValueError, match=f"{tmp_path}/{name} "):
        as_vocabulary(f"{kind}:{tmp_path}").size  # noqa: B018
