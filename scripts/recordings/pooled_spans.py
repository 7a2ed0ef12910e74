"""Replays recordings of pooled recurrence around RoBERTa, on questions; see `check_recording.py`.

The reference and the replay are float64. Compares scores of spans and kinds, pooled states, the
vectors, the loss, and gradients by their names on disk.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.caches import select_rows
from brt.models.layers.losses import token_losses
from brt.pretrained.folder import HubFolder
from brt.pretrained.memories.pooled_memory import FinalLayerMemory
from brt.pretrained.reader import PretrainedReader
from brt.token_ids import PADDING
from recordings.pretrained_errors import (
    PRECISE,
    Found,
    body_of,
    bound,
    folder_of,
    network_of,
    network_on_disk,
    split_with,
    widened,
)

SPAN = 0


class Replay:
    """The model of a recording, its parameters in float64."""

    def __init__(self, recording: Mapping[str, Any], config: Mapping[str, Any]):
        self.recording = recording
        folder = folder_of(recording)
        self.padding = HubFolder(folder).config["pad_token_id"]
        hidden = tuple(config["hidden"])
        model = PretrainedReader(
            nnx.Rngs(0),
            body=body_of(folder),
            targets="spans",
            memories=(
                lambda rngs, body: FinalLayerMemory(
                    rngs, body, layer_index=config["insertion_layer"] - 1, hidden=hidden
                ),
            ),
        )
        self.names = model.names()
        given = model.given_parameters()
        given["head"] |= {
            "kinds_DN": recording["module/type/weight"],
            "kinds_bias_N": recording["module/type/bias"],
        }
        network = network_of(recording)
        self.graph, params = split_with(model, given | {"memories": {0: {"network": network}}})
        self.params = widened(params)

    def read(self, params: Any) -> tuple[jax.Array, dict[str, list]]:
        """Returns the loss, and the compared values of each window."""
        recording = self.recording
        model = bound(self.graph, params, "float64")
        windows, present_WB = recording["windows"], recording["present"].astype(bool)
        rows = windows.shape[1]
        caches = model.init_caches(rows)
        found: dict[str, list] = {k: [] for k in ("start_logits", "end_logits", "z", "h_prev")}
        span_nats = jnp.zeros(())
        is_span_B = recording["types"] == SPAN
        kinds_BN = jnp.zeros((rows, 3))
        for window, ids_BT in enumerate(windows):
            present_B = present_WB[window]
            ids_BT = np.where((ids_BT == self.padding) | ~present_B[:, None], PADDING, ids_BT)
            starts_B = ~present_WB[:window].any(axis=0)
            caches = select_rows(jnp.asarray(starts_B), model.init_caches(rows), caches)
            outputs, after, _ = model.stack(model.embed(jnp.asarray(ids_BT, jnp.int32)), caches)
            first_BT, last_BT = model.head(outputs.x_BTD)
            hidden_BT = jnp.where(outputs.real_BT, 0.0, -1e30)
            kinds_BN = jnp.where(present_B[:, None], model.head.kinds(outputs.first_BD), kinds_BN)
            for key, scores_BT, places in (
                ("start_logits", first_BT + hidden_BT, recording["starts"][window]),
                ("end_logits", last_BT + hidden_BT, recording["ends"][window]),
            ):
                found[key].append(scores_BT)
                targets_B1 = jnp.asarray(places[:, None], jnp.int32)
                nats_B = token_losses(scores_BT[:, None], targets_B1)[0][:, 0]
                span_nats += jnp.where(present_B & is_span_B, nats_B, 0.0).sum() / 2
            memory = model.memories[0]
            real_BT = outputs.real_BT
            counts_B = jnp.maximum(real_BT.sum(axis=1), 1)
            sums_BD = jnp.where(real_BT[..., None], outputs.x_BTD, 0).sum(axis=1)
            found["z"].append(sums_BD / counts_B[:, None])
            found["h_prev"].append(memory.computed(found["z"][-1])[:, 0])
            # A row without a window keeps its state.
            caches = select_rows(jnp.asarray(present_B), after, caches)
        kind_nats_B = token_losses(
            kinds_BN[:, None], jnp.asarray(recording["types"][:, None], jnp.int32)
        )[0]
        windows_of_spans = (present_WB & is_span_B).sum()
        found["type_logits"] = [kinds_BN]
        return span_nats / windows_of_spans + kind_nats_B.mean(), found

    def disk(self, grads: Any) -> dict[str, np.ndarray]:
        found = {f"body/{k}": v for k, v in self.names.write(grads).items()}
        found["module/type/weight"] = np.asarray(grads["head"]["kinds_DN"])
        found["module/type/bias"] = np.asarray(grads["head"]["kinds_bias_N"])
        return found | network_on_disk(grads["memories"][0]["network"])


def errors(
    recording: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    found = Found(recording)
    with jax.enable_x64(True):
        replay = Replay(recording, config)
        (loss, given), grads = jax.jit(jax.value_and_grad(replay.read, has_aux=True))(replay.params)
        found.output("loss", loss, relative=PRECISE)
        present_WB = recording["present"].astype(bool)
        for key in ("start_logits", "end_logits", "z", "h_prev"):
            expected, values = recording[key], np.stack(given[key])
            at = present_WB if expected.ndim == 3 and key in ("z", "h_prev") else None
            if at is None:
                at = present_WB[..., None] & (np.abs(expected) < 1e29)
            largest = np.abs(expected[at]).max()
            found.add(key, np.abs(expected - values)[at].max(), PRECISE * largest)
        kinds = np.abs(recording["type_logits"] - given["type_logits"][0]).max()
        found.add("type_logits", kinds, PRECISE * np.abs(recording["type_logits"]).max())
        found.gradient("grads/", replay.disk(grads))
    return found.errors
