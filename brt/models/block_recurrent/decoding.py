"""A layer while it decodes token by token, each batch element at its own position in its block."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerMemory,
    LayerTokens,
    TokenMemory,
    joined_states,
)
from brt.models.block_recurrent.token_layer import TokenLayer
from brt.models.caches import LayerCache, WindowCache, zeros_outside
from brt.models.decoding_window import (
    DecodingLayer,
    advance,
    completes_block,
    fill_window,
    last_block,
    write_slot,
    write_token,
)
from brt.models.fast.attention import attend
from brt.models.ops import attention_to_states, scaled_queries, unit_heads


class OpenBlock(NamedTuple):
    """The decoding form of a memory with its own `take`.

    taken: of the tokens of the block so far, (B, W, ...); zeros beyond.
    """

    cache: Any
    taken: Any


# One memory.


def begin_memory(
    memory: LayerMemory, old: Any, new: Any, nothing: LayerTokens, fill_B: jax.Array
) -> Any:
    """Returns the decoding form of a memory's cache.

    Args:
        old: from before the block.
        new: after the block's first `fill_B` tokens: the cache of a `TokenMemory`, or the result of
            a memory's own `take`; None: no token.
        nothing: tokens of a block, used for their shapes.
    """
    dtype = nothing.keys_BTHK.dtype
    if isinstance(memory, TokenMemory):
        return memory.begin_decoding(old if new is None else new, dtype)
    form = memory.begin_decoding(old, dtype)
    if not memory.has_own_take:
        return form
    if new is None:
        shapes = jax.eval_shape(memory.take, nothing)
        new = jax.tree.map(jnp.zeros_like, shapes)
    counts_BW = jnp.arange(nothing.keys_BTHK.shape[1]) < fill_B[:, None]
    return OpenBlock(form, zeros_outside(counts_BW, new))


def end_memory(memory: LayerMemory, cache: Any) -> Any:
    return memory.end_decoding(_form(cache))


def states_of(memory: LayerMemory, cache: Any, dtype: DTypeLike) -> BlockStates | None:
    return memory.decoding_states(_form(cache), dtype)


def decode_memory(
    memory: LayerMemory,
    cache: Any,
    token: LayerTokens,
    attended_B1HK: jax.Array,
    reads_B: jax.Array | bool,
    fill_B: jax.Array,
) -> tuple[jax.Array, Any]:
    y, new = memory.decode(_form(cache), token, attended_B1HK, reads_B)
    if not isinstance(cache, OpenBlock):
        return y, new

    def written(x_BW, x_B1):
        return write_slot(x_BW, fill_B, x_B1[:, 0], reads_B)

    return y, OpenBlock(new, jax.tree.map(written, cache.taken, memory.take(token)))


def update_memory(
    memory: LayerMemory, cache: Any, before: WindowCache, block: KeysValues, full_B: jax.Array
) -> Any:
    is_open = isinstance(cache, OpenBlock)
    taken = cache.taken if is_open else block
    form = memory.update_after_block(_form(cache), before, taken, full_B)
    return OpenBlock(form, zeros_outside(~full_B, taken)) if is_open else form


def _form(cache):
    return cache.cache if isinstance(cache, OpenBlock) else cache


# A layer.


def begin_decoding(
    layer: Layer | TokenLayer, cache: Any, after: Any = None, fill_B: jax.Array | None = None
) -> Any:
    """Returns the decoding form of a segment-form cache: a `DecodingLayer` of a `LayerCache`.

    after, fill_B: as in `fill_window`, for batch elements that end inside a block.
    """
    if isinstance(layer, TokenLayer):
        return cache if after is None else after
    window = fill_window(cache.window, None if after is None else after.window, fill_B)
    x_BWHK = cache.window.keys_BWHK
    inputs_BWD = jnp.zeros((*x_BWHK.shape[:2], layer.sizes.width), x_BWHK.dtype)
    ones_H = jnp.ones(layer.sizes.num_heads)
    nothing = LayerTokens(inputs_BWD, x_BWHK, x_BWHK, x_BWHK, ones_H)
    later = [None] * len(layer.memories) if after is None else after.memories
    memories = (
        begin_memory(memory, old, new, nothing, window.fill_B)
        for memory, old, new in zip(layer.memories, cache.memories, later, strict=True)
    )
    return DecodingLayer(window, tuple(memories))


def end_decoding(layer: Layer | TokenLayer, cache: Any) -> Any:
    if isinstance(layer, TokenLayer):
        return cache
    pairs = zip(layer.memories, cache.memories, strict=True)
    memories = (end_memory(*pair) for pair in pairs)
    return LayerCache(last_block(cache.window), tuple(memories))


@jax.named_scope("states")
def decoding_states(layer: Layer, cache: DecodingLayer, dtype: DTypeLike) -> BlockStates | None:
    pairs = zip(layer.memories, cache.memories, strict=True)
    return joined_states(states_of(*pair, dtype) for pair in pairs)


def decode(
    layer: Layer | TokenLayer,
    x_BD: jax.Array,
    cache: Any,
    feedback_states: BlockStates | None = None,
    reads_B: jax.Array | bool = True,
) -> tuple[jax.Array, Any]:
    """Runs on one token of every batch element; memories change when it completes a block.

    feedback_states: with G = 1, for a layer whose memories have no states. reads_B: as in
    `LanguageModel.decode`. Returns (B, D) and the cache after the token.
    """
    if isinstance(layer, TokenLayer):
        return layer.decode(x_BD, cache, reads_B)
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
    memories: list[Any] = []
    for memory, old in zip(layer.memories, cache.memories, strict=True):
        with jax.named_scope("states" if memory.num_states else "memory"):
            y, new = decode_memory(memory, old, token, attended_B1HK, reads_B, window.fill_B)
        memories.append(new)
        if memory.in_residual:
            x_B1D = x_B1D + y
        else:
            attended_B1HK = y

    def read_states(q_B1HK):
        states = decoding_states(layer, cache, x_BD.dtype) or cast(BlockStates, feedback_states)
        return attention_to_states(q_B1HK, *states, layer.cross_scale, attention=attend)

    x_B1D, _ = layer.output(x_B1D, normed_B1D, attended_B1HK, read_states, weights)
    W, full_B = layer.window, completes_block(window, reads_B)
    before = WindowCache(window.keys_BJHK[:, :W], window.values_BJHK[:, :W])
    block = KeysValues(window.keys_BJHK[:, W:], window.values_BJHK[:, W:])

    def update(*memories):
        pairs = zip(layer.memories, memories)
        return tuple(update_memory(*pair, before, block, full_B) for pair in pairs)

    # Computes nothing if no block is full.
    after = jax.lax.cond(jnp.any(full_B), update, lambda *memories: memories, *memories)
    return x_B1D[:, 0], DecodingLayer(advance(window, reads_B), after)
