"""Replays recordings of T5; see `check_recording.py`.

Compares hidden states of encoder and decoder, logits, the loss, gradients by their names on disk,
logits and loss in float64, and greedy answers.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.pretrained.encoders.t5 import T5
from brt.pretrained.folder import HubFolder
from recordings.pretrained_errors import SMALLEST, Found, bound, folder_of, mean_loss, split_with


def outputs(body: T5, recording: Mapping[str, Any]) -> tuple[jax.Array, dict[str, jax.Array]]:
    ids_BT = jnp.asarray(recording["input_ids"], jnp.int32)
    real_BT = jnp.asarray(recording["attention_mask"] == 1)
    x_BTD = body.embed(ids_BT)
    reading = body.read(x_BTD, real_BT)
    words_BW = jnp.asarray(recording["decoder_input_ids"], jnp.int32)
    decoded = body.decode(words_BW, reading.outputs[-1], real_BT)
    states = {"encoder": [x_BTD, *reading.outputs], "decoder": decoded}
    logits_BWV = body.word_logits(decoded[-1])
    loss = mean_loss(logits_BWV, recording["labels"], recording["labels"] != -100)
    hidden = {
        f"{half}_hidden_states/{i}": values
        for half, layers in states.items()
        for i, values in enumerate(layers)
    }
    return loss, hidden | {"logits": logits_BWV, "loss": loss}


def errors(recording: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = Found(recording)
    folder = folder_of(recording)
    body = T5(nnx.Rngs(0), folder=folder)
    graph, params = split_with(body, body.names().read(HubFolder(folder)))

    def read(params, dtype):
        return outputs(bound(graph, params, dtype), recording)

    at = {"encoder_hidden_states": recording["attention_mask"] == 1}
    grads = found.compare(read, params, ("logits", "loss"), at)
    found.gradient("grads/", body.names().write(grads))
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
