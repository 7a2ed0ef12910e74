"""An optimizer that computes the updates of equal parameters together.

The same parameter of all layers is stacked along a first axis inside the step, so that the program
does not grow with the number of layers. Each parameter keeps its own optimizer state.
"""

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

    optimizer: treats all parameters separately and alike: no norm over all of them, no mask. The
    rest of its state (counts) does not depend on them. fewest: equal parameters from which on they
    are stacked.
    """

    def update(updates, state, params=None):
        tree: Any = jax.tree.structure(updates)
        groups = _groups(updates, fewest)

        def mirrors(node):
            return jax.tree.structure(node) == tree

        # Nodes of the state that mirror the parameters are stacked, others occur once.
        def map_state(function, *states):
            return jax.tree.map(function, *states, is_leaf=mirrors)

        def run(indices):
            def stacked(node):
                return _stacked(tree.flatten_up_to(node), indices)

            of_group = map_state(lambda node: stacked(node) if mirrors(node) else node, state)
            arrays = stacked(updates), of_group, *([] if params is None else [stacked(params)])
            if len(indices) == 1:
                return optimizer.update(*arrays)
            axes = map_state(lambda node: 0 if mirrors(node) else None, state)
            return jax.vmap(optimizer.update, (0, axes, 0)[: len(arrays)], (0, axes))(*arrays)

        def joined(node, *by_group):
            if not mirrors(node):
                return by_group[-1]
            leaves = [None] * tree.num_leaves
            for indices, array in zip(groups, by_group, strict=True):
                for number, index in enumerate(indices):
                    leaves[index] = array[number] if len(indices) > 1 else array
            return tree.unflatten(leaves)

        new, after = zip(*map(run, groups), strict=True)
        return joined(updates, *new), map_state(joined, state, *after)

    return optax.GradientTransformation(optimizer.init, update)


def norm_of_all(tree: Any, fewest: int = FEWEST) -> jax.Array:
    """Returns the root of the sum of the squares of all entries of a tree of arrays."""
    leaves = jax.tree.leaves(tree)
    groups = _groups(tree, fewest)
    return jnp.sqrt(sum(jnp.sum(jnp.square(_stacked(leaves, indices))) for indices in groups))


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


def _stacked(arrays, indices):
    if len(indices) == 1:
        return arrays[indices[0]]
    return jnp.stack([arrays[index] for index in indices])
