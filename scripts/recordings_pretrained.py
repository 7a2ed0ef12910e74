"""Replays recordings of pretrained transformers; see `check_recording.py`.

Compared are, as far as they are there, hidden states, logits, the loss, gradients by their names
on disk, logits and loss in float64, and greedy continuations. The folder of the weights is named in
the recording's `config_json` and lies beside the recording. Outputs are compared where
`attention_mask` is 1.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.layers.losses import token_losses
from brt.models.pretrained.body import HIDDEN, Decoder, PretrainedBody, Seen
from brt.models.pretrained.folder import HubFolder
from brt.models.pretrained.gpt2 import GPT2
from brt.models.pretrained.names import Names, merged

BODIES: dict[str, Callable[..., Decoder]] = {"gpt2": GPT2}
"""Decoders by the `model_type` of their folders."""

OUTPUTS, GRADIENTS = 5e-6, 5e-5
"""Of the largest entry: of all outputs of a kind, of each gradient."""
SHARP = 3e-5, 3e-4
"""The same where attention is not scaled, and sharp."""
SMALLEST = 1e-5
"""Tolerance of outputs, absolute, where it is larger."""
NO_GRADIENT = 1e-6
"""Absolute, of gradients that are zero but for rounding."""


class Found:
    """Errors by name, each with its tolerance.

    Args:
        recording: for what is expected.
        sharp: whether its attention is not scaled.
    """

    def __init__(self, recording: Mapping[str, Any], sharp: bool = False):
        self.recording = recording
        self.outputs, self.gradients = SHARP if sharp else (OUTPUTS, GRADIENTS)
        self.errors: dict[str, tuple[float, float]] = {}

    def add(self, name: str, error: float, tolerance: float) -> None:
        """Keeps the error that is the largest part of its tolerance."""
        before = self.errors.get(name, (0.0, tolerance))
        if not error / tolerance <= before[0] / before[1]:
            before = float(error), float(tolerance)
        self.errors[name] = before

    def output(
        self, key: str, values: Any, at: np.ndarray | None = None, relative: float | None = None
    ) -> None:
        """Compares an output with what was recorded under the key, where `at` is true."""
        expected, values = self.recording[key], np.asarray(values)
        name = key.split("/")[0] if relative is None else f"float64 {key.split('/')[-1]}"
        if expected.shape != values.shape:
            return self.add(name, np.inf, SMALLEST)
        largest = np.abs(expected[at] if at is not None else expected).max(initial=0.0)
        difference = np.abs(expected - values)
        error = (difference[at] if at is not None else difference).max(initial=0.0)
        tolerance = max((relative or self.outputs) * largest, 0.0 if relative else SMALLEST)
        self.add(name, error, tolerance)

    def gradient(self, prefix: str, tensors: Mapping[str, np.ndarray], without: Any = ()) -> None:
        """Compares gradients by their names on disk with all that were recorded."""
        recorded = {
            key.removeprefix(prefix): value
            for key, value in self.recording.items()
            if key.startswith(prefix)
        }
        name = f"gradients {prefix.strip('/')}"
        for tensor, expected in recorded.items():
            values = tensors.get(tensor)
            if values is None or values.shape != expected.shape:
                self.add(name, np.inf, self.gradients)
                continue
            error, largest = np.abs(expected - values).max(), np.abs(expected).max()
            if tensor in without:
                self.add(f"{name} of 0", error, NO_GRADIENT)
            else:
                self.add(name, error / largest, self.gradients)


def config_of(recording: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(str(recording["config_json"]))


def folder_of(recording: Mapping[str, Any]) -> str:
    """Returns the path of the folder of weights, beside the recording."""
    return str(Path(recording["path"]).parent / config_of(recording)["folder"])


def load(folder: str) -> tuple[nnx.GraphDef, dict, Names]:
    """Returns a decoder's graph, its parameters as a nested dictionary, and its names on disk."""
    model_type = HubFolder(folder).config["model_type"]
    if model_type not in BODIES:
        raise ValueError(f"{folder} is a {model_type}, which is not replayed yet.")
    body = BODIES[model_type](nnx.Rngs(0), folder=folder)
    return split_with(body, body.names().read(body.folder))


