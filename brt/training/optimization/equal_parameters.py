"""An optimizer that computes the updates of equal parameters together.

The same parameter of all layers is stacked along a first axis inside the step, so that the program
does not grow with the number of layers. Each parameter keeps its own optimizer state.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from brt.models.fast.layer_scan import FEWEST


def equal_parameters_together(
    optimizer: optax.GradientTransformation, fewest: int = FEWEST
) -> optax.GradientTransformation:
    """Returns the optimizer, its updates computed together for equal parameters.

    Parameters are equal if their paths differ in indices only, and their shapes and types are the
    same: `layers/0/keys_DA` and `layers/7/keys_DA`.

    Args:
        optimizer: treats all parameters separately and alike: no norm over all of them, no mask.
            The rest of its state (counts) does not depend on the parameters.
        fewest: number of equal parameters from which on they are stacked.
    """

    def update(updates, state, params=None):
        tree: Any = jax.tree.structure(updates)
        leaves = jax.tree.leaves(updates)
        parameters = () if params is None else (tree.flatten_up_to(params),)

        def mirrors(node):
            return jax.tree.structure(node) == tree

        # The state as lists of arrays of all parameters, and values that it has once.
        outer: Any
        nodes, outer = jax.tree.flatten(state, is_leaf=mirrors)
        of_each = [mirrors(node) for node in nodes]
        nodes = [
            tree.flatten_up_to(node) if each else node
            for node, each in zip(nodes, of_each, strict=True)
        ]

        new_leaves: list[Any] = [None] * len(leaves)
        new_nodes: list[Any] = [[None] * len(leaves) if each else None for each in of_each]
        for indices in _groups(updates, fewest):
            stack, part = _stacking(indices)
            state_axes = outer.unflatten([0 if each else None for each in of_each])
            of_group = outer.unflatten(
                [stack(node) if each else node for node, each in zip(nodes, of_each, strict=True)]
            )
            arrays = (stack(leaves), of_group, *map(stack, parameters))
            if len(indices) == 1:
                new, after = optimizer.update(*arrays)
            else:
                axes = (0, state_axes, *(0 for _ in parameters))
                new, after = jax.vmap(optimizer.update, axes, (0, state_axes))(*arrays)
            for number, index in enumerate(indices):
                new_leaves[index] = part(new, number)
            for slot, node in enumerate(outer.flatten_up_to(after)):
                if not of_each[slot]:
                    new_nodes[slot] = node
                    continue
                for number, index in enumerate(indices):
                    new_nodes[slot][index] = part(node, number)
        after = [
            tree.unflatten(node) if each else node
            for node, each in zip(new_nodes, of_each, strict=True)
        ]
        return tree.unflatten(new_leaves), outer.unflatten(after)

    return optax.GradientTransformation(optimizer.init, update)


def norm_of_all(tree: Any, fewest: int = FEWEST) -> jax.Array:
    """Returns the root of the sum of the squares of all entries of a tree of arrays.

    fewest: number of equal arrays from which on they are summed together.
    """
    leaves = jax.tree.leaves(tree)
    sums = []
    for indices in _groups(tree, fewest):
        stack, _ = _stacking(indices)
        sums.append(jnp.sum(jnp.square(stack(leaves))))
    return jnp.sqrt(sum(sums))


def _groups(tree, fewest) -> list[list[int]]:
    """Returns the indices of the leaves of each group of equal ones, small groups one by one."""
    equal: dict[Any, list[int]] = {}
    for index, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        names = tuple(str(step) for step in path if not _is_index(step))
        equal.setdefault((names, leaf.shape, leaf.dtype), []).append(index)
    groups: list[list[int]] = []
    for indices in equal.values():
        groups += [indices] if len(indices) >= fewest else [[index] for index in indices]
    return groups


def _is_index(step):
    if isinstance(step, jax.tree_util.SequenceKey):
        return True
    return isinstance(step, jax.tree_util.DictKey) and isinstance(step.key, int)


def _stacking(indices) -> tuple[Callable, Callable]:
    """Returns functions that stack a group's arrays, and that take one from a stack."""
    if len(indices) == 1:
        return (lambda arrays: arrays[indices[0]]), (lambda array, number: array)
    return (
        lambda arrays: jnp.stack([arrays[index] for index in indices]),
        lambda array, number: array[number],
    )
