"""Real TFDS sets and real seqio tasks over one, made here from small texts, become token stores.

Training does without TensorFlow, even where its store is made from such a set.
"""

import importlib.util

import pytest
from apart import python
from gin_settings import bound
from tiny_run import PLAIN, write_config

pytest.importorskip("tensorflow_datasets", reason="the data extra is not installed")

MAKE = """
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

texts = {split: [f"{split} book {i} " * (i + 1) for i in range(7)] for split in ("train", "test")}

def examples(split):
    return [{"book_text": t, "book_title": f"{split} {i}"} for i, t in enumerate(texts[split])]

tfds.dataset_builders.store_as_tfds_dataset(
    name="books",
    version="0.1.0",
    data_dir="tfds",
    split_datasets={
        split: tf.data.Dataset.from_tensor_slices(
            {
                **{key: [e[key] for e in examples(split)] for key in ("book_text", "book_title")},
                "year": np.arange(7, dtype=np.int32),
            }
        )
        for split in texts
    },
    features=tfds.features.FeaturesDict(
        {"book_text": tfds.features.Text(), "book_title": tfds.features.Text(), "year": np.int32}
    ),
)
"""

SETS = """
from brt.data.corpus import Corpus
from brt.data.sources.tfds import TfdsText

source = TfdsText("books", "book_text", title_feature="book_title", data_dir="tfds")
for split in texts:
    assert source.count(split) == 7
    Corpus("store", source, "bytes").prepare(split)
    store = Corpus("store", source, "bytes").open(split)
    found = {
        title: bytes(store.tokens(i, 0, int(store.lengths_D[i])).astype(np.uint8)).decode()
        for i, title in enumerate(store.titles())
    }
    assert found == {f"{split} {i}": text for i, text in enumerate(texts[split])}

def refused(split, *settings, call="documents", **more):
    try:
        list(getattr(TfdsText(*settings, data_dir="tfds", **more), call)(split))
    except ValueError as error:
        return str(error)
    raise AssertionError("not refused")

said = refused("train", "bokks")
assert said.startswith("TensorFlow Datasets has no data set 'bokks', and there is none in tfds:")
assert len(said) < 300 and "TfdsText.name" in said, said
assert "no feature 'story': bind TfdsText.text_feature to one of book" in refused(
    "train", "books", "story")
said = refused("train", "books", "book_text", title_feature="year")
assert said.startswith("Feature 'year' of TensorFlow Datasets' 'books' does not hold text:"), said
assert "bind TfdsText.title_feature" in said, said
for call in ("documents", "count"):
    said = refused("dev", "books", "book_text", call=call)
    assert "no split 'dev': bind TfdsText.splits to one of test, train" in said, said
    assert "no split 'eval'" in refused("dev", "books", splits={"dev": "eval"}, call=call)
assert TfdsText("books", data_dir="tfds", splits={"dev": "train[:2]"}).count("dev") == 2
"""

