"""Token losses of an output embedding, without the logits of all tokens in memory.

Plain counterpart: `brt.models.layers.losses.token_losses` of x . embedding / divisor
(tests/models/test_chunked_losses.py). With 7 layers, d 256, V 32,000 and 4,096 tokens, the gradient
needs 1,666 MiB of temporary memory on a CPU instead of 2,412 MiB, and 1.33 of the processor time.
On TPUs see docs/benchmarks/tpu_compiler.md.

M: parts of the vocabulary, one for each device of the model axis, of Y entries each; C: tokens of a
chunk of the segment.
"""

import functools
import math

import jax
import jax.numpy as jnp

from brt.models.axis_rules import constrain
from brt.models.fast.block_loop import CastMatrix
from brt.models.fast.data_shards import by_data_shard, model_parts
from brt.models.ops import at_least_float32

CHUNK = 2**26
"""Logits of one device that are computed at a time: 256 MiB in float32. In the backward pass each
chunk adds to the gradient of the whole matrix, so small chunks are slow."""


def chunked_losses(
    x_BTD: jax.Array,
    embedding_VD: jax.Array,
    targets_BT: jax.Array,
    divisor: float = 1.0,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns -log p of each target in nats, and whether no logit exceeds its own; both (B, T).

    The backward pass computes the logits again, chunk by chunk. There are no forward-mode
    derivatives. Under a mesh each device computes the logits of its batch elements and its part of
    the vocabulary.

    x_BTD: in the type of the products; sums are at least float32. targets_BT: int32 in [0, V).
    chunk: logits in memory at a time, on each device; None: `CHUNK`.
    """
    V, D = embedding_VD.shape
    parts = model_parts(V)
    chunk = CHUNK if chunk is None else chunk

    def chunked(weights, rows):
        x_BTD, targets_BT = rows
        B, T, _ = x_BTD.shape
        number = min(max(math.ceil(B * T * (V // parts) / chunk), 1), T)
        # Without padding, if that takes less than twice as many.
        number = next((n for n in range(number, 2 * number) if T % n == 0), number)
        return _parts(x_BTD, weights["embedding_VYD"], targets_BT, divisor, number), ()

    # The gradient is summed in the type of the matrix.
    embedding_MYD = CastMatrix(embedding_VD.reshape(parts, V // parts, D), x_BTD.dtype)
    rows = constrain(x_BTD, "BTD"), targets_BT
    # Named V: the model axis splits the first axis as it splits the vocabulary.
    (log_sum_BTM, chosen_BTM, highest_BTM), _ = by_data_shard(
        chunked, {"embedding_VYD": embedding_MYD}, rows
    )
    chosen_BT = jnp.sum(chosen_BTM, axis=-1)
    nats_BT = jax.nn.logsumexp(log_sum_BTM, axis=-1) - chosen_BT
    return nats_BT, chosen_BT >= jnp.max(highest_BTM, axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _parts(x_BTD, embedding_MYD, targets_BT, divisor, number):
    return _forward(x_BTD, embedding_MYD, targets_BT, divisor, number)[0]


def _forward(x_BTD, embedding_MYD, targets_BT, divisor, number):
    narrow_MYD = embedding_MYD.value()
    entries_MY = _entries(narrow_MYD)

    def chunk(_, inputs):
        x_BCD, targets_BC = inputs
        logits_BCMY = _logits(x_BCD, narrow_MYD, divisor)
        highest_BCM = jnp.max(logits_BCMY, axis=-1)
        sums_BCM = jnp.sum(jnp.exp(logits_BCMY - highest_BCM[..., None]), axis=-1)
        # A masked sum, not a gather, because the vocabulary may be sharded.
        is_target_BCMY = entries_MY == targets_BC[..., None, None]
        chosen_BCM = jnp.sum(jnp.where(is_target_BCMY, logits_BCMY, 0), axis=-1)
        return (), (highest_BCM + jnp.log(sums_BCM), chosen_BCM, highest_BCM)

    _, parts = _in_chunks(chunk, (), (x_BTD, targets_BT), number)
    return parts, (x_BTD, embedding_MYD, targets_BT, parts[0])


def _backward(divisor, number, residuals, gradients):
    x_BTD, embedding_MYD, targets_BT, log_sum_BTM = residuals
    dlog_sum_BTM, dchosen_BTM, dhighest_BTM = gradients
    del dhighest_BTM  # which is only compared
    narrow_MYD = embedding_MYD.value()
    entries_MY = _entries(narrow_MYD)

    def chunk(dembedding_MYD, inputs):
        x_BCD, targets_BC, log_sum_BCM, dlog_sum_BCM, dchosen_BCM = inputs
        logits_BCMY = _logits(x_BCD, narrow_MYD, divisor)
        d_BCMY = jnp.exp(logits_BCMY - log_sum_BCM[..., None]) * dlog_sum_BCM[..., None]
        is_target_BCMY = entries_MY == targets_BC[..., None, None]
        d_BCMY = d_BCMY + jnp.where(is_target_BCMY, dchosen_BCM[..., None], 0)
        # Behind a barrier, or XLA computes it once for each product where memory is scarce.
        d_BCMY = jax.lax.optimization_barrier((d_BCMY / divisor).astype(x_BCD.dtype))
        dembedding_MYD += jnp.einsum(
            "BCMY,BCD->MYD", d_BCMY, x_BCD, preferred_element_type=dembedding_MYD.dtype
        )
        # Each part separately: they are summed over the devices once, after the loop.
        return dembedding_MYD, jnp.einsum("BCMY,MYD->BCMD", d_BCMY, narrow_MYD)

    inputs = x_BTD, targets_BT, log_sum_BTM, dlog_sum_BTM, dchosen_BTM
    zeros_MYD = jnp.zeros(narrow_MYD.shape, at_least_float32(x_BTD).dtype)
    dembedding_MYD, dx_BTMD = _in_chunks(chunk, zeros_MYD, inputs, number)
    dx_BTD = jnp.sum(at_least_float32(dx_BTMD), axis=2).astype(x_BTD.dtype)
    return dx_BTD, embedding_MYD.gradient(dembedding_MYD), None


_parts.defvjp(_forward, _backward)


def _logits(x_BCD, embedding_MYD, divisor):
    product_BCMY = jnp.einsum(
        "BCD,MYD->BCMY", x_BCD, embedding_MYD, preferred_element_type=at_least_float32(x_BCD).dtype
    )
    return product_BCMY / divisor


def _entries(embedding_MYD):
    parts, entries, _ = embedding_MYD.shape
    return jnp.arange(parts * entries, dtype=jnp.int32).reshape(parts, entries)


def _in_chunks(function, carry, inputs, number):
    T = jax.tree.leaves(inputs)[0].shape[1]
    if number == 1:
        return function(carry, inputs)
    C = -(-T // number)

    def split(x):
        x = jnp.pad(x, [(0, 0), (0, number * C - T)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(x.shape[0], number, C, *x.shape[2:]), 1, 0)

    def joined(x):
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], number * C, *x.shape[3:])[:, :T]

    carry, outputs = jax.lax.scan(function, carry, jax.tree.map(split, inputs))
    return carry, jax.tree.map(joined, outputs)
