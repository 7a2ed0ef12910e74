"""Attention that keeps no weights for the backward pass.

Plain counterpart: `brt.models.ops.attention` (tests/models/test_attention.py). A step of
`configs/benchmark/slide_7l.gin` on a CPU needs 0.77 of the temporary memory, and as much time.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.models import ops
from brt.models.fast.products import on_one_cpu
from brt.models.ops import at_least_float32, heads_first


def attend(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
) -> jax.Array:
    """Returns `brt.models.ops.attention`."""
    heads = map(heads_first, (q_QHK, k_JHK, v_JHK))
    return heads_first(attend_by_head(*heads, scale_H, bias_HQJ, keep_HQJ))


def window_table(bias_HW: jax.Array) -> jax.Array:
    """Returns `brt.models.ops.window_table`; on one CPU from a loop over heads, which is stored.

    XLA would compute each entry again wherever attention adds it, with divisions of integers: the
    softmax of a window of 32 takes four times as long. It drops an `optimization_barrier` too early
    to prevent this.
    """
    if not on_one_cpu():
        return ops.window_table(bias_HW)
    H = len(bias_HW)
    rows_HW = bias_HW if H > 1 else jnp.repeat(bias_HW, 2, axis=0)  # XLA inlines loops of one turn
    return jax.lax.map(lambda bias_W: ops.window_table(bias_W[None])[0], rows_HW)[:H]


@jax.custom_vjp
def attend_by_head(
    q_HQK: jax.Array,
    k_HJK: jax.Array,
    v_HJK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None,
    keep_HQJ: jax.Array | None,
) -> jax.Array:
    """Returns `attend` of arrays whose heads come first; (..., H, Q, K).

    The backward pass recomputes the weights from queries, keys and the softmax's log-sum-exp (Dao
    et al. 2022, arXiv:2205.14135, appendix B.4).
    """
    return _forward(q_HQK, k_HJK, v_HJK, scale_H, bias_HQJ, keep_HQJ)[0]


class Softmax(NamedTuple):
    """Attention's result, (..., H, Q, K), and the log-sum-exp of its scores, (..., H, Q)."""

    output_HQK: jax.Array
    log_sum_HQ: jax.Array


def weighted_values(
    scores_HQJ: jax.Array, v_HJK: jax.Array, keep_HQJ: jax.Array | None = None
) -> Softmax:
    """Returns the values weighted by a softmax over scores, at least float32, (..., H, Q, J)."""
    highest_HQ = jnp.max(scores_HQJ, axis=-1)
    parts_HQJ = jnp.exp(scores_HQJ - highest_HQ[..., None])
    sum_HQ = jnp.sum(parts_HQJ, axis=-1)
    if keep_HQJ is not None:
        parts_HQJ = parts_HQJ * keep_HQJ
    # Divided after the product: K numbers for each query instead of J.
    output_HQK = product("HQJ,HJK->HQK", parts_HQJ.astype(v_HJK.dtype), v_HJK)
    output_HQK = (output_HQK / sum_HQ[..., None]).astype(v_HJK.dtype)
    return Softmax(output_HQK, highest_HQ + jnp.log(sum_HQ))