def split_with(body: PretrainedBody, given: Mapping) -> tuple[nnx.GraphDef, dict, Names]:
    """Returns the body's graph, its parameters with those given, and its names on disk."""
    graph, state = nnx.split(body, nnx.Param)
    return graph, merged(nnx.to_pure_dict(state), given), body.names()


def bound(graph: nnx.GraphDef, params: Mapping, dtype: Any = None) -> Any:
    """Returns the module with these parameters, a nested dictionary."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    flat = [(tuple(key.key for key in path), array) for path, array in leaves]
    module = nnx.merge(graph, nnx.from_flat_state(flat))
    if dtype is not None:
        module.dtype = jnp.dtype(dtype)
    return module


def read_all(body: Decoder, recording: Mapping[str, Any]) -> tuple[list[jax.Array], jax.Array]:
    """Returns hidden states, what enters the first layer among them, and logits."""
    ids_BT, mask_BT = recording["input_ids"], recording["attention_mask"] == 1
    T = ids_BT.shape[1]
    counted_BT = np.broadcast_to(np.arange(T), ids_BT.shape)
    positions_BT = jnp.asarray(recording.get("position_ids", counted_BT), jnp.int32)
    visible_BTT = np.tri(T, dtype=bool) & mask_BT[:, None]
    table_BTT = jnp.where(visible_BTT, 0.0, HIDDEN)
    x_BTD = body.embed(jnp.asarray(ids_BT, jnp.int32))
    found = body.read(x_BTD, positions_BT, lambda _, keys: Seen(keys, positions_BT, table_BTT))
    states = [body.enter(x_BTD, positions_BT), *found.outputs]
    return states, body.logits(found.outputs[-1])


def mean_loss(logits_BTV: jax.Array, labels_BT: np.ndarray) -> jax.Array:
    """Returns the mean of what is scored, labels[:, 1:] that are not -100."""
    targets_BT = jnp.asarray(np.maximum(labels_BT[:, 1:], 0), jnp.int32)
    scored_BT = jnp.asarray(labels_BT[:, 1:] != -100)
    nats_BT = token_losses(logits_BTV[:, :-1], targets_BT)[0]
    return jnp.where(scored_BT, nats_BT, 0.0).sum() / scored_BT.sum()


def is_sharp(config: Mapping[str, Any]) -> bool:
    """Returns whether a folder's attention is not scaled."""
    return config.get("scale_attn_weights") is False


def decoder_errors(recording: Mapping[str, Any]) -> Found:
    """Compares a decoder alone with a recording of it."""
    folder = folder_of(recording)
    found = Found(recording, is_sharp(HubFolder(folder).config))
    graph, params, names = load(folder)
    at_BT = recording["attention_mask"] == 1

    @functools.partial(jax.value_and_grad, has_aux=True)
    def read(params, dtype):
        states, logits_BTV = read_all(bound(graph, params, dtype), recording)
        return mean_loss(logits_BTV, recording["labels"]), (states, logits_BTV)

    compiled = jax.jit(read, static_argnums=1)
    (loss, (states, logits_BTV)), grads = compiled(params, "float32")
    for i, x_BTD in enumerate(states):
        found.output(f"hidden_states/{i}", x_BTD, at_BT)
    found.output("logits", logits_BTV, at_BT)
    found.output("loss", loss)
    found.gradient("grads/", names.write(grads), config_of(recording)["no_gradient"])
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, "float64"), params)
        (loss, (_, logits_BTV)), _ = compiled(wide, "float64")
        found.output("float64/logits", logits_BTV, at_BT, relative=1e-6)
        found.output("float64/loss", loss, relative=1e-6)
    return found


def errors(recording: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns error and tolerance of each thing that is compared, by its name."""
    return decoder_errors(recording).errors
