"""Replays recordings of booydar/LM-RMT; see `check_recording.py`.

Arrays are time major. Compares, if recorded, the last layer's outputs at all positions, with
memory, the memory at the start and end of each segment, logits, losses, the caches of hidden
states, and gradients over the first two segments from the learned memory on.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.checkpoints.transformer_xl import load
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.memory_tokens.token_vectors import MemoryCache
from brt.models.transformer_xl.memory_tokens import TransformerXLMemoryTokens
from brt.models.transformer_xl.model import TransformerXL
from recordings import below
from recordings.txl import cache_error, gradient_error, rows_first

DETACHED = "grads_seg1_detached"
"""Gradients of the second segment's loss that do not cross the memory before it."""
GRADIENTS = {"grads_sum": (1.0, 1.0), "grads_seg1": (0.0, 1.0), DETACHED: (0.0, 1.0)}
"""Weights of the first two segments' mean losses."""


def read_segment(
    model: RecurrentMemoryTransformer, x_BTD: jax.Array, caches: tuple, filled: int
) -> tuple[jax.Array, jax.Array, tuple]:
    """Reads one segment, with `filled` hidden states in the cache, as in the released code.

    Its artefact depends on their number, so unfilled positions would show.

    Returns:
        Outputs at all positions, (B, X, D), those of the tokens, and the caches after.
    """
    *hidden, (memory_BSD,) = caches
    grown = [
        cache._replace(x_BMD=cache.x_BMD[:, cache.x_BMD.shape[1] - filled :]) for cache in hidden
    ]
    body = cast(TransformerXL, model.body)
    around = TransformerXLMemoryTokens(body, model.layout)
    y_BXD, inputs = around.forward(x_BTD, tuple(grown), memory_BSD)
    x_BTD, memory_BSD = model.layout.divide(y_BXD)
    after, _ = body.remember(hidden, inputs)
    return y_BXD, x_BTD, (*after, MemoryCache(memory_BSD))


def replay(recording: Mapping[str, Any], model: RecurrentMemoryTransformer) -> tuple:
    """Runs every segment.

    Returns:
        Lists of outputs (B, X, D), logits (B, T, V) and losses (B, T), and the caches before
        each segment and after the last.
    """
    graph, params = nnx.split(model, nnx.Param)

    @functools.partial(jax.jit, static_argnames="filled")
    def segment(params, tokens_BT, targets_BT, caches, filled):
        model = nnx.merge(graph, params)
        y_BXD, x_BTD, caches = read_segment(model, model.embed(tokens_BT), caches, filled)
        return y_BXD, model.logits(x_BTD), model.token_losses(x_BTD, targets_BT)[0], caches

    caches, found, filled = [model.init_caches(recording["tokens"].shape[2])], [], 0
    for tokens_TB, targets_TB in zip(recording["tokens"], recording["targets"], strict=True):
        batch = rows_first(tokens_TB), rows_first(targets_TB)
        *outputs, after = segment(params, *batch, caches[-1], filled=filled)
        found.append(outputs)
        caches.append(after)
        filled = min(filled + outputs[0].shape[1], cast(TransformerXL, model.body).memory_length)
    return *zip(*found, strict=True), caches


def gradients(
    recording: Mapping[str, Any], model: RecurrentMemoryTransformer, prefix: str
) -> tuple[jax.Array, nnx.State]:
    batch = [
        [jnp.asarray(rows_first(recording[name][segment])) for name in ("tokens", "targets")]
        for segment in range(2)
    ]
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        model = nnx.merge(graph, params)
        caches, filled = model.init_caches(recording["tokens"].shape[2]), 0
        total: Any = 0.0
        for weight, (tokens_BT, targets_BT) in zip(GRADIENTS[prefix], batch, strict=True):
            x_BTD = model.embed(tokens_BT)
            y_BXD, x_BTD, caches = read_segment(model, x_BTD, caches, filled)
            filled = min(filled + y_BXD.shape[1], model.body.memory_length)
            total += weight * jnp.mean(model.token_losses(x_BTD, targets_BT)[0])
            if prefix == DETACHED:
                caches = jax.lax.stop_gradient(caches)
        return total

    return jax.jit(jax.value_and_grad(loss))(params)


def errors(recording: Mapping[str, Any]) -> dict:
    config = json.loads(str(recording["config_json"]))
    model = load(below(recording, "params/"), config)
    outputs, logits, losses, caches = replay(recording, model)
    memories = [before[-1].memory_BSD for before in caches]
    found = {}
    for name, values in {
        "hidden_full": outputs,
        "logits": logits,
        "loss": losses,
        "memory_in": memories[:-1],
        "memory_out": memories[1:],
    }.items():
        values = np.stack([rows_first(x) for x in values])
        # Broadcasting would hide a memory of another size.
        same = recording[name].shape == values.shape
        found[name] = np.abs(recording[name] - values).max() if same else np.inf
    if "mems/0" in recording:
        first, last = caches[1][:-1], caches[-1][:-1]
        found["first cache"] = cache_error(recording, "mems_in_seg1", first, outputs[:1])
        found["final cache"] = cache_error(recording, "mems", last, outputs)
    for prefix in GRADIENTS:
        if f"{prefix}_loss" in recording:
            value, grads = gradients(recording, model, prefix)
            found[f"{prefix} loss"] = abs(float(value) - float(recording[f"{prefix}_loss"]))
            found[f"gradients {prefix}"] = gradient_error(recording, prefix, grads, model)
    return found
