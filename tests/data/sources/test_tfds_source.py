"""A real TensorFlow Datasets set, made here from small texts, becomes a token store."""

import subprocess
import sys

import pytest

pytest.importorskip("tensorflow_datasets", reason="the data extra is not installed")

SCRIPT = """
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from brt.data.corpus import Corpus
from brt.data.sources.tfds import TfdsText

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


def test_a_tensorflow_data_set_is_prepared_whole_or_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
