"""Layers that are equal but for their parameters, compiled once for all of them.

A stack of n layers, written as a loop in Python, is compiled n times, and its compile time grows
with n. Here neighbours of the same structure become one loop of the compiled program, over their
parameters stacked inside the step. Modules, names, checkpoints and caches know nothing of it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

FEWEST = 16
"""Layers that a loop is made of, and parameters that are updated together; fewer stay one after the
other. A loop keeps what its backward pass needs in arrays of all layers, which on a CPU costs a
seventh of a step of seven layers; stacked parameters cost 9 % of it
(docs/benchmarks/training.md)."""


class _Group(NamedTuple):
    """Neighbouring layers of one structure.

    indices: of the layers in the stack.
    layer: the first of them.
    params: their parameters, stacked along a first axis; those of a single one as they are.
    """

    indices: range
    layer: nnx.Module
    params: Any

    @property
    def name(self) -> str:
        """The name in profiles."""
        first, last = self.indices[0], self.indices[-1]
        return f"layer{first}" if first == last else f"layers{first}-{last}"


class EqualLayers:
    """The layers of a stack, run in order, those that are equal as one loop.

    Args:
        layers: of the stack.
        carried: a tree for each layer, such as its cache; layers whose trees differ in structure,
            shapes or types are not equal.
        fewest: layers that a loop is made of, at least; None: `FEWEST`.
    """

    def __init__(
        self, layers: Sequence[nnx.Module], carried: Sequence[Any], fewest: float | None = None
    ):
        kinds = [_kind(*pair) for pair in zip(layers, carried, strict=True)]
        borders = [i for i in range(len(kinds)) if i == 0 or kinds[i] != kinds[i - 1]]
        fewest = FEWEST if fewest is None else fewest
        parts = []
        for first, last in zip(borders, [*borders[1:], len(kinds)]):
            alone = range(first, last) if last - first < fewest else ()
            parts += [(i, i + 1) for i in alone] or [(first, last)]
        self.groups = []
        for first, last in parts:
            states = [nnx.state(layers[i]) for i in range(first, last)]
            self.groups.append(_Group(range(first, last), layers[first], stacked(states)))

    def split(self, trees: Sequence[Any]) -> list[Any]:
        """Returns a tree for each group from one for each layer, as `run` takes them."""
        return [stacked([trees[i] for i in group.indices]) for group in self.groups]

    def joined(self, trees: Sequence[Any]) -> list[Any]:
        """Returns a tree for each layer from one for each group, as `run` returns them."""
        return [
            tree if len(group.indices) == 1 else jax.tree.map(lambda x, i=i: x[i], tree)
            for group, tree in zip(self.groups, trees, strict=True)
            for i in range(len(group.indices))
        ]

    def run(
        self, layer_of: Callable[..., tuple[Any, Any]], x: Any, given: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Runs all layers, one after the other.

        Args:
            layer_of: from a layer, x and what this layer is given to the next x and what the layer
                returns. It must not look at the layer's number.
            x: activations.
            given: a tree for each group, from `split`.

        Returns:
            The last x, and a tree for each group, for `joined`.
        """
        returned = []
        for group, trees in zip(self.groups, given, strict=True):
            with jax.named_scope(group.name):
                if len(group.indices) == 1:
                    x, own = layer_of(group.layer, x, trees)
                else:
                    graph = nnx.graphdef(group.layer)

                    def body(x, inputs, graph=graph):
                        params, own = inputs
                        return layer_of(nnx.merge(graph, params), x, own)

                    x, own = jax.lax.scan(body, x, (group.params, trees))
            returned.append(own)
        return x, returned


def stacked(trees: Sequence[Any]) -> Any:
    """Returns one tree of arrays stacked along a first axis; a single tree as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _kind(layer, carried):
    """Returns what two layers must share to be equal: structure, shapes and types."""
    graph, state = nnx.split(layer)
    leaves, tree = jax.tree.flatten((nnx.to_pure_dict(state), carried))
    return graph, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
