"""Models whose layers depend on earlier segments through their own caches only."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx


class Layerwise(NamedTuple):
    """`Model.stack` without dropout and metrics, one layer at a time.

    Layer l of a segment needs only layer l - 1 of the same segment and its own cache after the
    segment before. `brt/models/diagonal.py` therefore runs several segments at once.

    layers: a module, or a list of modules, for each cache.
    run: maps a layer, its inputs, a tree of arrays, batch first, and its cache to the inputs of the
    next layer and the next cache.
    enter: maps embedded tokens, (B, T, D), to the inputs of the first layer.
    leave: maps the result of the last layer to that of `Model.stack`.
    """

    layers: Sequence[nnx.Module]
    run: Callable[[Any, Any, Any], tuple[Any, Any]] = lambda layer, x, cache: layer(x, cache)[:2]
    enter: Callable[[jax.Array], Any] = lambda x_BTD: x_BTD
    leave: Callable[[Any], jax.Array] = lambda x_BTD: x_BTD
