"""Checks of the interface of models and memories, made while they are built and traced."""

import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import makes
from brt.models.model import Metrics


def check_scalars(metrics: Metrics, owner: str) -> None:
    for name, value in metrics.items():
        if np.shape(value):
            raise ValueError(
                f"{owner} reports the metric {name} of shape {np.shape(value)}: report a scalar, "
                "such as its mean."
            )


def check_caches(shapes: tuple, rows: int) -> None:
    """Refuses caches that cannot be carried from segment to segment.

    shapes: of `init_caches(rows)`. rows: differs from the size of every other axis.
    """
    for cache in shapes:
        for part in (*getattr(cache, "memories", ()), cache):
            name = type(part).__name__
            check_named(name, part)
            for path, field in jax.tree_util.tree_flatten_with_path(part)[0]:
                axes = re.search(r"_(B[A-Z]*)$", getattr(path[-1], "name", ""))
                if field.shape[:1] != (rows,) or not axes or len(axes[1]) != field.ndim:
                    raise ValueError(
                        f"{name}{jax.tree_util.keystr(path)} has shape {field.shape} for {rows} "
                        "batch elements: the batch is the first axis of every field, and its name "
                        "ends in the names of its axes, such as keys_BWHK or count_B."
                    )


def joined_metrics(metrics: Metrics, name: str, reported: Metrics) -> Metrics:
    """Joins the metrics of a memory called `name` to the others.

    A metric whose name is taken becomes `<name>/<metric>`; `added_nats`, of the loss, are summed.
    """
    taken = {*metrics, "state_share"}  # also a name of the layer
    joined = metrics | {f"{name}/{n}" if n in taken else n: x for n, x in reported.items()}
    if "added_nats" in metrics and "added_nats" in reported:
        joined["added_nats"] = metrics["added_nats"] + joined.pop(f"{name}/added_nats")
    return joined


def without_gradients(metrics: Metrics) -> Metrics:
    """Stops the gradients of all metrics but `added_nats`: a norm has no derivative at zero."""
    added = {name: x for name, x in metrics.items() if name == "added_nats"}
    return jax.lax.stop_gradient(metrics) | added


def check_named(owner: str, cache: Any) -> None:
    if not hasattr(cache, "_fields"):
        raise ValueError(f"{owner} is carried as a cache: make it a typing.NamedTuple of arrays.")


def empty_cache(memory: Any, rows: int, dtype: DTypeLike) -> Any:
    cache = memory.init_cache(rows, dtype)
    check_named(f"The result of {type(memory).__name__}.init_cache", cache)
    return cache


def check_segment(model: str, window: int, length: int) -> None:
    if window > length or length % window:
        raise ValueError(
            f"A segment of {length} tokens does not consist of whole blocks of {model}.window = "
            f"{window}: make the segment length a multiple of {window}."
        )


def check_arrangement(arrangement: str, order: str, hidden_size: int) -> None:
    if order == "sequential" and arrangement == "single":
        raise ValueError(
            'RecurrentCell.order = "sequential" gates each attention after a projection, '
            'and arrangement "single" has none: use "dual" or "skip".'
        )
    if arrangement != "skip" and not hidden_size:
        raise ValueError(
            f'RecurrentCell.arrangement = "{arrangement}" has an MLP, and the model has none '
            '(feed_forward_size = 0): bind one of them otherwise, the arrangement to "skip".'
        )


def layer_indices(binding: str, layers: int | Iterable[int], num_layers: int) -> set[int]:
    """Returns indices from 0; refuses layers that do not exist. `layers` may be negative."""
    layers = (layers,) if isinstance(layers, int) else tuple(layers)  # (9) for (9,)
    for index in layers:
        if not -num_layers <= index < num_layers:
            raise ValueError(
                f"{binding} = {layers}: layer {index} does not exist in a stack of {num_layers}; "
                f"use 0 ... {num_layers - 1}."
            )
    return {index % num_layers for index in layers}


def check_memory_pairs(memories: Iterable[Any], kind: type) -> None:
    for pair in memories:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and makes(pair[0], kind)):
            raise ValueError(
                f"BlockRecurrentTransformer.memories = {memories!r} must hold pairs of a memory "
                "and indices of layers: write ((@MyMemory, (3, 7)),), without () after the name."
            )


def check_memories(memories: Iterable[Any], parts: Iterable[str], base: type) -> None:
    taken = set(parts)
    for memory in memories:
        name = getattr(memory, "name", "")
        if not name or name in taken:
            raise ValueError(
                f"{type(memory).__name__}.name = {name!r} must be set and differ from those of the "
                "layer's other memories and parts: it names parameters and metrics."
            )
        taken.add(name)
        check_methods(memory, base)


def check_methods(memory: Any, base: type) -> None:
    """Refuses a layer memory whose cache would change differently while decoding.

    base: `LayerMemory`, which has the default methods.
    """

    def defines(name):
        return getattr(type(memory), name) is not getattr(base, name)

    name = type(memory).__name__
    if defines("__call__") and not (defines("update") or defines("update_after_block")):
        raise ValueError(
            f"{name}.__call__ processes segments, and decoding would never change the cache: "
            "define update, or let it be a TokenMemory and define run."
        )
    if defines("decode") and not defines("update_after_block"):
        raise ValueError(
            f"{name}.decode may change the cache inside a block: define update_after_block too, or "
            "let it be a TokenMemory and define run."
        )


def checked_segment(memory: Any, attended_BTHK: jax.Array, cache: Any, result: Any) -> Any:
    """Returns `result` of a memory's `__call__`; refuses another form than `MemoryResult`."""
    owner = f"{type(memory).__name__}.__call__"
    if not isinstance(result, tuple) or len(result) != 4:
        raise ValueError(f"{owner} returns {_kind(result)}, and must return a MemoryResult.")
    attended, after, states, metrics = result
    checked_result(memory, "__call__", (attended_BTHK, cache), ((attended, after), metrics))
    check_states(memory, states)
    return result


def check_states(memory: Any, states: Any) -> None:
    number = 0 if states is None else states.keys_BGSHK.shape[2]
    if number != memory.num_states:
        raise ValueError(
            f"{type(memory).__name__}.states gives {number} vectors a block, and num_states is "
            f"{memory.num_states}: make them equal."
        )


def checked_result(memory: nnx.Module, method: str, expected: Any, result: Any) -> Any:
    """Returns a memory's (value, metrics); refuses a value of another form than `expected`."""
    owner = f"{type(memory).__name__}.{method}"
    if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], dict):
        raise ValueError(f"{owner} must return a pair, whose second part is a dict of metrics.")
    value, metrics = result
    check_form(owner, expected, value)
    check_scalars(metrics, owner)
    return result


def check_form(owner: str, expected: Any, value: Any) -> None:
    if jax.tree.map(jax.typeof, expected) == jax.tree.map(jax.typeof, value):
        return
    old, new = _form(expected), _form(value)
    for path in old | new:
        if old.get(path) != new.get(path):
            raise ValueError(
                f"{owner} returns {_kind(value)}{path} of {new.get(path, 'no array')}, and "
                f"must return {_kind(expected)}{path} of {old.get(path, 'no array')}."
            )


def _kind(value):
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"a tuple of {len(value)}"
    return "an array" if isinstance(value, jax.Array | np.ndarray) else type(value).__name__


def _form(tree):
    return {
        jax.tree_util.keystr(path): f"{jnp.result_type(x)}{list(np.shape(x))}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }
