"""The compiled loop over tokens, a chunk at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from brt.generation.document_memory import Memory
from brt.generation.sampling import choose, row_keys
from brt.models.caches import select_rows
from brt.models.layers.losses import token_losses

DRAW = -1
"""Marks a token that is to be drawn."""


def make_decode_loop(graph: nnx.GraphDef, size: int) -> Callable:
    """Builds the loop for `jax.jit`.

    Args:
        size: V, number of ids that may be chosen.

    Returns:
        decode_loop(params, memory, given_BC, counts_B, seeds_B, sampling) -> the memory, tokens
        (B, C), their nats (B, C) under the model's own distribution, and whether the logits were
        finite (B, C). Each document continues by its count, at most C, of tokens: given ones, or
        `DRAW`. Then it stays unchanged, bit for bit.
    """

    def decode_loop(params, memory, given_BC, counts_B, seeds_B, sampling):
        model = nnx.merge(graph, params)

        def step(t, carry):
            memory, tokens_BC, nats_BC, finite_BC = carry
            reads_B = t < counts_B
            logits_BV, caches = model.decode(memory.recent_BP[:, -1], memory.caches, reads_B)
            keys_B = row_keys(seeds_B, memory.position_B)
            chosen_B = choose(sampling, logits_BV[:, :size], memory.recent_BP, keys_B)
            next_B = jnp.where(given_BC[:, t] == DRAW, chosen_B, given_BC[:, t])
            nats_B, _ = token_losses(logits_BV, next_B)
            recent_BP = jnp.concatenate([memory.recent_BP[:, 1:], next_B[:, None]], axis=1)
            recent_BP = select_rows(reads_B, recent_BP, memory.recent_BP)
            memory = Memory(caches, recent_BP, memory.position_B + reads_B.astype(jnp.int32))
            finite_B = jnp.isfinite(logits_BV).all(axis=-1)
            return (
                memory,
                tokens_BC.at[:, t].set(next_B),
                nats_BC.at[:, t].set(nats_B),
                finite_BC.at[:, t].set(finite_B),
            )

        nats_type = jnp.promote_types(model.dtype, jnp.float32)
        carry = (
            memory,
            jnp.zeros_like(given_BC),
            jnp.zeros(given_BC.shape, nats_type),
            jnp.ones(given_BC.shape, bool),
        )
        return jax.lax.fori_loop(0, jnp.max(counts_B), step, carry)

    return decode_loop
