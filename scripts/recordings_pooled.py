"""Replays recordings of pooled recurrence around a decoder; see `check_recording.py`.

The reference is float64, and so is the replay. In it a document's first window has all its
positions new, as a first segment that is longer by the overlap. Compared are logits, nats, what is
pooled, the vectors, the loss, gradients by their names on disk through all windows and through 0 or
1 vectors, and a greedy continuation in the decoding form.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pretrained_errors import SMALLEST, Found, body_of, bound, folder_of, split_with, widened

from brt.models.layers.losses import token_losses
from brt.models.pretrained.language_model import PretrainedLanguageModel
from brt.models.pretrained.pooled_memory import PooledMemory

PRECISE = 1e-9


class Replay:
    """The model of a recording, its parameters in float64, and its windows.

    Args:
        recording, config: as `errors` takes them.
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
                    rngs, body, layer=config["insertion_layer"], hidden=hidden, pooled=pooled
                ),
            ),
            overlap=self.overlap,
        )
        self.names = model.body.names()
        module = {"mixture_L": recording["module/alpha"], "network": {}}
        for i in range(len(hidden) + 1):
            module["network"][i] = {
                "matrix_IU": recording[f"module/feed_forward/{i}/weight"],
                "bias_U": recording[f"module/feed_forward/{i}/bias"],
            }
        given = model.given_parameters() | {"memories": {0: module}}
        self.graph, params = split_with(model, given)
        self.params = widened(params)

    def model(self, params: Any, window: int) -> PretrainedLanguageModel:
        """Returns the model for the window of that number."""
        return bound(self.graph, params, "float64").for_segments(self.fresh(window).shape[1])

    def fresh(self, window: int) -> jax.Array:
        """Returns the tokens of a window that are new."""
        tokens = self.recording["windows"][window]
        return jnp.asarray(tokens[:, self.overlap if window else 0 :], jnp.int32)

    def of_window(self, key: str, window: int) -> np.ndarray:
        """Returns what was recorded of a window's new tokens."""
        return self.recording[key][window][:, self.overlap if window else 0 :]

    def read(self, params: Any, window: int, caches: tuple) -> tuple[jax.Array, tuple]:
        return self.model(params, window)(self.fresh(window), caches)

    def empty(self, params: Any) -> tuple:
        rows = self.recording["windows"].shape[1]
        return bound(self.graph, params, "float64").init_caches(rows)

    def nats(self, logits_BTV: jax.Array, window: int) -> jax.Array:
        """Returns nats of the new tokens, 0 where nothing is scored."""
        targets_BT = jnp.asarray(np.maximum(self.of_window("targets", window), 0), jnp.int32)
        nats_BT = token_losses(logits_BTV, targets_BT)[0]
        return jnp.where(self.of_window("scored", window), nats_BT, 0.0)

    def loss(self, params: Any, depth: int | None = None) -> jax.Array:
        """Returns the mean over scored tokens, each through `depth` vectors; None: all."""
        W = len(self.recording["windows"])
        total = jnp.zeros(())
        if depth is None:
            caches = self.empty(params)
            for window in range(W):
                logits_BTV, caches = self.read(params, window, caches)
                total += self.nats(logits_BTV, window).sum()
        else:
            vectors = [self.empty(params)[1]]
            caches = self.empty(params)
            for window in range(W):
                _, caches = self.read(params, window, caches)
                vectors.append(jax.lax.stop_gradient(caches[1]))
            for window in range(W):
                first = max(window - depth, 0)
                caches = self.overlap_before(params, first), vectors[first]
                for number in range(first, window + 1):
                    logits_BTV, caches = self.read(params, number, caches)
                total += self.nats(logits_BTV, window).sum()
        return total / self.recording["scored"].sum()

    def overlap_before(self, params: Any, window: int) -> Any:
        """Returns the tokens that a window reads again, with their gradient."""
        (empty, _) = self.empty(params)
        if not window or not self.overlap:
            return empty
        again = jnp.asarray(self.recording["windows"][window][:, : self.overlap], jnp.int32)
        x_BOD = bound(self.graph, params, "float64").embed(again)
        return empty._replace(x_BOD=x_BOD, count_B=jnp.full(len(again), self.overlap))

    def disk(self, grads: Mapping) -> dict[str, np.ndarray]:
        """Returns gradients by the names of the recording."""
        found = {f"body/{k}": v for k, v in self.names.write(grads["body"]).items()}
        module = grads["memories"][0]
        found["module/alpha"] = np.asarray(module["mixture_L"])
        for i, layer in module["network"].items():
            found[f"module/feed_forward/{i}/weight"] = np.asarray(layer["matrix_IU"])
            found[f"module/feed_forward/{i}/bias"] = np.asarray(layer["bias_U"])
        return found


