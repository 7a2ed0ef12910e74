"""Token losses of logits. `brt.models.fast.chunked_losses` avoids the array of logits."""

import jax
import jax.numpy as jnp

from brt.models.arguments import check_array


def token_losses(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns -log p(target) in nats, and whether no logit exceeds the target's, both (...).

    logits_BTV: (..., V), at least float32. targets_BT: (...) int32 in [0, V), which
    is not checked.
    """
    check_array("targets of token_losses", targets_BT, jnp.integer)
    check_array("logits of token_losses", logits_BTV, jnp.floating, (*targets_BT.shape, None))
    chosen = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    nats = jax.nn.logsumexp(logits_BTV, axis=-1) - chosen
    return nats, chosen >= jnp.max(logits_BTV, axis=-1)
