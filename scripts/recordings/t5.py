"""Replays recordings of T5; see `check_recording.py`.

Compares hidden states of encoder and decoder, logits, the loss, gradients by their names on disk,
logits and loss in float64, and greedy answers.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.layers.losses import token_losses
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.folder import HubFolder
from recordings.pretrained_errors import (
    SMALLEST,
    Found,
    bound,
    config_of,
    folder_of,
    split_with,
    widened,
)


def outputs(body: T5, recording: Mapping[str, Any]) -> tuple[jax.Array, dict[str, list], jax.Array]:
    ids_BT = jnp.asarray(recording["input_ids"], jnp.int32)
    real_BT = jnp.asarray(recording["attention_mask"] == 1)
    x_BTD = body.embed(ids_BT)
    reading = body.read(x_BTD, real_BT)
    words_BW = jnp.asarray(recording["decoder_input_ids"], jnp.int32)
    states = {
        "encoder": [x_BTD, *reading.outputs],
        "decoder": body.decode(words_BW, reading.outputs[-1], real_BT),
    }
    logits_BWV = body.word_logits(states["decoder"][-1])
    labels_BW = recording["labels"]
    nats_BW = token_losses(logits_BWV, jnp.asarray(np.maximum(labels_BW, 0), jnp.int32))[0]
    scored_BW = jnp.asarray(labels_BW != -100)
    loss = jnp.where(scored_BW, nats_BW, 0.0).sum() / scored_BW.sum()
    return loss, states, logits_BWV


def errors(recording: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = Found(recording)
    folder = folder_of(recording)
    body = T5(nnx.Rngs(0), folder=folder)
    graph, params = split_with(body, body.names().read(HubFolder(folder)))
    at_BT = recording["attention_mask"] == 1

    @functools.partial(jax.value_and_grad, has_aux=True)
    def read(params, dtype):
        loss, states, logits_BWV = outputs(bound(graph, params, dtype), recording)
        return loss, (states, logits_BWV)

    compiled = jax.jit(read, static_argnums=1)
    (loss, (states, logits_BWV)), grads = compiled(params, "float32")
    for half, values in states.items():
        for i, x_BTD in enumerate(values):
            at = at_BT if half == "encoder" else None
            found.output(f"{half}_hidden_states/{i}", x_BTD, at)
    found.output("logits", logits_BWV)
    found.output("loss", loss)
    no_gradient = config_of(recording)["no_gradient"]
    found.gradient("grads/", body.names().write(grads), no_gradient)
    with jax.enable_x64(True):
        (loss, (_, logits_BWV)), _ = compiled(widened(params), "float64")
        found.output("float64/logits", logits_BWV, relative=found.float64)
        found.output("float64/loss", loss, relative=found.float64)
    if "greedy/tokens" in recording:
        _greedy(recording, found, graph, params)
    return found.errors


def _greedy(recording, found, graph, params):
    tokens_BN = recording["greedy/tokens"]

    @jax.jit
    def write(params):
        body = bound(graph, params)
        real_BT = jnp.asarray(recording["attention_mask"] == 1)
        x_BTD = body.embed(jnp.asarray(recording["input_ids"], jnp.int32))
        read_BTD = body.read(x_BTD, real_BT).outputs[-1]
        written_BN = body.write(tokens_BN.shape[1], read_BTD, real_BT)
        words_BN = body.shifted(jnp.asarray(tokens_BN, jnp.int32))
        return written_BN, body.word_logits(body.decode(words_BN, read_BTD, real_BT)[-1])

    written_BN, logits_BNV = write(params)
    same = np.array_equal(written_BN, tokens_BN)
    found.add("greedy tokens", 0.0 if same else np.inf, SMALLEST)
    found.output("greedy/scores", logits_BNV)
