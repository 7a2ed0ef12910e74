"""Training does without TensorFlow, even where its store is made from a TensorFlow data set."""

import os
import subprocess
import sys

import pytest
from tiny_run import PLAIN, ROOT, write_config

pytest.importorskip("tensorflow_datasets", reason="the data extra is not installed")

MAKE = """
import sys
import tensorflow as tf
import tensorflow_datasets as tfds
texts = {split: ["a short text " * (4 + i) for i in range(5)] for split in ("train", "validation")}
tfds.dataset_builders.store_as_tfds_dataset(
    name="texts",
    version="1.0.0",
    data_dir=sys.argv[1],
    split_datasets={
        split: tf.data.Dataset.from_tensor_slices({"text": texts[split]}) for split in texts
    },
    features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
)
"""

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
    subprocess.run([sys.executable, "-c", MAKE, tmp_path / "tfds"], check=True, capture_output=True)
    path = write_config(
        tmp_path,
        *PLAIN,
        "Corpus.source = @TfdsText()",
        'TfdsText.name = "texts"',
        f'TfdsText.data_dir = "{tmp_path}/tfds"',
        "Trainer.steps = 2",
        without=("RecurrentCell", "Corpus.source", "TextFiles"),
    )
    flags = [f"--gin_file={path}", f"--workdir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *flags],
        cwd=ROOT,
        env=os.environ | {"XLA_FLAGS": ""},  # one device
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no TensorFlow here" in done.stdout
    assert (tmp_path / "stores" / "train" / "manifest.json").is_file()
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
