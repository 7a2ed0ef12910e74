"""The diagonal schedule: layer l of segment s runs at time s + l, all layers of one time at once.

Plain counterpart: `Model.stack` of one segment after another (tests/laws/test_diagonal_laws.py). K
segments through n layers take K + n - 1 steps instead of K n; equal layers are one batched
computation per step. Source: Sivtsov et al. 2025, arXiv:2506.05229.
"""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.caches import cleared, select_rows
from brt.models.fast.cudnn_attention import layers_at_once
from brt.models.layerwise import Layerwise
from brt.models.model import Model


class Group(NamedTuple):
    """Layers of one structure, with inputs and caches of the same shapes.

    indices: of the layers. params: stacked along a new first axis. inputs, cache: shapes for one
    layer.
    """

    indices: tuple[int, ...]
    graph: nnx.GraphDef
    params: Any
    inputs: Any
    cache: Any


def layerwise_of(model: Model, binding: str = "Evaluation.segments_together") -> Layerwise:
    """Returns the layers of a model; raises a `ValueError` if it has no diagonal schedule."""
    layerwise = model.layerwise()
    if layerwise is None:
        raise ValueError(
            f"{type(model).__name__} cannot run several segments at once with these settings "
            f"(docs/evaluation.md lists those that cannot): bind {binding} = 1."
        )
    return layerwise


def run_diagonally(
    model: Model,
    x_KBTD: jax.Array,
    caches: tuple,
    starts_KB: jax.Array | None = None,
    clear: bool = False,
) -> tuple[jax.Array, tuple]:
    """Runs K consecutive segments without dropout.

    The first and last n - 1 steps compute all layers and discard the results of those not due, so
    the operations are those of K + n - 1 segments.

    Args:
        starts_KB: bool, batch elements that start a document in a segment; None: none.
        clear: clear the state before every segment.

    Returns:
        The outputs of `Model.stack`, (K, B, T, D), and the caches after the last segment.
    """
    layerwise = layerwise_of(model)
    K, rows = x_KBTD.shape[:2]
    starts_KB = jnp.zeros((K, rows), bool) if starts_KB is None else starts_KB
    groups = groups_of(layerwise, x_KBTD[0], caches)
    empty = model.init_caches(rows)
    n = len(caches)

    def run(graph, index, params, x, cache, empty, t):
        s = t - index
        before = cleared(cache, empty) if clear else cache
        before = select_rows(starts_KB[jnp.clip(s, 0, K - 1)], empty, before)
        y, after = layerwise.run(nnx.merge(graph, params), x, before)
        due = (s >= 0) & (s < K)
        return y, jax.tree.map(functools.partial(jnp.where, due), after, cache)

    def step(carry, t):
        waiting, stacked = carry
        first = layerwise.enter(x_KBTD[jnp.minimum(t, K - 1)])
        x = [first, *waiting]
        y: list[Any] = [None] * n
        after = []
        for group, group_caches, group_empty in zip(groups, stacked, stacked_empty):
            inputs = stacked_trees(x[i] for i in group.indices)
            over_layers = jax.vmap(functools.partial(run, group.graph), (0, 0, 0, 0, 0, None))
            indices = jnp.array(group.indices)
            with layers_at_once():
                outputs, group_caches = over_layers(
                    *(indices, group.params, inputs, group_caches, group_empty, t)
                )
            after.append(group_caches)
            for i, output in zip(group.indices, unstacked(outputs), strict=True):
                y[i] = output
        return (y[:-1], after), layerwise.leave(y[-1])

    stacked, stacked_empty = (
        [stacked_trees(trees[i] for i in group.indices) for group in groups]
        for trees in (caches, empty)
    )
    like = {i: group.inputs for group in groups for i in group.indices}
    waiting = [jax.tree.map(jnp.zeros_like, like[i]) for i in range(1, n)]
    (_, stacked), y = jax.lax.scan(step, (waiting, stacked), jnp.arange(K + n - 1))
    after: list[Any] = [None] * n
    for group, group_caches in zip(groups, stacked, strict=True):
        for i, cache in zip(group.indices, unstacked(group_caches), strict=True):
            after[i] = cache
    return y[n - 1 :], tuple(after)


def groups_of(layerwise: Layerwise, x_BTD: jax.Array, caches: tuple) -> list[Group]:
    """Groups the layers by structure; x_BTD: one segment."""
    inputs = jax.eval_shape(layerwise.enter, x_BTD)
    by_kind: dict[Any, tuple[list[int], Any]] = {}
    for i, (layer, cache) in enumerate(zip(layerwise.layers, caches, strict=True)):
        like = inputs, jax.eval_shape(lambda cache=cache: cache)
        by_kind.setdefault(kind_of(layer, like), ([], like))[0].append(i)
        inputs, _ = result_shapes(layerwise, layer, like)
    layers = layerwise.layers
    return [
        Group(
            tuple(indices),
            nnx.graphdef(layers[indices[0]]),
            stacked_trees(nnx.state(layers[i]) for i in indices),
            *like,
        )
        for indices, like in by_kind.values()
    ]


def kind_of(layer: nnx.Module, layer_input: Any) -> Any:
    """Returns what layers of one structure, with inputs of the same shapes, have in common."""
    graph, state = nnx.split(layer)
    leaves, tree = jax.tree.flatten((nnx.to_pure_dict(state), layer_input))
    return graph, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def stacked_trees(trees: Iterable[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstacked(tree: Any) -> list[Any]:
    length = len(jax.tree.leaves(tree)[0])
    return [jax.tree.map(lambda x, n=n: x[n], tree) for n in range(length)]


def result_shapes(layerwise: Layerwise, layer: Any, like: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the shapes of a layer's result and next cache; like: of its inputs and cache."""
    graph, params = nnx.split(layer)
    return jax.eval_shape(
        lambda params, like: layerwise.run(nnx.merge(graph, params), *like), params, like
    )


def layer_groups(model: Model, rows: int, segment_length: int) -> list[Group]:
    """Groups the layers of a model that are one batched computation each."""
    x_BTD = jax.eval_shape(model.embed, jnp.zeros((rows, segment_length), jnp.int32))
    return groups_of(layerwise_of(model), x_BTD, model.init_caches(rows))