def errors(
    recording: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns error and tolerance of each thing that is compared, by its name."""
    found = Found(recording)
    with jax.enable_x64(True):
        replay = Replay(recording, config, "all")
        _windows(replay, found)
        for key, depth in (("grads/", None), ("grads_depth0/", 0), ("grads_depth1/", 1)):
            if any(name.startswith(key) for name in recording):
                differentiated = jax.jit(lambda p, k=depth: jax.value_and_grad(replay.loss)(p, k))
                loss, grads = differentiated(replay.params)
                found.gradient(key, replay.disk(grads))
                found.output("loss", loss, relative=PRECISE)
        if "greedy/tokens" in recording:
            _greedy(replay, found)
        if "logits_fresh_pooling" in recording:
            _windows(Replay(recording, config, "unrepeated"), found, "logits_fresh_pooling")
    return found.errors


def _windows(replay, found, logits="logits"):
    """Compares the windows in order, and what each leaves."""
    recording, params = replay.recording, replay.params
    caches = replay.empty(params)
    for window in range(len(recording["windows"])):

        @jax.jit
        def read(params, caches, window=window):
            model = replay.model(params, window)
            x_BTD = model.embed(replay.fresh(window))
            real_B = jnp.asarray(replay.of_window("real", window).sum(axis=1))
            # What is padded is pooled nowhere in this form.
            _, part = model.read_part_embedded(x_BTD, caches, real_B)
            memory = model.memories[0]
            z_BD = memory.pooled_vector(part[1].summary)
            return *model(replay.fresh(window), caches), z_BD, memory.vectors(z_BD)[:, 0]

        logits_BTV, caches, z_BD, vector_BD = read(params, caches)
        real_BT = replay.of_window("real", window)
        expected = replay.of_window(logits, window)
        difference = np.abs(expected - logits_BTV)[real_BT]
        largest = np.abs(recording[logits]).max()
        found.add(logits, difference.max(initial=0.0), PRECISE * largest)
        if logits != "logits":
            continue
        nats = replay.of_window("nats", window)
        found.add(
            "nats", np.abs(nats - replay.nats(logits_BTV, window)).max(), 1e-6 * nats.max(initial=1)
        )
        at_B = recording["real"][window].any(axis=1) & real_BT.any(axis=1)
        for key, values in (("z", z_BD), ("h_prev", vector_BD)):
            error = np.abs(recording[key][window] - values)[at_B].max(initial=0.0)
            found.add(key, error, PRECISE * np.abs(recording[key]).max())
        # Only rows whose window is full go on; what the others carry is never scored.
        whole_B = at_B & recording["real"][window].all(axis=1)
        error = np.abs(recording["h_prev"][window] - caches[1].vectors_BMD[:, 0])[whole_B]
        found.add("h_prev carried", error.max(initial=0.0), PRECISE * 10)


def _greedy(replay, found):
    """Continues row 0's first window by a window of its own, token by token."""
    recording, params = replay.recording, replay.params
    context_BT = jnp.asarray(recording["greedy/context"], jnp.int32)
    tokens = recording["greedy/tokens"][0]
    first = bound(replay.graph, params, "float64").for_segments(context_BT.shape[1])
    logits_BTV, caches = first(context_BT, first.init_caches(1))
    model = first.for_segments(len(tokens))
    graph, _ = nnx.split(model, nnx.Param)
    decode = jax.jit(lambda params, *inputs: bound(graph, params, "float64").decode(*inputs))
    caches = model.begin_decoding(caches)
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
