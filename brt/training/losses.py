"""Token losses, in nats."""

import jax
import jax.numpy as jnp


def token_losses(logits_BTV, targets_BT):
    """-log p(target), and whether the target has the highest logit.

    Args:
        logits_BTV: (..., V), float32 or wider.
        targets_BT: (...) int32 in [0, V).

    Returns:
        nats and bool, both (...).
    """
    chosen = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    nats = jax.nn.logsumexp(logits_BTV, axis=-1) - chosen
    return nats, jnp.argmax(logits_BTV, axis=-1) == targets_BT


LOSSES = ("full", "half")
"""Which positions of a segment are trained on: all, or the most recent half."""


def trained_weights(weights_BT, loss: str = "full"):
    """Weights of the positions a loss scores; with "half" the first T // 2 count nothing.

    Source: Transformer-XL, section 4.2 (Table 5, after Al-Rfou et al. 2018, who score all).
    """
    T = weights_BT.shape[-1]
    return weights_BT if loss == "full" else weights_BT * (jnp.arange(T) >= T // 2)
