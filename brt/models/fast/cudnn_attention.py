"""Attention by cuDNN, in place of `brt.models.ops.attention`.

tests/models/test_kernel_attention.py compares them, through XLA. On an H100, forward and backward
with 64 windows of 512 and 8 heads of 128: 2.7 instead of 7.7 ms (docs/benchmarks/training.md).

The window is in the bias: `local_window_size` of JAX's function lets a query see later keys.
"""

import re
from typing import Literal

import jax
import jax.numpy as jnp

from brt.models.axis_rules import device, on_gpu
from brt.models.fast.attention import attend
from brt.models.ops import at_least_float32

BINDING = "BlockRecurrentTransformer.attention_form"
IMPLEMENTATION: Literal["cudnn", "xla"] = "cudnn"


def misfit(dtype: jax.typing.DTypeLike, has_dropout: bool = False) -> str | None:
    """Returns why cuDNN cannot compute this attention, or None."""
    if dtype != jnp.bfloat16:
        return f'activation_dtype must be "bfloat16", not "{dtype}"'
    if has_dropout:
        return 'dropout must be 0 or attention_dropout = "keys"'
    if IMPLEMENTATION == "cudnn" and not on_gpu():
        return "it needs an NVIDIA GPU"
    return None


MEASURED = re.compile(r"\bG?H\d{2,3}\b")
"""Names of Hopper cards. An H100 was measured; the others have the same cores."""
MEASURED_WINDOW, LARGEST_HEAD = 512, 128
"""Where it was faster: an H100 took as long for windows of 128."""


def is_faster(head_size: int, window: int, dtype: jax.typing.DTypeLike) -> bool:
    """Returns whether it was measured to be faster than `attend` on a device like this one."""
    return (
        MEASURED.search(device().device_kind) is not None
        and dtype == jnp.bfloat16
        and window >= MEASURED_WINDOW
        and window % 2 == 0
        and head_size <= LARGEST_HEAD
        and head_size % 8 == 0
    )


def without_dropout(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
) -> jax.Array:
    """Returns `cudnn_attention`, or `attend` where weights are dropped."""
    form = cudnn_attention if keep_HQJ is None else attend
    return form(q_QHK, k_JHK, v_JHK, scale_H, bias_HQJ, keep_HQJ)


def cudnn_attention(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
) -> jax.Array:
    """Returns `brt.models.ops.attention`, of bfloat16; leading axes are a batch with one bias."""
    dtype = q_QHK.dtype
    if wrong := misfit(dtype, keep_HQJ is not None):
        raise ValueError(f'{BINDING} = "cudnn": {wrong}. Or use "plain".')
    q_QHK = (at_least_float32(q_QHK) * jnp.abs(scale_H)[:, None]).astype(dtype)
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q_QHK, k_JHK, v_JHK))
    bias = None if bias_HQJ is None else bias_HQJ.astype(dtype)[None]
    y = jax.nn.dot_product_attention(q, k, v, bias, scale=1.0, implementation=IMPLEMENTATION)
    return y.reshape(q_QHK.shape)
