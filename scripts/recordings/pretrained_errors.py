"""Shared by replays of pretrained recordings: folders, parameters, errors with tolerances.

Tolerances are those of the recordings' own description.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.bindings.registry import configurable_class
from brt.models.layers.losses import token_losses
from brt.pretrained.folder import HubFolder
from brt.pretrained.source import READ_BY
from brt.training.checkpoints.parameters import merged
from recordings import below

OUTPUTS, GRADIENTS = 5e-6, 5e-5
"""Relative to the largest entry: of all outputs of a kind, of each gradient."""
SHARP = 3e-5, 3e-4
"""The same where attention is not scaled, and sharp."""
SMALLEST = 1e-5
"""Least absolute tolerance of outputs, unless attention is sharp."""
FLOAT64 = 1e-6
"""Of the largest entry, of outputs in float64."""
PRECISE = 1e-9
"""The same, of recordings that are float64 throughout."""
FLOAT32_INSIDE = ("llama", "qwen2", "mistral", "t5")
"""Models whose recorded float64 run has RMS norms, angles or softmax in float32, as transformers
computes them: brt, in float64 throughout, agrees with it as float32 does."""
NETWORK, ENDS = "module/feed_forward", {"matrix_IU": "weight", "bias_U": "bias"}
"""Recorded names of the parameters of a pooled memory's network."""
NO_GRADIENT = 1e-6
"""Absolute, of gradients that are zero but for rounding."""


class Found:
    """Errors by name, each with its tolerance.

    Args:
        recording: with the expected values.
        sharp: whether its attention is not scaled.
    """

    def __init__(self, recording: Mapping[str, Any], sharp: bool = False):
        self.recording = recording
        self.outputs, self.gradients = SHARP if sharp else (OUTPUTS, GRADIENTS)
        self.smallest = max(SMALLEST, self.outputs if sharp else 0.0)
        kind = HubFolder(folder_of(recording)).config["model_type"]
        self.float64 = self.outputs if kind in FLOAT32_INSIDE else FLOAT64
        self.errors: dict[str, tuple[float, float]] = {}

    def add(self, name: str, error: float, tolerance: float) -> None:
        """Keeps the error with the largest share of its tolerance."""
        before = self.errors.get(name, (0.0, tolerance))
        if not error / tolerance <= before[0] / before[1]:
            before = float(error), float(tolerance)
        self.errors[name] = before

    def output(
        self, key: str, values: Any, at: np.ndarray | None = None, relative: float | None = None
    ) -> None:
        """Compares an output with the one recorded under the key, where `at` is true.

        relative: tolerance of float64 values, relative to the largest entry; None: values are
        float32.
        """
        expected, values = self.recording[key], np.asarray(values)
        name = key.split("/")[0] if relative is None else f"float64 {key.split('/')[-1]}"
        if expected.shape != values.shape:
            return self.add(name, np.inf, SMALLEST)
        largest = np.abs(expected[at] if at is not None else expected).max(initial=0.0)
        difference = np.abs(expected - values)
        error = (difference[at] if at is not None else difference).max(initial=0.0)
        tolerance = max((relative or self.outputs) * largest, 0.0 if relative else self.smallest)
        self.add(name, error, tolerance)

    def compare(
        self,
        read: Callable[[Any, str], tuple[jax.Array, dict[str, Any]]],
        params: Any,
        precise: Sequence[str],
        at: Mapping[str, np.ndarray],
    ) -> Any:
        """Compares all outputs in float32, then some in float64; returns gradients in float32.

        Args:
            read: from parameters and a dtype to the loss, and outputs by their keys.
            precise: keys of outputs that were recorded in float64, too.
            at: entries that are compared, by the first part of a key; None: all.
        """
        compiled = jax.jit(jax.value_and_grad(read, has_aux=True), static_argnums=1)
        (_, outputs), grads = compiled(params, "float32")
        for key, values in outputs.items():
            self.output(key, values, at.get(key.split("/")[0]))
        with jax.enable_x64(True):
            (_, outputs), _ = compiled(widened(params), "float64")
            for key in precise:
                self.output(f"float64/{key}", outputs[key], at.get(key), self.float64)
        return grads

    def gradient(self, prefix: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Compares gradients by their names on disk with all recorded ones."""
        without = config_of(self.recording).get("no_gradient", ())
        name = f"gradients {prefix.strip('/')}"
        for tensor, expected in below(self.recording, prefix).items():
            values = tensors.get(tensor)
            if values is None or values.shape != expected.shape:
                self.add(name, np.inf, self.gradients)
                continue
            error, largest = np.abs(expected - values).max(), np.abs(expected).max()
            if tensor in without or largest <= NO_GRADIENT:
                self.add(f"{name} of 0", error, NO_GRADIENT)
            else:
                self.add(name, error / largest, self.gradients)


def mean_loss(logits_BTV: jax.Array, targets_BT: np.ndarray, scored_BT: np.ndarray) -> jax.Array:
    """Returns the mean over the scored targets; the others may be negative."""
    nats_BT = token_losses(logits_BTV, jnp.asarray(np.maximum(targets_BT, 0), jnp.int32))[0]
    return jnp.where(jnp.asarray(scored_BT), nats_BT, 0.0).sum() / scored_BT.sum()


def config_of(recording: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(str(recording["config_json"]))


def folder_of(recording: Mapping[str, Any]) -> str:
    return str(Path(recording["path"]).parent / config_of(recording)["folder"])


def kind_of(folder: str) -> Any:
    """Returns the class of a folder's backbone."""
    model_type = HubFolder(folder).config["model_type"]
    if model_type not in READ_BY:
        raise ValueError(f"{folder} is a {model_type}, which is not replayed yet.")
    return configurable_class(READ_BY[model_type])


def body_of(folder: str) -> functools.partial:
    return functools.partial(kind_of(folder), folder=folder)


def split_with(module: nnx.Module, given: Mapping) -> tuple[nnx.GraphDef, dict]:
    graph, state = nnx.split(module, nnx.Param)
    return graph, merged(nnx.to_pure_dict(state), given)


def bound(graph: nnx.GraphDef, params: Mapping, dtype: Any = None) -> Any:
    """Returns the module with these parameters, a nested dictionary."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    flat = [(tuple(key.key for key in path), array) for path, array in leaves]
    module = nnx.merge(graph, nnx.from_flat_state(flat))
    if dtype is not None:
        module.dtype = jnp.dtype(dtype)
    return module


def network_of(recording: Mapping[str, Any]) -> dict[int, dict[str, np.ndarray]]:
    """Returns the recorded parameters of a pooled memory's network, by layer."""
    layers = range(sum(key.startswith(NETWORK) for key in recording) // 2)
    return {
        i: {name: recording[f"{NETWORK}/{i}/{end}"] for name, end in ENDS.items()} for i in layers
    }


def network_on_disk(network: Mapping[int, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    return {
        f"{NETWORK}/{i}/{end}": np.asarray(layer[name])
        for i, layer in network.items()
        for name, end in ENDS.items()
    }


def widened(params: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float64"), params)


def is_sharp(folder: str) -> bool:
    return HubFolder(folder).config.get("scale_attn_weights") is False
