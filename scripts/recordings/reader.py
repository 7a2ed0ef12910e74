"""Replays recordings of memory around encoders and T5; see `check_recording.py`.

Compares the head's outputs for each segment, the memories at its start and end, losses, and
gradients by their names on disk, through all memories and through 0 or 1. The published wrapper
counts memory among the words that T5 may write; here it does not, and both losses are compared.
"""

import functools
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.caches import select_rows
from brt.models.layers.losses import token_losses
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.folder import HubFolder
from brt.pretrained.reader import PretrainedReader
from brt.token_ids import PADDING
from recordings.pretrained_errors import Found, body_of, bound, folder_of, split_with

HEAD_ROWS = "lm_head_rows"


class Replay:
    """The model of a recording, and its segments."""

    def __init__(self, recording: Mapping[str, Any], config: Mapping[str, Any]):
        self.recording = recording
        folder = folder_of(recording)
        self.kind = HubFolder(folder).config["model_type"]
        self.memory = config["num_mem_tokens"]
        self.all_losses = config["sum_loss"]
        labels = recording["labels"]
        words = labels.shape[1] if self.kind == "t5" else 1
        classes = 2 if self.kind == "t5" else recording["segment_logits"].shape[2]
        model = PretrainedReader(
            nnx.Rngs(0),
            body=body_of(folder),
            targets="words" if self.kind == "t5" else "classes",
            classes=classes,
            words=words,
            num_memory=self.memory,
        )
        self.names = model.names()
        given = model.given_parameters() | {"memory_SD": recording["memory_rows"]}
        self.graph, self.params = split_with(model, given)
        if "lm_head_rows" in recording:  # of the wrapper only
            self.params = self.params | {HEAD_ROWS: recording[HEAD_ROWS]}
        self.present_SB = recording["segment_present"].astype(bool)

    def inputs(self, segment: int) -> np.ndarray:
        """Returns a segment's tokens without its memory, `PADDING` where there is none."""
        ids_BI = self.recording["segment_input_ids"][segment]
        first = 0 if self.kind == "t5" else 1
        ids_BT = np.delete(ids_BI, range(first, first + self.memory), axis=1)
        padding = HubFolder(folder_of(self.recording)).config["pad_token_id"]
        nothing_B1 = ~self.present_SB[segment][:, None]
        return np.where(nothing_B1 | (ids_BT == padding), PADDING, ids_BT).astype(np.int32)

    def read(
        self, params: Any, dtype: str, depth: int | None = None, vocabulary: bool = False
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Returns the loss, and outputs by their keys in the recording.

        Args:
            depth: memories that the gradient of the last segment's loss crosses; None: all.
            vocabulary: whether memory is excluded from the words that may be written.
        """
        self.head_rows = params.get(HEAD_ROWS)
        of_model = {name: part for name, part in params.items() if name != HEAD_ROWS}
        model = bound(self.graph, of_model, dtype)
        S = len(self.present_SB)
        empty = caches = model.init_caches(self.present_SB.shape[1])
        memories_in, memories_out, logits, losses = [], [], [], []
        for segment in range(S):
            if depth is not None and segment <= S - 1 - depth:
                caches = jax.lax.stop_gradient(caches)
            starts_B = jnp.asarray(~self.present_SB[:segment].any(axis=0))
            caches = select_rows(starts_B, empty, caches)
            memories_in.append(caches[1].memory_BSD)
            x = model.embed(jnp.asarray(self.inputs(segment)))
            outputs, caches, _ = model.stack(x, caches)
            memories_out.append(caches[1].memory_BSD)
            nats_BW, logits_BWV = self.losses(model, outputs, vocabulary)
            logits.append(logits_BWV)
            losses.append(self.mean(nats_BW, segment))
        loss = losses[-1]
        if self.all_losses and depth is None:
            # The wrapper replaces the last segment's loss by the mean.
            loss = losses[-1] = jnp.stack(losses).mean()
        return loss, {
            "memory_in": jnp.stack(memories_in),
            "memory_out": jnp.stack(memories_out),
            "segment_logits": jnp.stack(logits),
            "segment_losses": jnp.stack(losses),
            "logits": logits[-1],
            "loss": loss,
        }

    def losses(self, model: Any, outputs: Any, vocabulary: bool) -> tuple[jax.Array, jax.Array]:
        """Returns nats and logits of the labels: (B, W) and (B, W, V), or (B, 1) and (B, N)."""
        labels = self.recording["labels"]
        if self.kind != "t5":
            logits_BN = model.answers(outputs)
            targets_B1 = jnp.asarray(labels[:, None], jnp.int32)
            return token_losses(logits_BN[:, None], targets_B1)[0], logits_BN
        body = cast(T5, model.body)
        targets_BW = jnp.asarray(np.maximum(labels, 0), jnp.int32)
        states = body.decode(body.shifted(targets_BW), outputs.x_BTD, outputs.real_BT)
        logits_BWV = body.word_logits(states[-1])
        if not vocabulary:
            rows = model.memory_SD[...] if body.settings.tied else self.head_rows
            of_memory = body.word_logits(states[-1], rows)
            logits_BWV = jnp.concatenate([logits_BWV, of_memory], axis=-1)
        return token_losses(logits_BWV, targets_BW)[0], logits_BWV

    def mean(self, nats_BW: jax.Array, segment: int) -> jax.Array:
        labels = self.recording["labels"].reshape(len(nats_BW), -1)
        scored_BW = jnp.asarray((labels != -100) & self.present_SB[segment][:, None])
        return jnp.where(scored_BW, nats_BW, 0.0).sum() / scored_BW.sum()

    def disk(self, grads: Any) -> dict[str, np.ndarray]:
        found = self.names.write(grads)
        # In the wrapper the embedding matrix holds the memory, too.
        embedding = "body.embedding_VD"
        words = next(t.name for t in self.names.tensors if embedding in t.parameters)
        found[words] = np.concatenate([found[words], np.asarray(grads["memory_SD"])])
        if HEAD_ROWS in grads:
            rows = np.asarray(grads[HEAD_ROWS])
            found["lm_head.weight"] = np.concatenate([found["lm_head.weight"], rows])
        return found


def errors(
    recording: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    replay = Replay(recording, config)
    sharp = replay.kind == "t5" and "lm_head_rows" in recording
    found = Found(recording, sharp)

    def gradients(**options):
        read = functools.partial(replay.read, dtype="float32", **options)
        return jax.jit(jax.value_and_grad(read, has_aux=True))(replay.params)

    at = dict.fromkeys(("memory_in", "memory_out", "segment_logits"), replay.present_SB)
    grads = found.compare(replay.read, replay.params, ("segment_logits", "loss"), at)
    found.gradient("grads/", replay.disk(grads))
    for key, depth in (("grads_depth0/", 0), ("grads_depth1/", 1)):
        if any(name.startswith(key) for name in recording):
            _, grads = gradients(depth=depth)
            found.gradient(key, replay.disk(grads))
    if "loss_vocabulary" in recording:
        (loss, _), grads = gradients(vocabulary=True)
        found.output("loss_vocabulary", loss)
        found.gradient("grads_vocabulary/", replay.disk(grads))
    return found.errors
