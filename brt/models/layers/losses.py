"""Token losses, in nats, of logits; `table_losses.py` has those of vectors and a table."""

import jax
import jax.numpy as jnp


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns -log p(target), and whether no logit exceeds the target's.

    Args:
        logits_BTV: (..., V), float32 or wider.
        targets_BT: (...) int32 in [0, V).

    Returns:
        Nats and bool, both (...).
    """
    chosen = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    nats = jax.nn.logsumexp(logits_BTV, axis=-1) - chosen
    return nats, chosen >= jnp.max(logits_BTV, axis=-1)
