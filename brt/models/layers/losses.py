"""Token losses of logits. `brt.models.fast.chunked_losses` avoids the array of logits."""

from typing import Any

import jax
import jax.numpy as jnp


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns -log p(target) in nats, and whether no logit exceeds the target's, both (...).

    logits_BTV: (..., V), at least float32. targets_BT: (...) int32 in [0, V), not checked.
    """
    if getattr(targets_BT, "shape", None) != logits_BTV.shape[:-1] or not jnp.issubdtype(
        targets_BT.dtype, jnp.integer
    ):
        shape = logits_BTV.shape[:-1]
        raise TypeError(f"targets of token_losses must be an array of integers of shape {shape}.")
    chosen = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    nats = jax.nn.logsumexp(logits_BTV, axis=-1) - chosen
    return nats, chosen >= jnp.max(logits_BTV, axis=-1)


def scored_positions(
    x_KBTD: Any, targets_KBT: jax.Array, weights_KBT: jax.Array, most: int
) -> tuple[Any, jax.Array, jax.Array]:
    """Gathers the positions of each batch element with a weight into one segment of `most` (N).

    x_KBTD: a tree of (K, B, T, ...) arrays. Where more than N positions have a weight, the weights,
    and so the loss, are nan. Returns (1, B, N, ...), (1, B, N) and (1, B, N).
    """

    def joined(x_KBT):
        x_BKT = jnp.moveaxis(x_KBT, 0, 1)
        return x_BKT.reshape(x_BKT.shape[0], -1, *x_BKT.shape[3:])

    weights_BT = joined(weights_KBT)
    scored_BN, at_BN = jax.lax.top_k(weights_BT, min(most, weights_BT.shape[1]))
    lost_B = jnp.sum(weights_BT > 0, axis=1) > most
    scored_BN = jnp.where(lost_B[:, None], jnp.nan, scored_BN)

    def taken(x_KBT):
        return jax.vmap(lambda x_T, at_N: x_T[at_N])(joined(x_KBT), at_BN)[None]

    return jax.tree.map(taken, x_KBTD), taken(targets_KBT), scored_BN[None]
