"""Block feedback: the whole stack runs block by block, and every layer reads the state.

The one model whose stack is sequential: before each block, the keys and values of the highest
layer's states are given to all layers without states of their own, above and below.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from brt.models.block_recurrent.layer import Layer, Prepared
from brt.models.block_recurrent.memory import joined_states
from brt.models.caches import WindowCache
from brt.models.fast.loop_weights import arrays_in_loop, in_loop, scan
from brt.models.fast.row_shards import by_row_shard
from brt.models.layers.attention import heads_first


def state_source(layers: Iterable[Layer]) -> int:
    """Returns the index of the layer whose states feed the others: the highest that has any."""
    return max(i for i, layer in enumerate(layers) if layer.num_states)


def run_blocks(
    layers: Sequence[Layer],
    x_BTD: jax.Array,
    caches: tuple,
    prepared: Sequence[Prepared],
    remat: bool = False,
) -> tuple[jax.Array, tuple, list[dict[str, jax.Array]]]:
    """Reads a segment of every row through the stack, one block at a time.

    Args:
        layers: the stack; each reads states, at least one has a memory that offers some.
        x_BTD: (B, T, D) activations of the segment, T a multiple of W.
        caches: one segment-form cache a layer.
        prepared: of each layer; the dropout masks are the same for all blocks.
        remat: recompute each block in the backward pass.

    Returns:
        (B, T, D), the caches after the segment, and a list of each layer's monitors: means over
        blocks and, under a mesh, over the rows' data shards.

    Source: Block-Recurrent, section 4.4 and appendix E.
    """
    _, T, D = x_BTD.shape
    W = layers[0].window
    source = state_source(layers)
    graph, params = nnx.split(nnx.List(layers), nnx.Param)
    weights = {
        "params": nnx.to_pure_dict(params),
        "prepared": list(prepared),
    }

    def block(weights, caches, x_BWD):
        flat = jax.tree_util.tree_leaves_with_path(arrays_in_loop(weights["params"]))
        params = [(tuple(key.key for key in path), leaf) for path, leaf in flat]
        own = nnx.merge(graph, nnx.from_flat_state(params))
        caches = [_heads_swapped(cache) for cache in caches]
        prepared = [
            Prepared(in_loop(bias_HWJ), own_weights, lax.stop_gradient(arrays_in_loop(masks)))
            for bias_HWJ, own_weights, masks in weights["prepared"]
        ]
        with jax.named_scope(f"layer{source}"):
            cache, dtype = caches[source], x_BWD.dtype
            current = own[source].current_states(cache, dtype, prepared[source])
        feedback = joined_states(current)
        new_caches = []
        monitors = []
        for i, (layer, cache) in enumerate(zip(own, caches, strict=True)):
            with jax.named_scope(f"layer{i}"):
                states = current if i == source else None
                x_BWD, cache, monitor = layer(x_BWD, cache, prepared[i], feedback, states)
            new_caches.append(_heads_swapped(cache))
            monitors.append(monitor)
        # `scan` differentiates all that it returns, and a norm has no derivative at zero.
        return tuple(new_caches), (x_BWD, jax.lax.stop_gradient(monitors))

    def fold(weights, rows):
        x_BTD, caches = rows
        rows = x_BTD.shape[0]
        x_GBWD = jnp.moveaxis(x_BTD.reshape(rows, T // W, W, D), 1, 0)
        caches = tuple(_heads_swapped(cache) for cache in caches)
        caches, (x_GBWD, monitors) = scan(block, weights, caches, x_GBWD, remat)
        caches = tuple(_heads_swapped(cache) for cache in caches)
        x_BTD = jnp.moveaxis(x_GBWD, 0, 1).reshape(rows, T, D)
        return (x_BTD, caches), jax.tree.map(jnp.mean, monitors)

    (x_BTD, caches), monitors = by_row_shard(fold, weights, (x_BTD, tuple(caches)))
    return x_BTD, caches, monitors


def _heads_swapped(cache):
    """Returns a cache whose window has heads first, as the loop carries it, or the other way round.

    Attention multiplies keys head by head: carried as (B, W, H, K), they would be turned in memory
    in every turn of the loop.
    """
    return cache._replace(window=WindowCache(*map(heads_first, cache.window)))
