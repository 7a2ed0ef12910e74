"""Replays recordings of pooled recurrence around a decoder; see `check_recording.py`.

The reference and the replay are float64. In the reference, all positions of a document's first
window are new, as in a first segment that is longer by the overlap. Compares logits, nats, pooled
states, the vectors, the loss, gradients by their names on disk through all windows and through 0 or
1 vectors, and a greedy continuation in the decoding form.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.layers.losses import token_losses
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.memories.pooled_memory import PooledMemory
from recordings.pretrained_errors import (
    PRECISE,
    SMALLEST,
    Found,
    body_of,
    bound,
    folder_of,
    network_of,
    network_on_disk,
    split_with,
    widened,
)


class Replay:
    """The model of a recording, its parameters in float64, and its windows.

    pooled: as of `PooledMemory`.
    """

    def __init__(self, recording: Mapping[str, Any], config: Mapping[str, Any], pooled: str):
        self.recording = recording
        self.overlap = config["overlap"]
        hidden = tuple(config["hidden"])
        model = PretrainedLanguageModel(
            nnx.Rngs(0),
            body=body_of(folder_of(recording)),
            memories=(
                lambda rngs, body: PooledMemory(
                    rngs,
                    body,
                    layer_index=config["insertion_layer"] - 1,
                    hidden=hidden,
                    pooled=pooled,
                ),
            ),
            overlap=self.overlap,
        )
        self.names = model.body.names()
        module = {"mixture_L": recording["module/alpha"], "network": network_of(recording)}
        given = model.given_parameters() | {"memories": {0: module}}
        self.graph, params = split_with(model, given)
        self.params = widened(params)

        # Compiled once for windows of one length.
        self.compiled = jax.jit(self._window)
        self.part = jax.jit(self._part)
        self.backward = jax.jit(self._backward)
        self.embed_backward = jax.jit(self._embed_backward)

    def _model(self, params, tokens_BT):
        return bound(self.graph, params, "float64").for_segments(tokens_BT.shape[1])

    def _window(self, params, scored, caches):
        tokens_BT, targets_BT, weights_BT = scored
        logits_BTV, caches = self._model(params, tokens_BT)(tokens_BT, caches)
        nats_BT = jnp.where(weights_BT, token_losses(logits_BTV, targets_BT)[0], 0.0)
        return nats_BT.sum(), nats_BT, logits_BTV, caches

    def _part(self, params, tokens_BT, caches, counts_B):
        model = self._model(params, tokens_BT)
        _, found = model.read_part_embedded(model.embed(tokens_BT), caches, counts_B)
        z_BD = model.memories[0].pooled_vector(found[1].summary)
        return z_BD, model.memories[0].computed(z_BD)[:, 0]

    def _backward(self, params, scored, caches, d_nats, d_after):
        """Returns gradients of the parameters and of a window's first state."""

        def window(params, held):
            nats, _, _, after = self._window(params, scored, with_arrays(caches, held))
            return nats, arrays_of(after)

        _, back = jax.vjp(window, params, arrays_of(caches))
        return back((d_nats, d_after))

    def _embed_backward(self, params, tokens_BT, d_BTD):
        _, back = jax.vjp(lambda params: self._model(params, tokens_BT).embed(tokens_BT), params)
        return back(d_BTD)[0]

    def fresh(self, window: int) -> jax.Array:
        tokens = self.recording["windows"][window]
        return jnp.asarray(tokens[:, self.overlap if window else 0 :], jnp.int32)

    def of_window(self, key: str, window: int) -> np.ndarray:
        return self.recording[key][window][:, self.overlap if window else 0 :]

    def scored(self, window: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        targets_BT = jnp.asarray(np.maximum(self.of_window("targets", window), 0), jnp.int32)
        return self.fresh(window), targets_BT, jnp.asarray(self.of_window("scored", window))

    def empty(self) -> tuple:
        rows = self.recording["windows"].shape[1]
        return bound(self.graph, self.params, "float64").init_caches(rows)

    def gradients(self, depth: int | None = None) -> tuple[jax.Array, Any]:
        W = len(self.recording["windows"])
        count = self.recording["scored"].sum()
        before = [self.empty()]
        loss = jnp.zeros(())
        for window in range(W):
            nats, _, _, after = self.compiled(self.params, self.scored(window), before[-1])
            loss += nats / count
            before.append(after)
        total = jax.tree.map(jnp.zeros_like, self.params)
        nothing = jax.tree.map(jnp.zeros_like, arrays_of(before[0]))

        def through(window, weight, held, total):
            inputs = self.params, self.scored(window), before[window], weight / count, held
            of_params, held = self.backward(*inputs)
            return jax.tree.map(jnp.add, total, of_params), held

        if depth is None:
            held = nothing
            for window in reversed(range(W)):
                total, held = through(window, 1.0, held, total)
            return loss, total
        for window in range(W):
            first = max(window - depth, 0)
            held = nothing
            for number in reversed(range(first, window + 1)):
                total, held = through(number, float(number == window), held, total)
            if first and self.overlap:  # the reference embeds the overlap again
                again = self.recording["windows"][first][:, : self.overlap]
                inputs = self.params, jnp.asarray(again, jnp.int32), held[0]
                total = jax.tree.map(jnp.add, total, self.embed_backward(*inputs))
        return loss, total

    def disk(self, grads: Mapping) -> dict[str, np.ndarray]:
        found = {f"body/{k}": v for k, v in self.names.write(grads["body"]).items()}
        module = grads["memories"][0]
        found["module/alpha"] = np.asarray(module["mixture_L"])
        return found | network_on_disk(module["network"])


def arrays_of(caches: tuple) -> tuple[jax.Array, jax.Array]:
    return caches[0].x_BOD, caches[1].vectors_BMD


def with_arrays(caches: tuple, held: tuple[jax.Array, jax.Array]) -> tuple:
    return caches[0]._replace(x_BOD=held[0]), caches[1]._replace(vectors_BMD=held[1])


def errors(
    recording: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    found = Found(recording)
    with jax.enable_x64(True):
        replay = Replay(recording, config, "all")
        _windows(replay, found)
        for key, depth in (("grads/", None), ("grads_depth0/", 0), ("grads_depth1/", 1)):
            if any(name.startswith(key) for name in recording):
                loss, grads = replay.gradients(depth)
                found.gradient(key, replay.disk(grads))
                found.output("loss", loss, relative=PRECISE)
        if "greedy/tokens" in recording:
            _greedy(replay, found)
        if "logits_fresh_pooling" in recording:
            _windows(Replay(recording, config, "unrepeated"), found, "logits_fresh_pooling")
    return found.errors


def _windows(replay, found, logits="logits"):
    recording, params = replay.recording, replay.params
    caches = replay.empty()
    for window in range(len(recording["windows"])):
        real_B = jnp.asarray(replay.of_window("real", window).sum(axis=1))
        # This form pools no padding.
        z_BD, vector_BD = replay.part(params, replay.fresh(window), caches, real_B)
        inputs = params, replay.scored(window), caches
        _, nats_BT, logits_BTV, caches = replay.compiled(*inputs)
        real_BT = replay.of_window("real", window)
        expected = replay.of_window(logits, window)
        difference = np.abs(expected - logits_BTV)[real_BT]
        largest = np.abs(recording[logits]).max()
        found.add(logits, difference.max(initial=0.0), PRECISE * largest)
        if logits != "logits":
            continue
        nats = replay.of_window("nats", window)
        found.add("nats", np.abs(nats - nats_BT).max(), 1e-6 * nats.max(initial=1))
        at_B = recording["real"][window].any(axis=1) & real_BT.any(axis=1)
        for key, values in (("z", z_BD), ("h_prev", vector_BD)):
            error = np.abs(recording[key][window] - values)[at_B].max(initial=0.0)
            found.add(key, error, PRECISE * np.abs(recording[key]).max())
        # Only rows whose window is full continue; the others are not scored again.
        whole_B = at_B & recording["real"][window].all(axis=1)
        error = np.abs(recording["h_prev"][window] - caches[1].vectors_BMD[:, 0])[whole_B]
        found.add("h_prev carried", error.max(initial=0.0), PRECISE * 10)


def _greedy(replay, found):
    """Continues row 0's first window by a whole window, token by token."""
    recording, params = replay.recording, replay.params
    context_BT = jnp.asarray(recording["greedy/context"], jnp.int32)
    tokens = recording["greedy/tokens"][0]
    first = bound(replay.graph, params, "float64").for_segments(context_BT.shape[1])
    graph, _ = nnx.split(first.for_segments(len(tokens)), nnx.Param)

    @jax.jit
    def begin(params):
        model = bound(replay.graph, params, "float64").for_segments(context_BT.shape[1])
        logits_BTV, caches = model(context_BT, model.init_caches(1))
        return logits_BTV, bound(graph, params, "float64").begin_decoding(caches)

    decode = jax.jit(lambda params, *inputs: bound(graph, params, "float64").decode(*inputs))
    logits_BTV, caches = begin(params)
    logits_V = logits_BTV[0, -1]
    margins = []
    for token in tokens:
        best = int(logits_V.argmax())
        found.add("greedy tokens", 0.0 if best == token else np.inf, SMALLEST)
        runner_up, highest = np.sort(np.asarray(logits_V))[-2:]
        margins.append(highest - runner_up)
        logits_BV, caches = decode(params, jnp.full(1, best, jnp.int32), caches)
        logits_V = logits_BV[0]
    error = np.abs(np.array(margins) - recording["greedy/margin"][0]).max()
    found.add("greedy margin", error, 1e-8)
