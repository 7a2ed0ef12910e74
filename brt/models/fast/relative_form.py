"""Which form relative attention has: a Pallas TPU kernel, or not."""

from typing import Any

import jax

from brt.models.fast import relative_attention, relative_kernel
from brt.models.fast.kernel_attention import has_kernel, heads_of
from brt.models.layers.sizes import Sizes
from brt.models.transformer_xl.relative_attention import Positions

BINDING = "TransformerXL.attention_form"


def has_relative_kernel(sizes: Sizes, queries: int, keys: int, misfit: str | None = None) -> bool:
    """Returns whether relative attention is a kernel; misfit: why it cannot be one, or None."""
    misfit = misfit or relative_kernel.misfit(heads_of(sizes), keys)
    what = f"{queries} queries and {keys} keys by distance"
    return has_kernel(sizes, what, misfit, BINDING)


def attend_by_distance(
    sizes: Sizes,
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    v_BJHK: jax.Array,
    content_bias_HK: jax.Array | None,
    positions: Positions | None,
    visible_BTJ: jax.Array,
    kept_BHTJ: jax.Array | None = None,
    rate: float = 0.0,
    misfit: str | None = None,
) -> jax.Array:
    """Returns relative attention, (B, T, H, K), by a kernel or in plain form.

    Arguments as of `plain_attend_by_distance`; misfit: as of `has_relative_kernel`.
    """
    arrays: Any = (q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ, rate)
    if positions is None:
        misfit = "the encoding has no scores by distance"
    if has_relative_kernel(sizes, q_BTHK.shape[1], k_BJHK.shape[1], misfit):
        return relative_kernel.attend_by_distance(heads_of(sizes, len(q_BTHK)), *arrays)
    return relative_attention.attend_by_distance(*arrays)
