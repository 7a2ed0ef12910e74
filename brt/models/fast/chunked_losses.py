"""Token losses of an output embedding, without the logits of all tokens in memory.

Plain counterpart: `brt.models.layers.losses.token_losses` of x . embedding / divisor
(tests/models/fast/test_chunked_losses.py). With 7 layers, d 256, V 32,000 and 4,096 tokens, the
gradient needs 1,625 MiB of temporary memory on a CPU instead of 2,307 MiB.

M: parts of the vocabulary, one for each device of the model axis, of Y entries each; C: tokens of a
chunk of the segment.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.models.axis_rules import constrain, device
from brt.models.fast.block_loop import CastMatrix
from brt.models.fast.data_shards import by_data_shard, model_parts
from brt.models.fast.products import einsum
from brt.models.ops import at_least_float32

CHUNKS = {"cpu": 2**26, "gpu": 2**27, "tpu": 2**27}
"""Logits per chunk and device; 2^26 are 256 MiB in float32. Each chunk adds to the gradient of the
whole matrix, so small chunks are slow: with 2^26 a step of a TPU v4 takes 0.17 M cycles more, by
the compiler's estimate."""


class PartScores(NamedTuple):
    """Scores of each token in each part of the vocabulary, (B, C, M).

    log_sum_BCM: log-sum-exp of the logits. chosen_BCM: the target's logit, or 0 if it is in another
    part. highest_BCM: the highest logit.
    """

    log_sum_BCM: jax.Array
    chosen_BCM: jax.Array
    highest_BCM: jax.Array

    def joined(self) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of each target, and whether no logit exceeds its own; both (B, C)."""
        chosen_BC = jnp.sum(self.chosen_BCM, axis=-1)
        nats_BC = jax.nn.logsumexp(self.log_sum_BCM, axis=-1) - chosen_BC
        return nats_BC, chosen_BC >= jnp.max(self.highest_BCM, axis=-1)


def chunked_losses(
    x_BTD: jax.Array,
    embedding_VD: jax.Array,
    targets_BT: jax.Array,
    divisor: float = 1.0,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns -log p of each target in nats, and whether no logit exceeds it; both (B, T).

    Under a mesh each device computes the logits of its batch elements and its part of the
    vocabulary.

    x_BTD: in the type of the products; sums are at least float32. targets_BT: int32 in [0, V).
    chunk: logits in memory at a time, on each device; None: of `CHUNKS`.
    """

    def scores(weights, rows):
        x_BTD, targets_BT = rows
        embedding_MYD = weights["embedding_VYD"]
        return _scores(x_BTD, embedding_MYD.value(), targets_BT, divisor, chunk), ()

    weights = _in_parts(x_BTD, embedding_VD)
    scored, _ = by_data_shard(scores, weights, (constrain(x_BTD, "BTD"), targets_BT))
    return scored.joined()


