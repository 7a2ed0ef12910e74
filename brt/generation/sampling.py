"""From logits to the next token: greedy, temperature, top-k, top-p, repetition penalty.

The functions run inside the compiled decode loop. V is the number of ids of the vocabulary; other
axes as in `brt.models`.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from brt.checks import SMALLEST, NotNegative, Positive, Range, check


class Sampling(NamedTuple):
    """Settings of the choice of a token, applied in this order; None disables one.

    repetition_penalty: above 1, makes tokens of the last window less likely.
    temperature: divides the logits; 0 and None take the most likely token.
    top_k: draw among the k most likely tokens.
    top_p: draw among the fewest tokens that together have this probability.
    """

    temperature: float | None = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None


GREEDY = Sampling(temperature=None)


def checked(sampling: Sampling, size: int) -> Sampling:
    """Returns the same sampling as arrays; a temperature of 0 becomes None.

    size: V, the number of ids to choose from.
    """
    temperature, top_k, top_p, penalty = sampling
    ids = Range(f"a whole number from 1 to the vocabulary's {size} ids", 1, size)
    share = Range("a number above 0, and at most 1", SMALLEST, 1)
    check("temperature", temperature, NotNegative | None)
    check("top_k", top_k, Annotated[int, ids] | None)
    check("top_p", top_p, Annotated[float, share] | None)
    check("repetition_penalty", penalty, Positive | None)
    if temperature is None or temperature < SMALLEST:
        temperature = top_k = top_p = None

    def number(value, dtype):
        return None if value is None else jnp.asarray(value, dtype)

    return Sampling(
        number(temperature, jnp.float32),
        number(top_k, jnp.int32),
        number(top_p, jnp.float32),
        number(penalty, jnp.float32),
    )


def penalise(logits_BV: jax.Array, recent_BR: jax.Array, penalty: jax.Array | float) -> jax.Array:
    """Divides the logits of recent tokens by `penalty`, or multiplies those below zero.

    recent_BR: (B, R) int32; negative ids are ignored.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """
    rows = jnp.arange(logits_BV.shape[0])[:, None]
    # A negative id would count from the end: V is out of range, and dropped.
    ids_BR = jnp.where(recent_BR < 0, logits_BV.shape[1], recent_BR)
    seen_BV = jnp.zeros(logits_BV.shape, bool).at[rows, ids_BR].set(True, mode="drop")
    weaker_BV = jnp.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    return jnp.where(seen_BV, weaker_BV, logits_BV)


def keep_top_p(sorted_BV: jax.Array, p: jax.Array | float) -> jax.Array:
    """Returns logits in falling order, minus infinity after the first that reach probability `p`.

    Source: Holtzman et al. 2020, arXiv:1904.09751, section 3.1.
    """
    probability_BV = jax.nn.softmax(sorted_BV, axis=-1)
    before_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
    # The first stays even if a tiny p is rounded.
    kept_BV = (before_BV < p) | (jnp.arange(sorted_BV.shape[-1]) == 0)
    return jnp.where(kept_BV, sorted_BV, -jnp.inf)


def choose(
    sampling: Sampling, logits_BV: jax.Array, recent_BR: jax.Array, keys_B: jax.Array
) -> jax.Array:
    """Returns the next tokens, (B,) int32.

    Args:
        sampling: from `checked`.
        logits_BV, recent_BR: (B, V), and (B, R) int32 for the penalty.
        keys_B: one for each batch element.
    """
    if sampling.repetition_penalty is not None:
        logits_BV = penalise(logits_BV, recent_BR, sampling.repetition_penalty)
    if sampling.temperature is None:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    # A maximum of 0 keeps logits finite at a tiny temperature.
    logits_BV = logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True)
    logits_BV = logits_BV / sampling.temperature
    draw = jax.vmap(jax.random.categorical)
    if sampling.top_k is None and sampling.top_p is None:
        return draw(keys_B, logits_BV).astype(jnp.int32)
    # One sort serves both; the draw is among ranks.
    order_BV = jnp.argsort(logits_BV, axis=-1, descending=True)
    sorted_BV = jnp.take_along_axis(logits_BV, order_BV, axis=-1)
    if sampling.top_k is not None:
        is_kept_V = jnp.arange(sorted_BV.shape[-1]) < sampling.top_k
        sorted_BV = jnp.where(is_kept_V, sorted_BV, -jnp.inf)
    if sampling.top_p is not None:
        sorted_BV = keep_top_p(sorted_BV, sampling.top_p)
    rank_B1 = draw(keys_B, sorted_BV)[:, None]
    return jnp.take_along_axis(order_BV, rank_B1, axis=-1)[:, 0].astype(jnp.int32)


def row_keys(seeds_B: jax.Array, position_B: jax.Array) -> jax.Array:
    """Returns a key for each batch element, of its seed and the position of its next token only."""
    return jax.vmap(lambda seed, position: jax.random.fold_in(jax.random.key(seed), position))(
        seeds_B, position_B
    )
