"""The form of a memory's delta rule: kernels on TPUs, and on GPUs by the binding.

`table.layer_ops` chooses the other operations of a layer by the same binding.
"""

from collections.abc import Callable, Sequence

import jax
from jax.typing import DTypeLike

from brt.models.fast import table
from brt.models.sizes import Sizes

Rule = Callable[[jax.Array, Sequence[jax.Array]], tuple[jax.Array, jax.Array]]


def delta_rule(
    sizes: Sizes,
    dtype: DTypeLike,
    plain: Rule,
    matrix_BHKK: jax.Array,
    inputs: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Returns the results of `plain`, `gated_delta.delta_rule`, or of its kernels.

    dtype: of activations, and of the operands of a kernel's products.
    """
    if not ((table.on_tpu() or table.on_gpu()) and table.wants_kernels(sizes)):
        return plain(matrix_BHKK, inputs)
    B, T = inputs[-1].shape[:2]
    kernels, heads = table.kernels_for(sizes, B)
    decays = "heads" if inputs[3].ndim == 3 else "channels"
    misfit = kernels.delta.misfit(heads, T, dtype)
    what = f"Delta rule with decays of {decays}, {T} tokens"
    if table.has_kernel(sizes, what, misfit, required=False):
        return kernels.delta.delta_rule(heads, dtype, matrix_BHKK, inputs)
    return plain(matrix_BHKK, inputs)
