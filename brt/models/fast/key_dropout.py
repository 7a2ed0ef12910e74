"""Dropout of keys before the softmax, instead of attention weights after it.

The remaining weights sum to 1, and any form of attention with a bias can compute it. Functions
replace those of `brt.models.ops` with the same names.

Source: Li et al. 2023, DropKey, arXiv:2208.02646.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models import ops
from brt.models.ops import HIDDEN, WindowTables


def window_tables(
    bias_HW: jax.Array,
    key: jax.Array | None,
    rate: float,
    table: Callable[[jax.Array], jax.Array] = ops.window_table,
) -> WindowTables:
    """Returns the tables of a window; a token always sees the one before it."""
    table_HWJ = table(bias_HW)
    _, W, J = table_HWJ.shape
    is_nearest_WJ = jnp.arange(W)[:, None] + W - 1 == jnp.arange(J)
    hidden_HWJ = hidden_keys(key, rate, table_HWJ.shape, table_HWJ.dtype)
    if hidden_HWJ is not None:
        table_HWJ = table_HWJ + jnp.where(is_nearest_WJ, 0, hidden_HWJ)
    return WindowTables(table_HWJ, None)


def states_dropout(
    key: jax.Array | None, rate: float, sizes: tuple[int, int, int], dtype: DTypeLike
) -> jax.Array | None:
    """Returns the bias of attention to states; a query with all states hidden sees all."""
    bias_HWS = hidden_keys(key, rate, sizes, jnp.promote_types(dtype, jnp.float32))
    if bias_HWS is None:
        return None
    return jnp.where(jnp.any(bias_HWS == 0, axis=-1, keepdims=True), bias_HWS, 0)


def attention_to_states(
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array | None,
    bias_HWS: jax.Array | None = None,
    attention: Callable[..., jax.Array] = ops.attention,
) -> jax.Array:
    """Returns attention to states with the bias of `states_dropout`."""

    def attend(q, k, v, scale_H, _, bias_HWS):
        return attention(q, k, v, scale_H, bias_HWS, None)

    return ops.attention_to_states(q_BTHK, k_BGSHK, v_BGSHK, scale_H, bias_HWS, attend)


def hidden_keys(
    key: jax.Array | None, rate: float, shape: tuple[int, ...], dtype: DTypeLike
) -> jax.Array | None:
    """Returns `HIDDEN` where a key is hidden, else 0; None without a key or a rate."""
    if key is None or rate == 0.0:
        return None
    return jnp.where(jax.random.bernoulli(key, rate, shape), HIDDEN, 0).astype(dtype)
