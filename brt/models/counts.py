"""Counts parameters by what they are for, and the matrices that tokens are multiplied with.

Both are read off the marks that `parameter` puts on each parameter, and off the attribute
`purpose` of modules whose parameters all have one purpose.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from flax import nnx


@runtime_checkable
class HasPurpose(Protocol):
    """A module whose parameters all have one purpose, of `brt.models.layers.initializers`."""

    purpose: str


class ParameterCounts(NamedTuple):
    """Numbers of parameters. Recurrence: cells, what tokens need to read states, and memories."""

    embedding: int
    layers: int
    recurrence: int

    @property
    def non_embedding(self) -> int:
        return self.layers + self.recurrence


def count_parameters(model: nnx.Module) -> ParameterCounts:
    """Returns the numbers of a model's parameters, by purpose; its arrays may be shapes."""
    of_modules = {
        path: module.purpose
        for path, module in nnx.iter_modules(model)
        if isinstance(module, HasPurpose)
    }

    def inherited(path):
        lengths = range(len(path), -1, -1)
        return next((of_modules[path[:n]] for n in lengths if path[:n] in of_modules), "layers")

    counts = dict.fromkeys(ParameterCounts._fields, 0)
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        own = variable.get_metadata().get("purpose") or inherited(path)
        parts = (own,) if isinstance(own, str) else own
        for part in parts:
            counts[part] += int(np.prod(variable.shape)) // len(parts)
    return ParameterCounts(**counts)


def matrix_size(module: nnx.Module, without: tuple[str, ...] = ()) -> int:
    """Returns the entries of a module's matrices that tokens are multiplied with.

    without: children whose matrices are left out.
    """
    return sum(
        int(np.prod(variable.shape))
        for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Param))
        if variable.get_metadata().get("multiplied") and path[0] not in without
    )
