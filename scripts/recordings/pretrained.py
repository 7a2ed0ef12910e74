"""Replays recordings of pretrained transformers; see `check_recording.py`.

Compares, if recorded, hidden states, logits, the loss, gradients by their names on disk, logits and
loss in float64, and greedy continuations. The recording's `config_json` names the folder of the
weights, which is next to the recording. Outputs are compared where `attention_mask` is 1.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.pretrained.backbone_layer import HIDDEN, Seen
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.folder import HubFolder
from brt.pretrained.language_model import PretrainedLanguageModel
from recordings import encoders, memory_tokens, pooled, pooled_spans, reader, t5
from recordings.pretrained_errors import (
    SMALLEST,
    Found,
    body_of,
    bound,
    config_of,
    folder_of,
    is_sharp,
    mean_loss,
    split_with,
)


def outputs(body: Decoder, recording: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Returns hidden states, with the input of the first layer, and logits."""
    ids_BT, mask_BT = recording["input_ids"], recording["attention_mask"] == 1
    T = ids_BT.shape[1]
    counted_BT = np.broadcast_to(np.arange(T), ids_BT.shape)
    positions_BT = jnp.asarray(recording.get("position_ids", counted_BT), jnp.int32)
    visible_BTT = np.tri(T, dtype=bool) & mask_BT[:, None]
    table_BTT = jnp.where(visible_BTT, 0.0, HIDDEN)
    x_BTD = body.embed(jnp.asarray(ids_BT, jnp.int32))
    found = body.read(x_BTD, positions_BT, lambda _, keys: Seen(keys, positions_BT, table_BTT))
    states = enumerate([body.enter(x_BTD, positions_BT), *found.outputs])
    hidden = {f"hidden_states/{i}": values for i, values in states}
    return hidden | {"logits": body.logits(found.outputs[-1])}


def decoder_errors(recording: Mapping[str, Any]) -> Found:
    """Compares a decoder, without a memory, with a recording."""
    folder = folder_of(recording)
    found = Found(recording, is_sharp(folder))
    body = body_of(folder)(nnx.Rngs(0))
    graph, params = split_with(body, body.names().read(HubFolder(folder)))

    labels_BT = recording["labels"][:, 1:]

    def read(params, dtype):
        values = outputs(bound(graph, params, dtype), recording)
        loss = mean_loss(values["logits"][:, :-1], labels_BT, labels_BT != -100)
        return loss, values | {"loss": loss}

    at = dict.fromkeys(("hidden_states", "logits"), recording["attention_mask"] == 1)
    grads = found.compare(read, params, ("logits", "loss"), at)
    found.gradient("grads/", body.names().write(grads))
    return found


def begun(model: PretrainedLanguageModel) -> tuple:
    return model.begin_decoding(model.init_caches(1))


def greedy_errors(recording: Mapping[str, Any], found: Found) -> None:
    """Continues the prompts token by token, each row from its own first token."""
    folder = folder_of(recording)
    prompts, masks = recording["greedy/prompt"], recording["greedy/prompt_mask"] == 1
    tokens_BN = recording["greedy/tokens"]
    N = tokens_BN.shape[1]
    model = PretrainedLanguageModel(nnx.Rngs(0), body=body_of(folder))
    model = model.for_segments(prompts.shape[1] + N)
    graph, params = split_with(model, model.given_parameters())
    decode = jax.jit(lambda params, *inputs: bound(graph, params).decode(*inputs))
    begin = jax.jit(lambda params: begun(bound(graph, params)))
    for row, (prompt, mask) in enumerate(zip(prompts, masks, strict=True)):
        caches = begin(params)
        given = list(prompt[mask])
        for place in range(int(mask.sum()) + N - 1):
            token_B = jnp.asarray(given[place : place + 1], jnp.int32)
            logits_BV, caches = decode(params, token_B, caches)
            number = place + 1 - int(mask.sum())
            if number >= 0:
                given.append(int(logits_BV[0].argmax()))
                scores_V = recording["greedy/scores"][row, number]
                tolerance = max(found.outputs * np.abs(scores_V).max(), SMALLEST)
                found.add("greedy scores", np.abs(logits_BV[0] - scores_V).max(), tolerance)
        same = np.array_equal(given[-N:], tokens_BN[row])
        found.add("greedy tokens", 0.0 if same else np.inf, SMALLEST)


def errors(recording: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    config = config_of(recording)
    kind: str = config.get("kind", "")
    if kind.startswith("ARPT"):
        replayed_by = pooled_spans if "start_logits" in recording else pooled
        return replayed_by.errors(recording, config)
    if kind.startswith("RMT"):
        replayed_by = reader if "segment_input_ids" in recording else memory_tokens
        return replayed_by.errors(recording, config)
    if config.get("task", "") in encoders.TASKS:
        return encoders.errors(recording)
    if config.get("task") == "sequence to sequence":
        return t5.errors(recording)
    found = decoder_errors(recording)
    if "greedy/tokens" in recording:
        greedy_errors(recording, found)
    return found.errors
