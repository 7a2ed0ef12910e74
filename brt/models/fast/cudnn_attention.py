"""Attention by cuDNN instead of `brt.models.ops.attention`.

tests/models/fast/test_kernel_attention.py compares them, through XLA. On an H100, forward and
backward with 64 windows of 512 and 8 heads of 128: 2.7 instead of 7.7 ms
(docs/benchmarks/training.md).

The window is in the bias: `local_window_size` of JAX's function lets a query see later keys.
"""

import contextvars
import functools
import re
from typing import Literal

import jax
import jax.numpy as jnp

from brt.models.axis_rules import device, on_gpu, true_while
from brt.models.fast.attention import attend
from brt.models.ops import at_least_float32

_AT_ONCE = contextvars.ContextVar("layers at once", default=False)

layers_at_once = functools.partial(true_while, _AT_ONCE)
"""A context in which layers are traced that `jax.vmap` batches, without gradients."""
are_layers_at_once = _AT_ONCE.get

BINDING = "BlockRecurrentTransformer.attention_form"
IMPLEMENTATION: Literal["cudnn", "xla"] = "cudnn"


def size_misfit(head_size: int, window: int, states: int) -> str | None:
    """Returns why JAX refuses these sizes, if it does; states: of a bias, or 0."""
    if head_size % 8 or head_size > 256:
        return f"head_size = {head_size} must be a multiple of 8, and at most 256"
    odd = window % 2 or states % 2
    return f"biases of a window of {window} and of {states} states must be even" if odd else None


def misfit(dtype: jax.typing.DTypeLike, has_dropout: bool = False) -> str | None:
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
"""Bounds of the measured gain: for windows of 128 an H100 took as long as without cuDNN."""


def is_faster(head_size: int, window: int, states: int, dtype: jax.typing.DTypeLike) -> bool:
    """Returns whether it was measured to be faster than `attend` on this kind of device."""
    return (
        MEASURED.search(device().device_kind) is not None
        and dtype == jnp.bfloat16
        and window >= MEASURED_WINDOW
        and head_size <= LARGEST_HEAD
        and not size_misfit(head_size, window, states)
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
    form = _batched if are_layers_at_once() and bias is not None else _single
    return form(q, k, v, bias).reshape(q_QHK.shape)


def _single(q_BQHK, k_BJHK, v_BJHK, bias_1HQJ):
    return jax.nn.dot_product_attention(
        q_BQHK, k_BJHK, v_BJHK, bias_1HQJ, scale=1.0, implementation=IMPLEMENTATION
    )


_batched = jax.custom_batching.custom_vmap(_single)


@_batched.def_vmap
def _of_layers(size, in_batched, *arrays):
    """Folds the layers into the heads: JAX's rule wants a bias for each element."""
    q_LBQHK, k_LBJHK, v_LBJHK, bias_L1HQJ = (
        x if batched else jnp.broadcast_to(x, (size, *x.shape))
        for x, batched in zip(arrays, in_batched, strict=True)
    )

    def joined(x_LBQHK):
        return jnp.moveaxis(x_LBQHK, 0, 2).reshape(*x_LBQHK.shape[1:3], -1, x_LBQHK.shape[-1])

    bias_1YQJ = bias_L1HQJ.reshape(1, -1, *bias_L1HQJ.shape[3:])
    y_BQYK = _single(joined(q_LBQHK), joined(k_LBJHK), joined(v_LBJHK), bias_1YQJ)
    y_BQLHK = y_BQYK.reshape(*y_BQYK.shape[:2], size, -1, y_BQYK.shape[-1])
    return jnp.moveaxis(y_BQLHK, 2, 0), True
