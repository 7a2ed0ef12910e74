"""Chooses the form of relative attention: a Pallas TPU kernel, or not."""

import functools
from collections.abc import Callable

import jax

from brt.models.fast import relative_attention
from brt.models.fast.table import has_kernel, wants_kernels
from brt.models.sizes import Sizes

BINDING = "TransformerXL.attention_form"


def form_by_distance(
    sizes: Sizes, rows: int, queries: int, keys: int, misfit: str | None
) -> Callable[..., jax.Array]:
    """Returns a form of `plain_attend_by_distance` for a batch of `rows`.

    misfit: why it cannot be the kernel, or None.
    """
    if wants_kernels(sizes):
        from brt.models.fast.kernel_forms import heads_of
        from brt.models.fast.kernels import relative as relative_kernel

        heads = heads_of(sizes.num_heads, sizes.head_size, rows, qk_norm=False)
        misfit = misfit or relative_kernel.misfit(heads, keys)
        what = f"Attention, {queries} queries and {keys} keys by distance"
        if has_kernel(sizes, what, misfit, BINDING):
            return functools.partial(relative_kernel.attend_by_distance, heads)
    return relative_attention.attend_by_distance
