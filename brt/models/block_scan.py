"""The scan over the blocks of a segment, for memories that change block by block."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.fast.data_shards import by_data_shard
from brt.models.model import Metrics


def scan_blocks(
    step: Callable[..., tuple[Any, tuple[Any, Metrics]]],
    module: nnx.Module,
    weights: Any,
    carry: Any,
    inputs: Any,
    num_blocks: int,
    remat: bool = False,
) -> tuple[Any, Any, Metrics]:
    """Folds `step(module, weights, carry, block, index)` over the blocks of a segment.

    A step returns the next carry, and (outputs, metrics). A block is (B, W, ...) of inputs (B, T,
    ...). Returns the last carry, outputs (B, G, ...), and mean metrics. remat: recompute each block
    in the backward pass.
    """
    graph, params = nnx.split(module, nnx.Param)

    def run(weights, rows):
        params, weights = weights
        module = nnx.merge(graph, params)
        carry, inputs = rows
        by_block = jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(len(x), num_blocks, -1, *x.shape[2:]), 1, 0), inputs
        )

        def run_block(carry, block):
            return step(module, weights, carry, *block)

        run_block = jax.checkpoint(run_block) if remat else run_block
        blocks = by_block, jnp.arange(num_blocks)
        carry, (outputs, metrics) = jax.lax.scan(run_block, carry, blocks)
        outputs = jax.tree.map(lambda x_GB: jnp.moveaxis(x_GB, 0, 1), outputs)
        return (carry, outputs), jax.tree.map(lambda x_G: jnp.mean(x_G, 0), metrics)

    weights = nnx.to_pure_dict(params), weights
    (carry, outputs), metrics = by_data_shard(run, weights, (carry, inputs))
    return carry, outputs, metrics
