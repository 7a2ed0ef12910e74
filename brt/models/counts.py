"""Counts parameters by group, and the matrices that tokens are multiplied with.

Both follow from the metadata that `parameter` adds to each parameter, and from the attribute
`purpose` of a module, the parameter group of all parameters in it.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from flax import nnx


@runtime_checkable
class HasPurpose(Protocol):
    """A module with a parameter group, one of `brt.models.layers.initializers.PURPOSES`."""

    purpose: str


class ParameterCounts(NamedTuple):
    """Numbers of parameters. Recurrence: cells, attention to states, and memories."""

    embedding: int
    layers: int
    recurrence: int

    @property
    def non_embedding(self) -> int:
        return self.layers + self.recurrence


def count_parameters(model: nnx.Module) -> ParameterCounts:
    """Returns the numbers of a model's parameters by group; its arrays may be abstract."""
    module_groups = {
        path: module.purpose
        for path, module in nnx.iter_modules(model)
        if isinstance(module, HasPurpose)
    }

    def inherited(path):
        lengths = range(len(path), -1, -1)
        return next(
            (module_groups[path[:n]] for n in lengths if path[:n] in module_groups), "layers"
        )

    counts = dict.fromkeys(ParameterCounts._fields, 0)
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        group = variable.get_metadata().get("purpose") or inherited(path)
        parts = (group,) if isinstance(group, str) else group
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
