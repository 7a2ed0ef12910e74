"""Block feedback: the whole stack runs block by block, and every layer reads the state.

The one model whose stack is sequential: before each block, the keys and values of the highest
layer's states are given to all layers without states of their own, above and below.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.layer import Layer, joined
from brt.models.row_shards import by_row_shard


def state_source(layers: Iterable[Layer]) -> int:
    """Returns the index of the layer whose states feed the others: the highest that has any."""
    return max(i for i, layer in enumerate(layers) if layer.num_states)


def run_blocks(
    layers: Sequence[Layer],
    x_BTD: jax.Array,
    caches: tuple,
    tables: Sequence[jax.Array],
    key: jax.Array | None = None,
    remat: bool = False,
) -> tuple[jax.Array, tuple, list[dict[str, jax.Array]]]:
    """Reads a segment of every row through the stack, one block at a time.

    Args:
        layers: the stack; each reads states, at least one has a memory that offers some.
        x_BTD: (B, T, D) activations of the segment, T a multiple of W.
        caches: one segment-form cache a layer.
        tables: each layer's `window_table()`, computed once outside the loop.
        key: dropout key or None.
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
        "tables": [{"table_HWJ": table} for table in tables],
        "memories": [layer.loop_weights(x_BTD.dtype) for layer in layers],
    }

    def fold(weights, rows):
        x_BTD, caches = rows
        flat = jax.tree_util.tree_leaves_with_path(weights["params"])
        params = [(tuple(key.key for key in path), leaf) for path, leaf in flat]
        own = nnx.merge(graph, nnx.from_flat_state(params))
        given_first = {"weights": weights["memories"][source]}

        def block(caches, inputs):
            x_BWD, index = inputs
            with jax.named_scope(f"layer{source}"):
                known = own[source].own_states(caches[source], x_BTD.dtype, **given_first)
            given = joined(known)
            new_caches = []
            monitors = []
            for i, (layer, cache) in enumerate(zip(own, caches, strict=True)):
                layer_key = key if key is None else jax.random.fold_in(key, index * len(own) + i)
                with jax.named_scope(f"layer{i}"):
                    x_BWD, cache, monitor = layer(
                        x_BWD,
                        cache,
                        table_HWJ=weights["tables"][i]["table_HWJ"],
                        given=given,
                        known=known if i == source else None,
                        key=layer_key,
                        weights=weights["memories"][i],
                    )
                new_caches.append(cache)
                monitors.append(monitor)
            return tuple(new_caches), (x_BWD, monitors)

        if remat:
            block = jax.checkpoint(block)
        rows = x_BTD.shape[0]
        x_GBWD = jnp.moveaxis(x_BTD.reshape(rows, T // W, W, D), 1, 0)
        blocks = x_GBWD, jnp.arange(T // W)
        caches, (x_GBWD, monitors) = jax.lax.scan(block, tuple(caches), blocks)
        x_BTD = jnp.moveaxis(x_GBWD, 0, 1).reshape(rows, T, D)
        return (x_BTD, caches), jax.tree.map(jnp.mean, monitors)

    (x_BTD, caches), monitors = by_row_shard(fold, weights, (x_BTD, tuple(caches)))
    return x_BTD, caches, monitors
