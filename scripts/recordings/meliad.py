"""Replays recordings of google-research/meliad; see `check_recording.py`.

Each file holds parameters (`brt/models/checkpoints/meliad.py`), token segments, document starts,
logits, caches and, in some, gradients. An external memory is searched by buckets, as in the
released code, unless the file's name has `exact` in it: its settings do not record that.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.block_recurrent.cell import StateCache
from brt.models.block_recurrent.external_memory import RingCache
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.caches import select_rows
from brt.models.checkpoints import meliad as meliad_checkpoint
from brt.models.model import LanguageModel
from brt.models.sizes import Sizes
from recordings import below, relative_error


def bindings_of(recording: Mapping[str, Any]) -> dict[str, str]:
    """Returns the gin bindings of a recording by name, without scope and class."""
    bindings = json.loads(str(recording["config_json"]))["gin_bindings"]
    pairs = (map(str.strip, binding.split("=", 1)) for binding in bindings)
    return {name.rsplit(".", 1)[-1]: value for name, value in pairs}


def load(recording: Mapping[str, Any], search: str = "bucketed") -> BlockRecurrentTransformer:
    bindings = bindings_of(recording)
    memory: dict[str, Any] = {}
    if "database_size" in bindings:
        size, neighbours = bindings["database_size"], bindings["memory_num_neighbors"]
        memory = dict(size=int(size), neighbours=int(neighbours), search=search)
    window = int(bindings["WINDOW_LENGTH"])
    return meliad_checkpoint.load(below(recording, "params/"), window, **memory)


def replay(recording: Mapping[str, Any], model: LanguageModel) -> tuple[np.ndarray, list[tuple]]:
    """Runs every segment; returns the stacked logits and the caches before each segment."""
    tokens_NBT, starts_NB = recording["tokens"], recording["start_of_sequence"]
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def segment(params, tokens_BT, starts_B, caches):
        model = nnx.merge(graph, params)
        caches = select_rows(starts_B, model.init_caches(len(starts_B)), caches)
        return model(tokens_BT, caches)

    caches, logits, before = model.init_caches(tokens_NBT.shape[1]), [], []
    for tokens_BT, starts_B in zip(tokens_NBT, starts_NB, strict=True):
        before.append(caches)
        logits_BTV, caches = segment(params, tokens_BT, starts_B, caches)
        logits.append(logits_BTV)
    return np.stack(logits), [*before, caches]


def cache_error(recording: Mapping[str, Any], prefix: str, caches: tuple) -> float:
    errors = []
    for i, cache in enumerate(caches):
        window = cache.window
        found = {"previous_keys": window.keys_BWHK, "previous_values": window.values_BWHK}
        for memory in cache.memories:
            if isinstance(memory, StateCache):
                found["recurrent_state"] = memory.states_BSD
        for name, value in found.items():
            recorded = recording[f"{prefix}/transformer{i}/{name}_test"]
            errors.append(np.abs(recorded - np.asarray(value)).max())
    return np.max(errors)  # unlike max(), keeps NaN


def database_error(recording: Mapping[str, Any], caches: tuple) -> float:
    """Returns the largest difference from recorded external memories; slots are exact."""
    errors = []
    rings = [(i, m) for i, c in enumerate(caches) for m in c.memories if isinstance(m, RingCache)]
    for i, cache in rings:
        prefix = f"database/transformer{i}/mem_layer_test/wrapped"
        rows, size, heads, _ = cache.keys_BMHK.shape
        for name, x_BMHK in (("key_db", cache.keys_BMHK), ("value_db", cache.values_BMHK)):
            found = np.moveaxis(np.asarray(x_BMHK), 2, 1).reshape(rows * heads, size, -1)
            errors.append(np.abs(recording[f"{prefix}/{name}"] - found).max())
        slots = np.repeat(np.asarray(cache.written_B) % size, heads)
        errors.append(np.abs(recording[f"{prefix}/database_index"] % size - slots).max())
    return np.max(errors)


def gradient_error(
    recording: Mapping[str, Any],
    model: LanguageModel,
    caches: tuple,
    segments: Sequence[int],
    prefix: str,
    name_of: Callable[[tuple], str] = meliad_checkpoint.from_brt_path,
) -> float:
    """Returns the largest difference of the loss of some segments, and of its gradients.

    Args:
        caches: before the first of them; gradients cross the caches between them.
        name_of: from a path in brt's parameters to the recorded name.
    """
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        model, state = nnx.merge(graph, params), caches
        total: Any = 0.0
        for segment in segments:
            starts_B = jnp.asarray(recording["start_of_sequence"][segment])
            state = select_rows(starts_B, model.init_caches(len(starts_B)), state)
            logits_BTV, state = model(jnp.asarray(recording["tokens"][segment]), state)
            targets_BT1 = recording["targets"][segment][..., None]
            log_p_BTV = jax.nn.log_softmax(logits_BTV)
            total = total - jnp.mean(jnp.take_along_axis(log_p_BTV, targets_BT1, axis=-1))
        return total

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    errors = [abs(float(value) - float(recording[f"{prefix}_loss"]))]
    for path, leaf in nnx.to_flat_state(grads):
        name = name_of(path)
        if name != "begin":
            errors.append(relative_error(leaf[...], recording[f"{prefix}/{name}"]))
    return np.max(errors)


def set_attention_form(model: nnx.Module, recording: Mapping[str, Any]) -> None:
    for _, module in nnx.iter_graph(model):
        if isinstance(getattr(module, "sizes", None), Sizes):
            form = recording.get("attention_form", "auto")
            module.sizes = dataclasses.replace(module.sizes, attention_form=form)


def errors(recording: Mapping[str, Any]) -> dict:
    search = "exact" if "exact" in recording["file"] else "bucketed"
    model = load(recording, search)
    set_attention_form(model, recording)
    logits, caches = replay(recording, model)
    found = {
        "logits": np.abs(logits - recording["logits"]).max(),
        "first cache": cache_error(recording, "state_seg0", caches[1]),
        "final cache": cache_error(recording, "state", caches[-1]),
    }
    if any(key.startswith("database/") for key in recording):
        found["memory"] = database_error(recording, caches[-1])
    for segment, prefix in ((1, "grads"), (2, "grads_seg2")):
        if f"{prefix}_loss" in recording:
            error = gradient_error(recording, model, caches[segment], [segment], prefix)
            found[f"gradients {segment}"] = error
    return found
