"""Replays recordings of MELODI in google-research/meliad; see `check_recording.py`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.caches import reset_rows
from brt.models.checkpoints import melodi as melodi_checkpoint
from brt.models.melodi.model import Melodi
from recordings.meliad import bindings_of, parameters_of, replay


def cache_error(recording: Mapping[str, Any], prefix: str, caches: tuple) -> float:
    errors = []
    for i, cache in enumerate(caches):
        name = f"{prefix}/layer_stack/melodi_layers_{i}/{{}}/previous_mems_test"
        errors.append(np.abs(recording[name.format("short_memory")] - cache.short_BSD).max())
        if cache.long_BMD is not None:
            errors.append(np.abs(recording[name.format("long_memory")] - cache.long_BMD).max())
    return np.max(errors)


def gradient_error(
    recording: Mapping[str, Any], model: Melodi, caches: tuple, segments: tuple, prefix: str
) -> float:
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        model, state = nnx.merge(graph, params), caches
        total: Any = 0.0
        for segment in segments:
            starts_B = jnp.asarray(recording["start_of_sequence"][segment])
            state = reset_rows(state, model.init_caches(len(starts_B)), starts_B)
            logits_BTV, state = model(jnp.asarray(recording["tokens"][segment]), state)
            targets_BT1 = recording["targets"][segment][..., None]
            log_p_BTV = jax.nn.log_softmax(logits_BTV)
            total = total - jnp.mean(jnp.take_along_axis(log_p_BTV, targets_BT1, axis=-1))
        return total

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    errors = [abs(float(value) - float(recording[f"{prefix}_loss"]))]
    for path, leaf in nnx.to_flat_state(grads):
        name = melodi_checkpoint.from_brt_path(path)
        if name != "begin":
            recorded = recording[f"{prefix}/{name}"]
            largest = np.abs(recorded).max()
            difference = np.abs(recorded - np.asarray(leaf[...])).max()
            errors.append(difference / (largest if largest > 0 else 1.0))
    return np.max(errors)


def errors(recording: Mapping[str, Any]) -> dict:
    size = int(bindings_of(recording).get("long_term_memory_size", 0))
    model = melodi_checkpoint.load(parameters_of(recording), size)
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
            error = gradient_error(recording, model, caches[segments[0]], segments, prefix)
            found[f"gradients {prefix}"] = error
    return found
