"""Compares logits of folders in brt and transformers.

    python scripts/check_export.py models/gpt2-pooled [FOLDER ...] --python=other/venv/bin/python

transformers and torch are those of --python, of BRT_TRANSFORMERS_PYTHON, or of this Python. Exit
status 0 if all differences are within tolerance, 1 if not, 2 without transformers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from recordings.pretrained_errors import body_of, bound, kind_of, split_with

from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.folder import HubFolder
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.reader import HEADS, PretrainedReader

TOLERANCE = 2e-5
LONGEST = 64
"""Most tokens."""
THEIRS = """
import json
import sys
import numpy as np
import torch
import transformers
folder, inputs, outputs = sys.argv[1:]
with open(folder + "/config.json") as file:
    (architecture,) = json.load(file)["architectures"]
model = getattr(transformers, architecture).from_pretrained(
    folder, attn_implementation="eager", local_files_only=True
).eval()
ids = torch.from_numpy(np.load(inputs))
more = {}
if model.config.is_encoder_decoder:
    start = torch.full_like(ids[:, :1], model.config.decoder_start_token_id)
    more["decoder_input_ids"] = torch.cat([start, ids[:, :2]], 1)
with torch.no_grad():
    found = model(ids, **more)
if "start_logits" in found:
    logits = torch.stack([found.start_logits, found.end_logits], 1)
else:
    logits = found.logits
np.save(outputs, logits.float().numpy())
"""


def python_with_transformers(given: str | None = None) -> str | None:
    """Returns a Python with torch and transformers, or None."""
    python = given or os.environ.get("BRT_TRANSFORMERS_PYTHON") or sys.executable
    found = subprocess.run(
        [python, "-c", "import torch, transformers"], capture_output=True, check=False
    )
    return None if found.returncode else python


def error(folder: str, python: str) -> float:
    """Returns the largest difference of logits, relative to the largest logit."""
    ids, ours = logits_of(folder)
    with tempfile.TemporaryDirectory() as place:
        np.save(f"{place}/ids.npy", ids)
        arguments = [folder, f"{place}/ids.npy", f"{place}/logits.npy"]
        subprocess.run([python, "-c", THEIRS, *arguments], check=True)
        theirs = np.load(f"{place}/logits.npy")
    if ours.shape != theirs.shape:
        return float("inf")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def logits_of(folder: str) -> tuple[np.ndarray, np.ndarray]:
    if issubclass(kind_of(folder), Encoder):
        return _answers(folder)
    model = PretrainedLanguageModel(nnx.Rngs(0), body=body_of(folder))
    length = min(model.body.num_positions, LONGEST)
    graph, params = split_with(model.for_segments(length), model.given_parameters())
    ids = np.random.default_rng(0).integers(0, model.vocabulary_size, (2, length))
    read = jax.jit(
        lambda params, ids: bound(graph, params)(ids, bound(graph, params).init_caches(2))
    )
    return ids, np.asarray(read(params, jnp.asarray(ids, jnp.int32))[0])


def _answers(folder):
    config = HubFolder(folder).config
    (architecture,) = config["architectures"]
    targets = next((name for name, end in HEADS.items() if architecture.endswith(end)), None)
    if targets is None:
        raise SystemExit(f"{folder}: {architecture} has a head that no reader has.")
    if config.get("problem_type") == "multi_label_classification":
        targets = "labels"
    classes = len(config.get("id2label", "ab"))
    model = PretrainedReader(nnx.Rngs(0), body_of(folder), targets, classes, words=3)
    length = min(model.body.num_positions or LONGEST, LONGEST)
    graph, params = split_with(model.for_segments(length), model.given_parameters())
    # Not the padding's id: RoBERTa would not count it as a position.
    ids = np.random.default_rng(0).integers(3, model.vocabulary_size, (2, length))

    @jax.jit
    def read(params, ids):
        model = bound(graph, params)
        outputs, _, _ = model.stack(model.embed(ids), model.init_caches(2))
        if targets == "words":
            read_BW = model.body.shifted(ids[:, :3])
            states = model.body.decode(read_BW, outputs.x_BTD, outputs.real_BT)
            return model.body.word_logits(states[-1])
        if targets == "spans":
            return jnp.stack(model.head(outputs.x_BTD), axis=1)
        return model.answers(outputs)

    return ids, np.asarray(read(params, jnp.asarray(ids, jnp.int32)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--python", help="a Python with torch and transformers")
    options = parser.parse_args(argv)
    jax.config.update("jax_default_matmul_precision", "highest")
    python = python_with_transformers(options.python)
    if python is None:
        print("No torch and transformers: name a Python that has them by --python.")
        return 2
    passed = True
    for folder in options.folders:
        found = error(folder, python)
        passed &= found <= TOLERANCE
        print(f"{'ok  ' if found <= TOLERANCE else 'FAIL'} {folder}: logits {found:.1e}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
