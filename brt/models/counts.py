"""Counts parameters by group, and the matrices that tokens are multiplied with.

Both use the metadata of `parameter` and the attribute `purpose` of modules.
"""

from typing import NamedTuple

import numpy as np
from flax import nnx


class ParameterCounts(NamedTuple):
    """Numbers of parameters; recurrence: cells, memories, and attention to them."""

    embedding: int
    layers: int
    recurrence: int

    @property
    def non_embedding(self) -> int:
        return self.layers + self.recurrence


def count_parameters(model: nnx.Module) -> ParameterCounts:
    groups = {path: getattr(module, "purpose", None) for path, module in nnx.iter_modules(model)}
    counts = dict.fromkeys(ParameterCounts._fields, 0)
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        around = (groups.get(path[:n]) for n in range(len(path), -1, -1))
        group = variable.get_metadata().get("purpose") or next(filter(None, around), "layers")
        parts = (group,) if isinstance(group, str) else group
        for part in parts:
            counts[part] += int(np.prod(variable.shape)) // len(parts)
    return ParameterCounts(**counts)


def matrix_size(module: nnx.Module, without: tuple[str, ...] = ()) -> int:
    """Returns the number of entries of the matrices that tokens are multiplied with.

    without: children that are left out.
    """
    return sum(
        int(np.prod(variable.shape))
        for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Param))
        if variable.get_metadata().get("multiplied") and path[0] not in without
    )
