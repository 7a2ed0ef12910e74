"""Replays recordings of memory tokens around a pretrained decoder; see `check_recording.py`.

Compares logits, the memory at the start and the end of each segment, the loss, and gradients by
their names on disk, through all memories.
"""

import itertools
from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.layers.losses import token_losses
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.pretrained.language_model import PretrainedLanguageModel
from recordings.pretrained_errors import Found, body_of, bound, folder_of, is_sharp, split_with


def errors(
    recording: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    folder = folder_of(recording)
    if "segment_lengths" not in recording:
        raise ValueError("memory tokens around an encoder are not replayed yet.")
    found = Found(recording, is_sharp(folder))
    model = RecurrentMemoryTransformer(
        nnx.Rngs(0),
        num_memory=config["num_mem_tokens"],
        body=lambda rngs, special_tokens: PretrainedLanguageModel(rngs, body=body_of(folder)),
        allow_long_memory=True,
    )
    names = cast(PretrainedLanguageModel, model.body).body.names()
    graph, params = split_with(
        model, model.given_parameters() | {"memory_SD": recording["memory_rows"]}
    )
    ids_BN = recording["input_ids"]
    real_BN = recording["attention_mask"] == 1
    borders = np.cumsum([0, *recording["segment_lengths"]])

    def read(params, dtype):
        whole = bound(graph, params, dtype)
        caches = whole.init_caches(len(ids_BN))
        logits, memories = [], [caches[-1].memory_BSD]
        for first, last in itertools.pairwise(borders):
            part = whole.for_segments(int(last - first))
            logits_BTV, caches = part(jnp.asarray(ids_BN[:, first:last], jnp.int32), caches)
            logits.append(logits_BTV)
            memories.append(caches[-1].memory_BSD)
        logits_BNV = jnp.concatenate(logits, axis=1)
        scored_BN = jnp.asarray(real_BN[:, 1:])
        nats_BN = token_losses(logits_BNV[:, :-1], jnp.asarray(ids_BN[:, 1:], jnp.int32))[0]
        loss = jnp.where(scored_BN, nats_BN, 0.0).sum() / scored_BN.sum()
        found = {"memory_in": jnp.stack(memories[:-1]), "memory_out": jnp.stack(memories[1:])}
        return loss, found | {"logits": logits_BNV, "loss": loss}

    # The wrapper hides padding from memory; here no segment follows one with padding.
    whole_SB = np.stack([real_BN[:, a:b].all(axis=1) for a, b in itertools.pairwise(borders)])
    before_SB = np.concatenate([np.ones_like(whole_SB[:1]), whole_SB[:-1]])
    at = {"memory_in": before_SB, "memory_out": whole_SB, "logits": real_BN}
    grads = found.compare(read, params, ("logits", "loss"), at)
    named = names.write(grads["body"]["body"]) | {"memory": np.asarray(grads["memory_SD"])}
    found.gradient("grads/", named)
    return found.errors
