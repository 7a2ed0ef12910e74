"""A layer while it decodes token by token, each batch element at its own position in its block."""

from typing import cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerTokens,
    TokenMemory,
    joined_states,
)
from brt.models.caches import LayerCache, WindowCache
from brt.models.decoding_window import (
    DecodingLayer,
    advance,
    completes_block,
    fill_window,
    last_block,
    write_token,
)
from brt.models.fast.attention import attend
from brt.models.fast.norms import unit_heads
from brt.models.ops import scaled_queries


def begin_decoding(
    layer: Layer,
    cache: LayerCache,
    after: LayerCache | None = None,
    fill_B: jax.Array | None = None,
) -> DecodingLayer:
    """Returns the decoding form of a segment-form cache.

    after, fill_B: as in `fill_window`, for batch elements that end inside a block.
    """
    window = fill_window(cache.window, None if after is None else after.window, fill_B)
    later = cache if after is None else after
    # A memory of tokens has processed those of the block that count.
    memories = (
        memory.begin_decoding(
            new if isinstance(memory, TokenMemory) else old, window.keys_BJHK.dtype
        )
        for memory, old, new in zip(layer.memories, cache.memories, later.memories, strict=True)
    )
    return DecodingLayer(window, tuple(memories))


def end_decoding(layer: Layer, cache: DecodingLayer) -> LayerCache:
    pairs = zip(layer.memories, cache.memories, strict=True)
    memories = (memory.end_decoding(old) for memory, old in pairs)
    return LayerCache(last_block(cache.window), tuple(memories))


@jax.named_scope("states")
def decoding_states(layer: Layer, cache: DecodingLayer, dtype: DTypeLike) -> BlockStates | None:
    pairs = zip(layer.memories, cache.memories, strict=True)
    return joined_states(memory.decoding_states(old, dtype) for memory, old in pairs)


def decode(
    layer: Layer,
    x_BD: jax.Array,
    cache: DecodingLayer,
    feedback_states: BlockStates | None = None,
    reads_B: jax.Array | bool = True,
) -> tuple[jax.Array, DecodingLayer]:
    """Runs on one token of every batch element; memories change when it completes a block.

    Args:
        x_BD: (B, D) activations.
        cache: the decoding form.
        feedback_states: with G = 1, for a layer whose memories have no states.
        reads_B: (B,) bool, batch elements that have a token; the caches of others stay.

    Returns:
        (B, D) and the cache after the token.
    """
    x_B1D, weights = x_BD[:, None], layer.weights(x_BD.dtype)
    normed_B1D, q_B1HK, k_B1HK, v_B1HK = layer.heads(x_B1D, weights)
    with jax.named_scope("attention"):
        q_B1HK, scale_H = scaled_queries(q_B1HK, layer.attention_scale)
        k_B1HK = unit_heads(k_B1HK) if layer.sizes.qk_norm else k_B1HK
        window = write_token(cache.window, k_B1HK[:, 0], v_B1HK[:, 0], reads_B)
        bias_BH1J = layer.relative_bias.token_table(jnp.abs(scale_H), layer.window, window.fill_B)
        keys_values = window.keys_BJHK, window.values_BJHK
        attended_B1HK = attend(q_B1HK, *keys_values, scale_H, bias_BH1J)
    token = LayerTokens(normed_B1D, q_B1HK, k_B1HK, v_B1HK, layer.scale_H)
    memories = []
    for memory, old in zip(layer.memories, cache.memories, strict=True):
        with jax.named_scope("states" if memory.num_states else "memory"):
            attended_B1HK, new = memory.decode(old, token, attended_B1HK, reads_B)
        memories.append(new)

    def read_states(q_B1HK):
        states = decoding_states(layer, cache, x_BD.dtype) or cast(BlockStates, feedback_states)
        k_BSHK, v_BSHK = (x_BGSHK[:, 0] for x_BGSHK in states)
        q_B1HK, scale_H = scaled_queries(q_B1HK, layer.cross_scale)
        return attend(q_B1HK, k_BSHK, v_BSHK, scale_H)

    x_B1D, _ = layer.output(x_B1D, normed_B1D, attended_B1HK, read_states, weights)
    W, full_B = layer.window, completes_block(window, reads_B)
    before = WindowCache(window.keys_BJHK[:, :W], window.values_BJHK[:, :W])
    block = KeysValues(window.keys_BJHK[:, W:], window.values_BJHK[:, W:])

    def update(*memories):
        pairs = zip(layer.memories, memories)
        return tuple(m.update_after_block(old, before, block, full_B) for m, old in pairs)

    # Computes nothing where no block is full.
    after = jax.lax.cond(jnp.any(full_B), update, lambda *memories: memories, *memories)
    return x_B1D[:, 0], DecodingLayer(advance(window, reads_B), after)
