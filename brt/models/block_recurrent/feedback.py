"""Block feedback: the whole stack runs block by block, and every layer reads the state.

Before each block, the keys and values of the highest layer's states are given to all layers without
states, above and below.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import jax
from flax import nnx
from jax import lax

from brt.models.axis_rules import one_data_shard
from brt.models.block_recurrent.layer import Layer, Prepared
from brt.models.block_recurrent.memory import BlockStates, joined_states
from brt.models.contract import without_gradients
from brt.models.fast.table import stack_scan
from brt.models.ops import in_blocks


def state_source(layers: Iterable[Layer]) -> int:
    """Returns the index of the highest layer with states, which the other layers read."""
    return max(i for i, layer in enumerate(layers) if layer.num_states)


def run_blocks(
    layers: Sequence[Layer],
    x_BTD: jax.Array,
    caches: tuple,
    keys: Sequence[jax.Array | None],
    remat: bool = False,
    counts_B: jax.Array | None = None,
) -> tuple[jax.Array, tuple, list[dict[str, jax.Array]]]:
    """Runs the stack on a segment, one block at a time.

    Args:
        layers: each attends to states; at least one has a memory with states.
        keys: of each layer's dropout, whose masks are the same for all blocks.
        remat: recompute each block, and each layer above the loop, in the backward pass.
        counts_B: (B,) int32, tokens that are not padding (one block); None: all.

    Returns:
        (B, T, D), the caches after the segment, and each layer's metrics, averaged over the blocks
        of the loop.

    Source: Block-Recurrent, section 4.4 and appendix E.
    """
    W = layers[0].window
    source = state_source(layers)
    S = layers[source].num_states
    prepared = []
    for i, (layer, key) in enumerate(zip(layers, keys)):
        with jax.named_scope(f"layer{i}"), one_data_shard():  # the loop has its own copies
            prepared.append(layer.prepare(x_BTD.dtype, key, W, S))
    # Layers above the states delay no block: they run on the whole segment.
    lower, upper = layers[: source + 1], layers[source + 1 :]
    graph, params = nnx.split(nnx.List(lower), nnx.Param)
    weights = {"params": nnx.to_pure_dict(params), "prepared": prepared[: source + 1]}

    def block(weights, carry, x_BWD):
        caches, counts_B = carry
        stack = nnx.merge(graph, weights["params"])
        prepared = [_constant_dropout(each) for each in weights["prepared"]]
        with jax.named_scope(f"layer{source}"):
            current = stack[source].current_states(caches[source], x_BWD.dtype, prepared[source])
        offered = cast(BlockStates, joined_states(current))
        after, metrics = [], []
        for i, (layer, cache) in enumerate(zip(stack, caches, strict=True)):
            with jax.named_scope(f"layer{i}"):
                states = current if i == source else None
                inputs = x_BWD, cache, prepared[i], None, counts_B, offered, states
                x_BWD, cache, reported = layer(*inputs)
            after.append(cache)
            metrics.append(without_gradients(reported))  # the scan differentiates all results
        outputs = x_BWD, (offered if upper else None)
        return (tuple(after), counts_B), outputs, metrics

    carry = tuple(caches[: source + 1]), counts_B
    if counts_B is None:
        scan_blocks = stack_scan(layers[0].sizes)
        (after, _), outputs, metrics = scan_blocks(
            block, weights, carry, in_blocks(x_BTD, W), remat
        )
    else:  # one block; caches of a memory with its own `take` change their form
        (after, _), outputs, metrics = block(weights, carry, x_BTD)
        outputs = jax.tree.map(lambda x: x[:, None], outputs)
    x_BGWD, states = outputs
    x_BTD = x_BGWD.reshape(x_BTD.shape)
    run = jax.checkpoint(Layer.__call__, static_argnums=0) if remat else Layer.__call__
    for i, layer in enumerate(upper, source + 1):
        with jax.named_scope(f"layer{i}"):
            # From (B, G, 1, S, H, K), a block each.
            offered = BlockStates(*(x[:, :, 0] for x in states))
            inputs = x_BTD, caches[i], prepared[i], None, counts_B, offered
            x_BTD, cache, reported = run(layer, *inputs)
        after, metrics = (*after, cache), [*metrics, reported]
    return x_BTD, after, metrics


def _constant_dropout(prepared: Prepared) -> Prepared:
    """Skips the sum of the dropout's gradient, which is not needed."""
    names = "states_dropout", "normed_PD", "mlp_PD"
    return prepared._replace(**{n: lax.stop_gradient(getattr(prepared, n)) for n in names})
