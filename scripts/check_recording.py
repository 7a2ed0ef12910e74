"""Replays recordings of released implementations and prints the differences.

    python scripts/check_recording.py FILE.npz [FILE.npz ...] [encodings.json]

A file has parameters, settings, tokens and outputs; `config_json` selects the module whose
`errors(recording)` returns the largest differences by name, or pairs of difference and tolerance. A
.json file has outputs of tokenizers. Exit status 0 if all differences are within tolerance.
A recording of one operation has `settings` instead (`recordings/operations.py`).
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from recordings import hub_tokenizers, meliad, melodi, operations, pretrained, rmt, tables, txl

from brt.models.sizes import FORMS

OUTPUTS = 2e-5
"""Tolerance of logits, losses and caches, absolute."""
GRADIENTS = 1e-4
"""Tolerance of gradients, relative to the largest entry of each tensor."""

FORMATS = {
    "gin_bindings": meliad,
    "folder": pretrained,
    "num_mem_tokens": rmt,
    "attn_type": txl,
    "kind": tables,
}
"""A setting of `config_json` to the module of its format; the first match counts."""


def errors(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the differences that the recording's format compares, by name."""
    if "config_json" not in recording:
        return operations.errors(recording)
    config = json.loads(str(recording["config_json"]))
    if "base_melodi.gin" in config.get("gin_files", ()):
        return melodi.errors(recording)
    for setting, replayed_by in FORMATS.items():
        if setting in config:
            return replayed_by.errors(recording)
    raise ValueError(f"config_json has none of {sorted(FORMATS)}: no format of a recording.")


def with_tolerance(name: str, error: Any) -> tuple[float, float]:
    if isinstance(error, tuple):
        return error
    return error, GRADIENTS if "gradients" in name else OUTPUTS


def check(file: str, attention_form: str = "auto") -> bool:
    """Prints a file's line; returns whether all differences are within tolerance."""
    if Path(file).suffix == ".json":
        found: Mapping[str, Any] = hub_tokenizers.errors(file)
    else:
        with np.load(file, allow_pickle=False) as archive:
            recording = dict(archive)
        names = {"file": Path(file).stem, "path": str(file), "attention_form": attention_form}
        found = errors(recording | names)
    pairs = {name: with_tolerance(name, error) for name, error in found.items()}
    passed = all(error <= tolerance for error, tolerance in pairs.values())  # false for NaN
    parts = (f"{name} {error:.1e}" for name, (error, _) in pairs.items())
    print(f"{'ok  ' if passed else 'FAIL'} {file}: {'  '.join(parts)}", flush=True)
    return passed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "--attention_form", choices=FORMS, default="auto", help="of meliad's and txl's files"
    )
    jax.config.update("jax_default_matmul_precision", "highest")
    print(f"Tolerances: logits and caches {OUTPUTS:.0e}, gradients {GRADIENTS:.0e} relative;")
    print("of pretrained models relative to the largest entry, as their README.md says.")
    passed = True
    options = parser.parse_args(argv)
    for file in options.files:
        try:
            passed &= check(file, options.attention_form)
        except (OSError, ValueError, KeyError) as error:
            print(f"FAIL {file}: {error}")
            passed = False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