def softmax_gradients(
    softmax: Softmax,
    scores_HQJ: jax.Array,
    v_HJK: jax.Array,
    keep_HQJ: jax.Array | None,
    gradient_HQK: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of the scores, in their type, and of the values, at least float32.

    gradient_HQK: of the output of `weighted_values`, whose arguments these are.
    """
    weights_HQJ = jnp.exp(scores_HQJ - softmax.log_sum_HQ[..., None])
    kept_HQJ = weights_HQJ if keep_HQJ is None else weights_HQJ * keep_HQJ
    dv_HJK = product("HQJ,HQK->HJK", kept_HQJ.astype(v_HJK.dtype), gradient_HQK)
    # The sum over keys of each weight times its gradient.
    mean_HQ = jnp.sum(
        at_least_float32(gradient_HQK) * at_least_float32(softmax.output_HQK), axis=-1
    )
    d_HQJ = product("HQK,HJK->HQJ", gradient_HQK, v_HJK)
    if keep_HQJ is not None:
        d_HQJ = d_HQJ * keep_HQJ
    return weights_HQJ * (d_HQJ - mean_HQ[..., None]), dv_HJK


def product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    of_a, of_b = equation.partition("->")[0].split(",")
    leading = a.shape[: a.ndim - len(of_a)], b.shape[: b.ndim - len(of_b)]
    equation = "..." + equation.replace(",", ",...").replace("->", "->...")
    multiplied = functools.partial(
        jnp.einsum, equation, preferred_element_type=at_least_float32(a).dtype
    )
    if leading[0] == leading[1] or a.dtype == at_least_float32(a).dtype:
        return multiplied(a, b)
    # XLA has no bfloat16 product with a repeated factor for some CPUs. In float32 the result is the
    # same: products of two bfloat16 are exact.
    return jax.lax.platform_dependent(
        a,
        b,
        cpu=lambda a, b: multiplied(at_least_float32(a), at_least_float32(b)),
        default=multiplied,
    )


def _scores(q_HQK, k_HJK, scale_H, bias_HQJ):
    scaled_HQK = at_least_float32(q_HQK) * jnp.abs(scale_H)[:, None, None]
    scaled_HQK = scaled_HQK.astype(q_HQK.dtype)
    scores_HQJ = product("HQK,HJK->HQJ", scaled_HQK, k_HJK)
    return scaled_HQK, scores_HQJ if bias_HQJ is None else scores_HQJ + bias_HQJ


def _forward(q_HQK, k_HJK, v_HJK, scale_H, bias_HQJ, keep_HQJ):
    _, scores_HQJ = _scores(q_HQK, k_HJK, scale_H, bias_HQJ)
    softmax = weighted_values(scores_HQJ, v_HJK, keep_HQJ)
    return softmax.output_HQK, (q_HQK, k_HJK, v_HJK, scale_H, bias_HQJ, keep_HQJ, softmax)


def _backward(kept, gradient_HQK):
    # The barrier stops the compiler from reusing the forward pass's scores, which would keep them
    # in memory until now.
    q_HQK, k_HJK, v_HJK, scale_H, bias_HQJ, keep_HQJ, softmax, gradient_HQK = (
        jax.lax.optimization_barrier((*kept, gradient_HQK))
    )
    scaled_HQK, scores_HQJ = _scores(q_HQK, k_HJK, scale_H, bias_HQJ)
    ds_HQJ, dv_HJK = softmax_gradients(softmax, scores_HQJ, v_HJK, keep_HQJ, gradient_HQK)
    # The activations' type before all sums halves the memory that is written.
    ds_HQJ = ds_HQJ.astype(k_HJK.dtype)
    dbias_HQJ = None if bias_HQJ is None else summed_to(ds_HQJ, bias_HQJ)
    dscaled_HQK = product("HQJ,HJK->HQK", ds_HQJ, k_HJK)
    dk_HJK = product("HQJ,HQK->HJK", ds_HQJ, scaled_HQK)
    dscale_HQ = jnp.sum(dscaled_HQK * at_least_float32(q_HQK), axis=-1)
    dscale_H = jnp.sum(dscale_HQ, axis=-1).reshape(-1, len(scale_H)).sum(axis=0)
    dscale_H = (dscale_H * jnp.sign(scale_H)).astype(scale_H.dtype)
    dscaled_HQK = dscaled_HQK * jnp.abs(scale_H)[:, None, None]
    return (
        summed_to(dscaled_HQK, q_HQK),
        summed_to(dk_HJK, k_HJK),
        summed_to(dv_HJK, v_HJK),
        dscale_H,
        dbias_HQJ,
        None,
    )


def summed_to(x: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the sum over the axes that `like` repeats, in its shape and type."""
    x = at_least_float32(x)
    if x.ndim > like.ndim and jax.sharding.get_abstract_mesh().size <= 1:
        # On a CPU sums of long rows are ten times as fast as XLA's sum over leading axes.
        x = x.reshape(-1, *x.shape[x.ndim - like.ndim :])
        while half := len(x) // 2:
            rest, x = x[2 * half :], x[:half] + x[half : 2 * half]
            x = jnp.concatenate([x, rest]) if len(rest) else x
    added = x.ndim - like.ndim
    repeated = added + np.flatnonzero(np.not_equal(x.shape[added:], like.shape))
    x = jnp.sum(x, axis=(*range(added), *repeated.tolist()))
    return x.reshape(like.shape).astype(like.dtype)


attend_by_head.defvjp(_forward, _backward)
