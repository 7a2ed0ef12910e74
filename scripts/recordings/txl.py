"""Replays recordings of kimiyoung/transformer-xl; see `check_recording.py`.

Arrays are time major. Compares, if recorded, the last layer's outputs, logits or log-probabilities,
losses, the caches after the first and after the last segment, and the gradients of one segment's
mean loss.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.checkpoints import transformer_xl as txl_checkpoint
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.transformer_xl.model import TransformerXL
from recordings import below, relative_error
from recordings.meliad import set_attention_form


def rows_first(x_TB: np.ndarray) -> np.ndarray:
    return np.swapaxes(x_TB, 0, 1)


def replay(recording: Mapping[str, Any], model: TransformerXL) -> tuple:
    """Runs every segment.

    Returns:
        Lists of outputs (B, T, D), logits (B, T, V) and losses (B, T), and the caches before
        each segment and after the last.
    """
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def segment(params, tokens_BT, targets_BT, caches):
        model = nnx.merge(graph, params)
        x_BTD, caches, _ = model.stack(model.embed(tokens_BT), caches)
        return x_BTD, model.logits(x_BTD), model.token_losses(x_BTD, targets_BT)[0], caches

    caches, found = [model.init_caches(recording["tokens"].shape[2])], []
    for tokens_TB, targets_TB in zip(recording["tokens"], recording["targets"], strict=True):
        batch = rows_first(tokens_TB), rows_first(targets_TB)
        *outputs, after = segment(params, *batch, caches[-1])
        found.append(outputs)
        caches.append(after)
    return *zip(*found, strict=True), caches


def cache_error(
    recording: Mapping[str, Any], prefix: str, caches: tuple, outputs: Sequence[jax.Array]
) -> float:
    """Returns the largest difference from the recorded memory of each layer's inputs.

    outputs: of the last layer so far, whose memory is recorded too and never read.
    """
    found = [
        np.asarray(cache.x_BMD)[:, cache.x_BMD.shape[1] - int(cache.count_B[0]) :]
        for cache in caches
    ]
    M = found[0].shape[1]
    found.append(np.concatenate(outputs, axis=1)[:, -M:])
    # Also compares the number of filled positions.
    differences = [
        np.abs(rows_first(recording[f"{prefix}/{i}"]) - x_BMD).max()
        for i, x_BMD in enumerate(found)
    ]
    return np.max(differences)


def gradient_errors(
    recording: Mapping[str, Any], model: TransformerXL, caches: tuple
) -> dict[str, float]:
    """Returns differences of the loss, and relative ones of all gradients, on segment 1."""
    tokens_BT, targets_BT = (
        jnp.asarray(rows_first(recording[name][1])) for name in ("tokens", "targets")
    )
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        model = nnx.merge(graph, params)
        x_BTD, _, _ = model.stack(model.embed(tokens_BT), caches)
        return jnp.mean(model.token_losses(x_BTD, targets_BT)[0])

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    return {
        "grads loss": abs(float(value) - float(recording["grads_loss"])),
        "gradients grads": gradient_error(recording, "grads", grads, model),
    }


def gradient_error(
    recording: Mapping[str, Any],
    prefix: str,
    grads: nnx.State,
    model: TransformerXL | RecurrentMemoryTransformer,
) -> float:
    recorded, found = below(recording, f"{prefix}/"), []
    for path, leaf in nnx.to_flat_state(grads):
        expected = txl_checkpoint.recorded(recorded, path, model)
        if expected is not None:
            found.append(relative_error(leaf[...], expected))
    return np.max(found)  # unlike max(), never passes over a NaN


def errors(recording: Mapping[str, Any]) -> dict:
    config = json.loads(str(recording["config_json"]))
    model = txl_checkpoint.load(below(recording, "params/"), config)
    set_attention_form(model, recording)
    outputs, logits, losses, caches = replay(recording, model)
    found = {}
    for name, values in (("hidden", outputs), ("logits", logits), ("loss", losses)):
        if name == "logits" and "log_probs" in recording:
            name, values = "log_probs", [jax.nn.log_softmax(x_BTV) for x_BTV in values]
        expected = recording[name]
        found[name] = np.abs(expected - np.stack([rows_first(x) for x in values])).max()
    if "mems/0" in recording:
        changed = model.positions_added_again(caches[1], recording["tokens"].shape[1])
        # The sum changes the array itself, so a recorded reference to the array contains it.
        found["first cache"] = min(
            cache_error(recording, "mems_in_seg1", entering, outputs[:1])
            for entering in (caches[1], changed)
        )
        found["final cache"] = cache_error(recording, "mems", caches[-1], outputs)
    if "grads_loss" in recording:
        found |= gradient_errors(recording, model, caches[1])
    return found
