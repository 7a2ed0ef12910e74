"""Compares the logits of folders of decoders in brt and in plain transformers.

    python scripts/check_export.py models/gpt2-pooled [FOLDER ...] --python=other/venv/bin/python

transformers and torch are looked for in the Python of --python, or of BRT_TRANSFORMERS_PYTHON, or
in this one; brt needs neither. Exit status: 0 if all differences are within tolerance, 1 if one is
not, 2 if that Python has no transformers.
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
from recordings.pretrained_errors import body_of, bound, split_with

from brt.models.pretrained.language_model import PretrainedLanguageModel

TOLERANCE = 2e-5
"""Of the largest logit."""
THEIRS = """
import sys
import numpy as np
import torch
import transformers
folder, inputs, outputs = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, attn_implementation="eager", local_files_only=True
).eval()
with torch.no_grad():
    logits = model(torch.from_numpy(np.load(inputs))).logits
np.save(outputs, logits.float().numpy())
"""


def python_with_transformers(given: str | None = None) -> str | None:
    """Returns a Python that imports torch and transformers; None where there is none."""
    python = given or os.environ.get("BRT_TRANSFORMERS_PYTHON") or sys.executable
    found = subprocess.run(
        [python, "-c", "import torch, transformers"], capture_output=True, check=False
    )
    return None if found.returncode else python


def error(folder: str, python: str) -> float:
    """Returns the largest difference of logits, of the largest logit."""
    model = PretrainedLanguageModel(nnx.Rngs(0), body=body_of(folder))
    length = min(model.body.num_positions, 64)
    graph, params = split_with(model.for_segments(length), model.given_parameters())
    ids = np.random.default_rng(0).integers(0, model.vocabulary_size, (2, length))
    read = jax.jit(
        lambda params, ids: bound(graph, params)(ids, bound(graph, params).init_caches(2))
    )
    ours = np.asarray(read(params, jnp.asarray(ids, jnp.int32))[0])
    with tempfile.TemporaryDirectory() as place:
        np.save(f"{place}/ids.npy", ids)
        arguments = [folder, f"{place}/ids.npy", f"{place}/logits.npy"]
        subprocess.run([python, "-c", THEIRS, *arguments], check=True)
        theirs = np.load(f"{place}/logits.npy")
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


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
