"""Block feedback: the whole stack runs block by block, and every layer reads the state.

The one model whose stack is sequential: before each block, the keys and values of the highest
layer's states are given to all layers without states of their own, above and below.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp

from brt.models.layer import Layer, joined


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
        (B, T, D), the caches after the segment, and a list of each layer's monitors.

    Source: Block-Recurrent, section 4.4 and appendix E.
    """
    B, T, D = x_BTD.shape
    W = layers[0].window
    source = state_source(layers)

    def block(caches, inputs):
        x_BWD, index = inputs
        known = layers[source].own_states(caches[source], x_BTD.dtype)
        given = joined(known)
        new_caches = []
        monitors = []
        for i, (layer, cache, table) in enumerate(zip(layers, caches, tables, strict=True)):
            layer_key = key if key is None else jax.random.fold_in(key, index * len(layers) + i)
            own = known if i == source else None
            x_BWD, cache, monitor = layer(
                x_BWD, cache, table_HWJ=table, given=given, known=own, key=layer_key
            )
            new_caches.append(cache)
            monitors.append(monitor)
        return tuple(new_caches), (x_BWD, monitors)

    if remat:
        block = jax.checkpoint(block)
    x_GBWD = jnp.moveaxis(x_BTD.reshape(B, T // W, W, D), 1, 0)
    caches, (x_GBWD, monitors) = jax.lax.scan(block, tuple(caches), (x_GBWD, jnp.arange(T // W)))
    return (
        jnp.moveaxis(x_GBWD, 0, 1).reshape(B, T, D),
        caches,
        jax.tree.map(jnp.mean, monitors),
    )