TASKS = """
from pathlib import Path
import numpy as np
import seqio
import sentencepiece
import tensorflow as tf
import tensorflow_datasets as tfds

from brt.data.corpus import Corpus
from brt.data.sources.seqio import T5_MODEL, SeqioText
from brt.data.vocabularies.base import ByteVocabulary, SentencePieceVocabulary

# PG19 in small: the library's own builder reads it, as it would read the books.
texts = {"train": [f"The {i}th book  tells\\n\\tof {'sea ' * i}and é.\\n" for i in range(1, 24)],
         "validation": ["One book of the sea."], "test": ["A test.", "And another test."]}
tfds.dataset_builders.store_as_tfds_dataset(
    name="pg19", version="0.1.1", data_dir="sets",
    split_datasets={
        split: tf.data.Dataset.from_tensor_slices({
            "book_text": books, "book_title": [f"{split} {i}" for i in range(len(books))],
            "book_id": np.arange(len(books), dtype=np.int32),
            "publication_date": ["1900"] * len(books), "book_link": ["-"] * len(books)})
        for split, books in texts.items()},
    features=tfds.features.FeaturesDict({
        "book_text": tfds.features.Text(), "book_title": np.str_, "book_id": np.int32,
        "publication_date": np.str_, "book_link": np.str_}))
Path("vocabularies").mkdir()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts["train"]), model_prefix="vocabularies/t5.spiece",
    vocab_size=60, hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
Path("vocabularies/t5.spiece.model").rename(T5_MODEL)
model = SentencePieceVocabulary(T5_MODEL)

def stored(name, source, vocabulary=None, split="train"):
    corpus = Corpus(f"stores/{name}", source, vocabulary)
    corpus.prepare(split, quiet=True)
    store = corpus.open(split)
    tokens = [store.tokens(d).tolist() for d in range(store.num_documents)]
    assert store.manifest["bytes"] == sum(len(t.encode()) for t in texts[split])
    assert store.manifest["words"] == sum(len(t.split()) for t in texts[split])
    return dict(zip(store.titles(), tokens))  # TFDS shuffles what it writes

# Tokens and bytes of PG19, and its text read with the same vocabulary, agree.
pg19 = dict(title_feature="title", data_dir="sets")
processor = sentencepiece.SentencePieceProcessor(model_file=T5_MODEL)
for split, books in texts.items():
    named = {f"{split} {i}": text for i, text in enumerate(books)}
    encoded = {title: processor.encode(text) for title, text in named.items()}
    ids = SeqioText("pg19_tokens", vocabulary=model, **pg19)
    assert ids.count(split) == len(books)
    assert stored("tokens", ids, split=split) == encoded
    text = SeqioText("pg19_tokens", feature="targets_pretokenized", **pg19)
    assert stored("text", text, model, split) == encoded
    data = SeqioText("pg19_bytes", vocabulary=ByteVocabulary(), **pg19)
    assert stored("bytes", data, split=split) == {
        title: list(text.encode()) for title, text in named.items()}

# A task of one's own over text files, and a mixture of it and another.
for name in "ab":
    Path(name).write_text("".join(f"{name} line {i}\\n" for i in range(50)))
    seqio.TaskRegistry.add(
        name, seqio.TextLineDataSource({"train": name}),
        preprocessors=[lambda ds: ds.map(lambda line: {"targets": line})],
        output_features={"targets": seqio.Feature(
            seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)})
seqio.MixtureRegistry.add("both", ["a", "b"], default_rate=1.0)
own = list(SeqioText("a").documents("train"))
assert [d.data for d in own] == Path("a").read_bytes().splitlines()
assert own[7].title == "train-7"
assert SeqioText("a").count("train") is None
mixed = [d.data for d in SeqioText("both").documents("train")]
assert mixed == [d.data for d in SeqioText("both").documents("train")]
for name in "ab":
    lines = Path(name).read_bytes().splitlines()
    found = [line for line in mixed if line in lines]
    assert found == lines[: len(found)] and len(found) > 10

def refused(source, split="train"):
    try:
        next(source.documents(split))
    except ValueError as error:
        return str(error)
    raise AssertionError("not refused")

said = refused(SeqioText("pg19_tokens", data_dir="sets"))
assert "SeqioText.vocabulary" in said and "targets_pretokenized" in said, said
said = refused(SeqioText("pg19_tokens", data_dir="sets", vocabulary=ByteVocabulary()))
assert "'bytes' reads as" in said, said
assert "no feature 'story': bind SeqioText.feature to one of" in refused(SeqioText("a", "story"))
said = refused(SeqioText("pg19_tokens", title_feature="targets", data_dir="sets"))
assert "does not hold text: bind SeqioText.title_feature" in said, said
assert "no split 'dev'" in refused(SeqioText("a"), "dev")
assert "SeqioText.module" in refused(SeqioText("absent"))
"""


def test_sets_tasks_and_mixtures_are_prepared_whole_or_refused(tmp_path):
    """In one process, because TensorFlow is imported slowly."""
    python(MAKE + SETS + (TASKS if importlib.util.find_spec("seqio") else ""), cwd=tmp_path)


WATCHED = """
# As brt.train, and at the end it looks at what was imported.
import sys
from brt import command_line, train

try:
    command_line.run(train.main)
except SystemExit as end:
    assert not end.code, end.code
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"tensorflow", "tensorflow_datasets", "seqio"}, loaded
assert "jax" in loaded
print("no TensorFlow here")
"""


@pytest.mark.slow
def test_training_does_without_tensorflow(tmp_path):
    python(MAKE, cwd=tmp_path)
    path = write_config(
        tmp_path,
        *PLAIN,
        "Corpus.source = @TfdsText()",
        *bound("TfdsText", name="books", text_feature="book_text", data_dir=f"{tmp_path}/tfds"),
        *("Corpus.vocabulary = @ByteVocabulary()", "Trainer.steps = 2"),
    )
    flags = [f"--gin_file={path}", f"--workdir={tmp_path / 'run'}"]
    assert "no TensorFlow here" in python(WATCHED, *flags, XLA_FLAGS="")  # one device
    assert (tmp_path / "stores" / "train" / "manifest.json").is_file()
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