def weighted_losses(
    x_KBTD: jax.Array,
    embedding_VD: jax.Array,
    targets_KBT: jax.Array,
    weights_KBT: jax.Array,
    divisor: float = 1.0,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns sums over K segments of weight times `chunked_losses`: nats, and correct tokens.

    For derivatives, each chunk also computes its gradients while its logits are in memory: three
    products instead of four. For M > 1 parts a separate loop first sums over the vocabulary, so
    that devices exchange nothing inside a loop. There are no forward-mode derivatives, and weights
    have no gradient.
    """
    K, B, T, _ = x_KBTD.shape

    def losses(weights, rows):
        nats, correct = _weighted(*rows, weights["embedding_VYD"], divisor, chunk)
        share = B / len(rows[0])  # converts to a mean over shards
        return (), (share * nats, share * correct)

    def all_tokens(x_KBT):
        return jnp.moveaxis(x_KBT, 0, 1).reshape(B, K * T, *x_KBT.shape[3:])

    x_BTD, *rows = map(all_tokens, (x_KBTD, targets_KBT, weights_KBT))
    weights = _in_parts(x_BTD, embedding_VD)
    return by_data_shard(losses, weights, (constrain(x_BTD, "BTD"), *rows))[1]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _weighted(x_BTD, targets_BT, weights_BT, embedding_MYD, divisor, chunk):
    scored = _scores(x_BTD, embedding_MYD.value(), targets_BT, divisor, chunk)
    return _sums(scored, weights_BT)


def _forward(x_BTD, targets_BT, weights_BT, embedding_MYD, divisor, chunk):
    narrow_MYD = embedding_MYD.value()
    inputs: tuple[Any, ...] = (x_BTD, targets_BT, weights_BT)
    scored = None
    if len(narrow_MYD) > 1:
        scored = _scores(x_BTD, narrow_MYD, targets_BT, divisor, chunk)
        inputs = *inputs, jax.nn.logsumexp(scored.log_sum_BCM, axis=-1)

    def gradients(dembedding_MYD, inputs):
        x_BCD, targets_BC, weights_BC, *log_sum_BC = inputs
        logits_BCMY, is_target_BCMY, scores = _chunk(x_BCD, narrow_MYD, targets_BC, divisor)
        (log_sum_BC,) = log_sum_BC or [scores.log_sum_BCM[..., 0]]
        p_BCMY = jnp.exp(logits_BCMY - log_sum_BC[..., None, None])
        d_BCMY = (p_BCMY - is_target_BCMY) * (weights_BC / divisor)[..., None, None]
        # Without the barrier XLA computes it once for each product if memory is scarce.
        d_BCMY = jax.lax.optimization_barrier(d_BCMY.astype(x_BCD.dtype))
        dembedding_MYD += einsum(
            "BCMY,BCD->MYD", d_BCMY, x_BCD, preferred_element_type=dembedding_MYD.dtype
        )
        # Parts are kept separate, so that devices sum them once, after the loop.
        dx_BCMD = einsum("BCMY,MYD->BCMD", d_BCMY, narrow_MYD)
        return dembedding_MYD, (scores, dx_BCMD)

    zeros_MYD = jnp.zeros(narrow_MYD.shape, at_least_float32(x_BTD).dtype)
    chunks = narrow_MYD.shape[1], chunk
    dembedding_MYD, (found, dx_BTMD) = _in_chunks(gradients, zeros_MYD, inputs, *chunks)
    dx_BTD = jnp.sum(at_least_float32(dx_BTMD), axis=2).astype(x_BTD.dtype)
    return _sums(scored or found, weights_BT), (dx_BTD, embedding_MYD, dembedding_MYD)


def _backward(divisor, chunk, gradients, cotangents):
    dx_BTD, embedding_MYD, dembedding_MYD = gradients
    dnats, _ = cotangents
    dx_BTD = (dnats * dx_BTD).astype(dx_BTD.dtype)
    return dx_BTD, None, None, embedding_MYD.gradient(dnats * dembedding_MYD)


_weighted.defvjp(_forward, _backward)


def _sums(scored, weights_BT):
    nats_BT, correct_BT = scored.joined()
    return jnp.sum(nats_BT * weights_BT), jnp.sum(correct_BT * weights_BT)


def _in_parts(x_BTD, embedding_VD):
    V, D = embedding_VD.shape
    parts = model_parts(V)
    embedding_MYD = CastMatrix(embedding_VD.reshape(parts, V // parts, D), x_BTD.dtype)
    # In `_VYD`, the model axis splits the first axis like the vocabulary.
    return {"embedding_VYD": embedding_MYD}


def _scores(x_BTD, narrow_MYD, targets_BT, divisor, chunk):
    def scores(_, inputs):
        x_BCD, targets_BC = inputs
        return (), _chunk(x_BCD, narrow_MYD, targets_BC, divisor)[2]

    return _in_chunks(scores, (), (x_BTD, targets_BT), narrow_MYD.shape[1], chunk)[1]


def _chunk(x_BCD, narrow_MYD, targets_BC, divisor):
    """Returns the logits and the target mask, both (B, C, M, Y), and the scores."""
    M, Y, _ = narrow_MYD.shape
    kind = at_least_float32(x_BCD).dtype
    logits_BCMY = einsum("BCD,MYD->BCMY", x_BCD, narrow_MYD, preferred_element_type=kind)
    logits_BCMY = logits_BCMY / divisor
    highest_BCM = jnp.max(logits_BCMY, axis=-1)
    sums_BCM = jnp.sum(jnp.exp(logits_BCMY - highest_BCM[..., None]), axis=-1)
    # A masked sum and not a gather, because the vocabulary may be sharded.
    entries_MY = jnp.arange(M * Y, dtype=jnp.int32).reshape(M, Y)
    is_target_BCMY = entries_MY == targets_BC[..., None, None]
    chosen_BCM = jnp.sum(jnp.where(is_target_BCMY, logits_BCMY, 0), axis=-1)
    scores = PartScores(highest_BCM + jnp.log(sums_BCM), chosen_BCM, highest_BCM)
    return logits_BCMY, is_target_BCMY, scores


def _in_chunks(function, carry, inputs, entries, chunk):
    """Folds a function over chunks of at most `chunk` logits, `entries` per token."""
    B, T = jax.tree.leaves(inputs)[0].shape[:2]
    number = math.ceil(B * T * entries / (chunk or CHUNKS[device().platform]))
    number = min(max(number, 1), T)
    # Without padding, if that takes less than twice as many chunks.
    others = np.arange(number, 2 * number)
    number = int((*others[T % others == 0], number)[0])
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
