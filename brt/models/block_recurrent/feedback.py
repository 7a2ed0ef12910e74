"""Block feedback: the whole stack runs block by block, and every layer reads the state.

Before each block, the keys and values of the highest layer's states are given to all layers without
states, above and below.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from brt.models.block_recurrent.layer import Layer, Prepared
from brt.models.block_recurrent.memory import BlockStates, joined_states
from brt.models.caches import WindowCache
from brt.models.fast.attention import heads_first
from brt.models.fast.data_shards import by_data_shard
from brt.models.fast.kernel_attention import has_window_kernel
from brt.models.fast.loop_weights import arrays_in_loop, in_loop, scan

UNROLLED = 8
"""Blocks of an iteration with attention in kernels: a step for a TPU v4 takes 63.6 M cycles, not
87.3 M, and compiles longer (docs/benchmarks/tpu_compiler.md)."""


def state_source(layers: Iterable[Layer]) -> int:
    """Returns the index of the layer whose states feed the others: the highest that has any."""
    return max(i for i, layer in enumerate(layers) if layer.num_states)


def run_blocks(
    layers: Sequence[Layer],
    x_BTD: jax.Array,
    caches: tuple,
    keys: Sequence[jax.Array | None],
    remat: bool = False,
    counts_B: jax.Array | None = None,
) -> tuple[jax.Array, tuple, list[dict[str, jax.Array]]]:
    """Runs the stack on a segment of every batch element, one block at a time.

    Args:
        layers: the stack; each attends to states, at least one has a memory that offers some.
        x_BTD: (B, T, D) activations of the segment, T a multiple of W.
        caches: one segment-form cache per layer.
        keys: of each layer's dropout; its masks are the same for all blocks.
        remat: recompute each block, and each layer above the loop, in the backward pass.
        counts_B: (B,) int32, tokens that are not padding (one block); None: all.

    Returns:
        (B, T, D), the caches after the segment, and each layer's metrics, averaged over the blocks
        of the loop.

    Source: Block-Recurrent, section 4.4 and appendix E.
    """
    _, T, D = x_BTD.shape
    W = layers[0].window
    source = state_source(layers)
    S = layers[source].num_states
    prepared = []
    for i, (layer, key) in enumerate(zip(layers, keys)):
        with jax.named_scope(f"layer{i}"):
            prepared.append(layer.prepare(x_BTD.dtype, key, W, S))
    # No block waits for the layers above the states. With kernels these run on whole segments.
    has_kernels = all(_has_kernel(layer, x_BTD.dtype) for layer in layers)
    unroll, looped = (UNROLLED, source + 1) if has_kernels else (1, len(layers))
    lower = layers[:looped]
    graph, params = nnx.split(nnx.List(lower), nnx.Param)
    weights = {"params": nnx.to_pure_dict(params), "prepared": prepared[:looped]}

    def by_head(states):
        H = layers[source].sizes.num_heads
        return BlockStates(*(x_BGSA.reshape(*x_BGSA.shape[:3], H, -1) for x_BGSA in states))

    def block(weights, carry, x_BWD):
        caches, counts_B = carry
        stack = nnx.merge(graph, arrays_in_loop(weights["params"]))
        caches = [_carried(*pair, back=True) for pair in zip(stack, caches)]
        prepared = [
            Prepared(in_loop(bias_HWJ), matrices, lax.stop_gradient(arrays_in_loop(masks)))
            for bias_HWJ, matrices, masks in weights["prepared"]
        ]
        with jax.named_scope(f"layer{source}"):
            current = stack[source].current_states(caches[source], x_BWD.dtype, prepared[source])
        # The form of kernels: gradients of all layers are added up in it.
        offered = cast(BlockStates, joined_states(current))
        feedback = [x_B1SHK.reshape(len(x_BWD), 1, S, -1) for x_B1SHK in offered]
        after, metrics = [], []
        for i, (layer, cache) in enumerate(zip(stack, caches, strict=True)):
            with jax.named_scope(f"layer{i}"):
                states = current if i == source else None
                x_BWD, cache, reported = layer(
                    x_BWD, cache, prepared[i], None, counts_B, by_head(feedback), states
                )
            after.append(_carried(layer, cache))
            metrics.append(reported)
        above = feedback if looped < len(layers) else []
        # `scan` differentiates all that it returns, and a norm has no derivative at zero.
        return (tuple(after), counts_B), (x_BWD, above, lax.stop_gradient(metrics))

    def scan_blocks(weights, rows):
        x_BTD, caches, counts_B = rows
        B = x_BTD.shape[0]
        x_GBWD = jnp.moveaxis(x_BTD.reshape(B, T // W, W, D), 1, 0)
        caches = tuple(map(_carried, lower, caches))
        inputs = block, weights, (caches, counts_B), x_GBWD
        (caches, _), (x_GBWD, states, metrics) = scan(*inputs, remat, unroll)
        caches = tuple(_carried(*pair, back=True) for pair in zip(lower, caches))
        x_BTD = jnp.moveaxis(x_GBWD, 0, 1).reshape(B, T, D)
        states = [jnp.moveaxis(x_GB1SA[:, :, 0], 0, 1) for x_GB1SA in states]
        return (x_BTD, states, caches), jax.tree.map(jnp.mean, metrics)

    rows = x_BTD, tuple(caches[:looped]), counts_B
    (x_BTD, states, after), metrics = by_data_shard(scan_blocks, weights, rows)
    run = jax.checkpoint(Layer.__call__, static_argnums=0) if remat else Layer.__call__
    for i, layer in enumerate(layers[looped:], looped):
        with jax.named_scope(f"layer{i}"):
            inputs = x_BTD, caches[i], prepared[i], None, counts_B, by_head(states)
            x_BTD, cache, reported = run(layer, *inputs)
        after, metrics = (*after, cache), [*metrics, reported]
    return x_BTD, after, metrics


def _carried(layer, cache, back=False):
    """Returns a cache whose window has the form that the loop carries, or `back` from it.

    A kernel takes (B, W, A); otherwise attention multiplies keys head by head, (B, H, W, K). In
    another form each iteration of the loop would transpose them.
    """

    def change(x_BWHK):
        if not _has_kernel(layer, x_BWHK.dtype):
            return heads_first(x_BWHK)
        heads = (layer.sizes.num_heads, -1) if back else (-1,)
        return x_BWHK.reshape(*x_BWHK.shape[:2], *heads)

    return cache._replace(window=WindowCache(*map(change, cache.window)))


def _has_kernel(layer, dtype):
    return has_window_kernel(layer.sizes, layer.window, dtype, layer.sinks)
