"""How many parameters a model has, and how many operations a token costs.

Both are read off the modules, so a new layer is counted without an edit here as long as
its matrices are two-dimensional parameters.
"""

from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

RECURRENCE = {
    *("cell", "cross_queries_DA", "cross_scale_H", "cross_norm", "memory", "memory_SD"),
}
NOT_MULTIPLIED = {
    *("table_HR", "initial_states_SD", "state_ids_SD", "content_bias_HK", "position_bias_HK"),
    *("positions_DA", "distance_bias_RH", "places_RD"),
}
"""Two letters, but not a matrix that tokens are multiplied with."""


class ParameterCounts(NamedTuple):
    """Numbers of parameters. Recurrence: cells, what tokens need to read states, and memories."""

    embedding: int
    layers: int
    recurrence: int

    @property
    def non_embedding(self) -> int:
        return self.layers + self.recurrence


def count_parameters(params) -> ParameterCounts:
    """Splits a parameter tree (arrays or shapes) by purpose."""
    counts = {"embedding": 0, "layers": 0, "recurrence": 0}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        names = [str(getattr(key, "key", key)) for key in path if str(key) != ".value"]
        size = int(np.prod(leaf.shape))
        if names[-1] in ("embedding_VD", "begin_D") or names[0] == "embedding":
            counts["embedding"] += size
        elif RECURRENCE & set(names):
            counts["recurrence"] += size
        elif names[-1] == "output_CD":
            counts["layers"] += size // 2
            counts["recurrence"] += size - size // 2
        else:
            counts["layers"] += size
    return ParameterCounts(**counts)


def flops_per_token(model) -> float:
    """What `BlockRecurrentTransformer.flops_per_token` returns.

    Matrix products and attention only. Attention counts the keys a query may see (W, or all
    states); what a blocked implementation multiplies and then hides is not counted. A
    training step costs three times as much, but for the search of an external memory: a query
    and all M keys once, and then attention to those it picked.

    Args:
        model: a `BlockRecurrentTransformer`, built or abstract.

    Source: Block-Recurrent, section 3.6: O(W N) and O((W^2 + S^2 + 2 S W) N / W).
    """
    W = model.window
    cells = [layer.cell for layer in model.layers if layer.cell is not None]
    total = 2.0 * model.embedding_VD.size
    for layer in model.layers:
        A = layer.num_heads * layer.head_size
        total += 2 * matrix_size(layer, without="cell") + 4 * A * W
        if layer.reads_states:
            total += 4 * A * _num_states(layer.cell or cells[-1])
        if layer.cell is not None:
            S = _num_states(layer.cell)
            block = 2 * S * matrix_size(layer.cell) + 4 * A * S * (S + 2 * W)
            total += block / W
        if layer.memory is not None:
            search = layer.memory.size if layer.memory.search != "dense" else 0
            total += 2 * A * search + 4 * A * layer.memory.neighbours
    return total


def _num_states(cell):
    return cell.initial_states_SD.shape[0]


def matrix_size(module, without=None) -> int:
    """Entries of a module's matrices that tokens are multiplied with; `without` a child."""
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return sum(
        leaf.size
        for path, leaf in flat
        if len(leaf.shape) == 2 and path[0] != without and path[-1] not in NOT_MULTIPLIED
    )
