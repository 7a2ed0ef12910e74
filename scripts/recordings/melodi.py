"""Replays recordings of MELODI in google-research/meliad; see `check_recording.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from brt.models.checkpoints import melodi as melodi_checkpoint
from recordings import below
from recordings.meliad import bindings_of, gradient_error, replay


def cache_error(recording: Mapping[str, Any], prefix: str, caches: tuple) -> float:
    errors = []
    for i, cache in enumerate(caches):
        name = f"{prefix}/layer_stack/melodi_layers_{i}/{{}}/previous_mems_test"
        errors.append(np.abs(recording[name.format("short_memory")] - cache.short_BSD).max())
        if cache.long_BMD is not None:
            errors.append(np.abs(recording[name.format("long_memory")] - cache.long_BMD).max())
    return np.max(errors)


def errors(recording: Mapping[str, Any]) -> dict:
    size = int(bindings_of(recording).get("long_term_memory_size", 0))
    model = melodi_checkpoint.load(below(recording, "params/"), size)
    logits, caches = replay(recording, model)
    found = {"logits": np.abs(logits - recording["logits"]).max()}
    for name, prefix, after in (
        ("first cache", "state_seg0", caches[1]),
        ("second cache", "state_seg1", caches[2]),
        ("third cache", "state_seg2", caches[3]),
        ("final cache", "state", caches[-1]),
    ):
        found[name] = cache_error(recording, prefix, after)
    for segments, prefix in (((1,), "grads"), ((2,), "grads_seg2"), ((1, 2), "grads_chain")):
        if f"{prefix}_loss" in recording:
            inputs = recording, model, caches[segments[0]], segments, prefix
            error = gradient_error(*inputs, melodi_checkpoint.from_brt_path)
            found[f"gradients {prefix}"] = error
    return found
