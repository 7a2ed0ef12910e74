"""The mathematics of a layer in plain JAX, as the papers write it.

`brt/models/fast` has other forms with the same arguments and results; tests compare the two.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.caches import WindowCache

HIDDEN = -1e6
"""Score of a key that a query does not see."""
EPSILON = 1e-6
PERIOD = 128
"""Tokens after which a dropout mask repeats."""


class LayerOps(NamedTuple):
    """One form of each operation of a layer (`fast/table.py`)."""

    window_tables: Callable[..., Any]
    window_attention: Callable[..., "WindowAttention"]
    states_dropout: Callable[..., Any]
    attention_to_states: Callable[..., jax.Array]


class CellOps(NamedTuple):
    """One form of each operation of a recurrent cell."""

    attention_by_head: Callable[..., jax.Array]
    scan_blocks: Callable[..., tuple[Any, Any, Any]]


# Norms and products.

_recomputed = functools.partial(jax.checkpoint, prevent_cse=False)
"""The backward pass keeps the inputs alone and recomputes the rest."""


def at_least_float32(x: jax.Array) -> jax.Array:
    """Converts to the type of sums of squares, softmax and losses: float32, or float64."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def projected(x_BTD: jax.Array, matrix_DA: jax.Array) -> jax.Array:
    """Returns x W, (B, T, A), at least float32; the product is in the type of x."""
    return at_least_float32(x_BTD @ matrix_DA.astype(x_BTD.dtype))


@_recomputed
def rms_normed(x_BTD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Returns x / rms(x) * scale, (..., D) in the type of x.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    x = at_least_float32(x_BTD)
    rms_BT1 = jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x / rms_BT1 * scale_D).astype(x_BTD.dtype)


@_recomputed
def unit_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns x / its length, (..., K) in the type of x. Source: Block-Recurrent, section 3.2."""
    x = at_least_float32(x_BTHK)
    length_BTH1 = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x / length_BTH1).astype(x_BTHK.dtype)


@_recomputed
def scaled_heads(x_BHSK: jax.Array, scale_H: jax.Array | None) -> jax.Array:
    """Returns `unit_heads` times each head's absolute scale, or `scaled_down_heads` without one."""
    if scale_H is None:
        return scaled_down_heads(x_BHSK)
    x = at_least_float32(x_BHSK)
    length_BHS1 = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPSILON)
    return (x / length_BHS1 * jnp.abs(scale_H)[:, None, None]).astype(x_BHSK.dtype)


def scaled_down_heads(x_BTHK: jax.Array) -> jax.Array:
    """Returns x / sqrt(K), the queries of scaled dot-product attention (Vaswani et al. 2017)."""
    return x_BTHK * x_BTHK.shape[-1] ** -0.5


def scaled_queries(q_BTHK: jax.Array, scale_H: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Returns queries of unit length and each head's scale, or `scaled_down_heads` and ones."""
    if scale_H is None:
        return scaled_down_heads(q_BTHK), jnp.ones(q_BTHK.shape[-2])
    return unit_heads(q_BTHK), scale_H


@jax.tree_util.register_pytree_node_class
class Matrix:
    """A matrix of parameters that multiplies activations of `dtype`, in that type.

    The form of `scan_blocks` in `fast` casts each once, before the loop. leaves: its arrays.
    """

    leaves: ClassVar[tuple[str, ...]] = ("array",)

    def __init__(self, array: jax.Array, dtype: DTypeLike):
        self.array, self.dtype = array, jnp.dtype(dtype)

    def __call__(self, equation: str, *x: jax.Array) -> jax.Array:
        """Returns the einsum of activations, stacked if several, and the matrix."""
        return jnp.einsum(equation, stacked(x), self.array.astype(self.dtype))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return tuple(map(vars(self).get, self.leaves)), self.dtype

    @classmethod
    def tree_unflatten(cls, dtype: Any, children: tuple[Any, ...]) -> Self:
        matrix = object.__new__(cls)
        vars(matrix).update(zip(cls.leaves, children, strict=True), dtype=dtype)
        return matrix


def stacked(x: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(x) if len(x) > 1 else x[0]


# Attention.


def attention(
    q_QHK: jax.Array,
    k_JHK: jax.Array,
    v_JHK: jax.Array,
    scale_H: jax.Array,
    bias_HQJ: jax.Array | None = None,
    keep_HQJ: jax.Array | None = None,
) -> jax.Array:
    """Returns softmax(|scale| * q.k + bias) v, for any leading axes (batch, blocks).

    Args:
        scale_H: learned factor of each head, used through its absolute value.
        bias_HQJ: position bias and mask, (..., H, Q, J). All but the last two axes may be 1.
        keep_HQJ: multiplies the weights (dropout), (H, Q, J), without a gradient.

    Returns (..., Q, H, K) in the values' type; scores and softmax are at least float32.

    Source: Block-Recurrent, section 3.2.
    """
    kind = at_least_float32(q_QHK).dtype
    scores_HQJ = jnp.einsum("...QHK,...JHK->...HQJ", q_QHK, k_JHK, preferred_element_type=kind)
    scores_HQJ = scores_HQJ * jnp.abs(scale_H)[:, None, None]
    if bias_HQJ is not None:
        scores_HQJ = scores_HQJ + bias_HQJ
    weights_HQJ = jax.nn.softmax(scores_HQJ, axis=-1)
    if keep_HQJ is not None:
        weights_HQJ = weights_HQJ * keep_HQJ
    return jnp.einsum("...HQJ,...JHK->...QHK", weights_HQJ.astype(v_JHK.dtype), v_JHK)


def attention_by_head(
    q_BHQK: jax.Array,
    k_BHJK: jax.Array,
    v_BHJK: jax.Array,
    scale_H: jax.Array | None,
    attention: Callable[..., jax.Array] = attention,
) -> jax.Array:
    """Returns attention, (B, H, Q, K), of arrays whose heads come first.

    scale_H: of the scores; None: scaled dot-product attention. It multiplies the queries, which are
    fewer than the scores.
    """
    heads = map(heads_first, (scaled_heads(q_BHQK, scale_H), k_BHJK, v_BHJK))
    return heads_first(attention(*heads, jnp.ones(q_BHQK.shape[1])))


def heads_first(x_QHK: jax.Array) -> jax.Array:
    """Swaps (..., Q, H, K) and (..., H, Q, K)."""
    return jnp.swapaxes(x_QHK, -2, -3)


def joined_heads(x_BTHK: jax.Array) -> jax.Array:
    """Reshapes (..., H, K) to (..., A)."""
    return x_BTHK.reshape(*x_BTHK.shape[:-2], -1)


def window_table(bias_HW: jax.Array, queries: int | None = None) -> jax.Array:
    """Returns the bias of a block's queries and the keys that they see, (H, W, 2W).

    Query i of a block and key j of [previous block, block] are W + i - j tokens apart. A token sees
    distances 1 ... W, with the biases (H, W), and never itself: elsewhere the result is `HIDDEN`.
    queries: only the first N of a block, and as many keys of it, (H, N, W + N).
    """
    H, W = bias_HW.shape
    N = queries or W
    # Toeplitz skew: rows one entry too long, cut at the right length, so that each begins one key
    # later. The gradient is then a sum, and not a scatter.
    row_HX = jnp.concatenate(
        [bias_HW[:, ::-1], jnp.full((H, N + 1), HIDDEN, bias_HW.dtype)], axis=1
    )
    rows_HX = jnp.tile(row_HX, (1, N))[:, : N * (W + N)]
    return rows_HX.reshape(H, N, W + N)


class WindowTables(NamedTuple):
    """Bias and dropout of windowed attention, computed once for a segment.

    bias_HWJ: of `window_table`. keep_HWJ: dropout factors of the weights, or None. Other forms may
    have other tables.
    """

    bias_HWJ: jax.Array
    keep_HWJ: Any


def window_tables(
    bias_HW: jax.Array,
    key: jax.Array | None,
    rate: float,
    table: Callable[[jax.Array], jax.Array] = window_table,
) -> WindowTables:
    """Returns the tables from the bias of each distance, (H, W), and a dropout key.

    table: a form of `window_table`.
    """
    table_HWJ = table(bias_HW)
    return WindowTables(table_HWJ, keep_mask(key, rate, table_HWJ.shape, table_HWJ.dtype))


class WindowAttention(NamedTuple):
    """The result of attention to a window, (B, T, H, K).

    queries_BTHK, keys_BTHK: of unit length, or queries divided by sqrt(K).
    window: keys and values of the last block.
    """

    attended_BTHK: jax.Array
    queries_BTHK: jax.Array
    keys_BTHK: jax.Array
    window: WindowCache


def window_attention(
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    window: WindowCache,
    scale_H: jax.Array | None,
    tables: WindowTables,
    attention: Callable[..., jax.Array] = attention,
) -> WindowAttention:
    """Returns attention of each token of a segment to the W tokens before it.

    Args:
        q_BTHK, k_BTHK, v_BTHK: projections; T is a multiple of W.
        window: keys and values of the block before the segment.
        scale_H: learned scale of each head for queries and keys of unit length; None: the scaled
            dot product.

    Source: Block-Recurrent, section 3.2.
    """
    k_BTHK = k_BTHK if scale_H is None else unit_heads(k_BTHK)
    q_BTHK, scale_H = scaled_queries(q_BTHK, scale_H)
    W = window.keys_BWHK.shape[1]
    k_BGJHK = block_pairs(window.keys_BWHK, k_BTHK)
    v_BGJHK = block_pairs(window.values_BWHK, v_BTHK)
    blocks = in_blocks(q_BTHK, W), k_BGJHK, v_BGJHK
    y_BGWHK = attention(*blocks, scale_H, tables.bias_HWJ, tables.keep_HWJ)
    last = WindowCache(k_BTHK[:, -W:], v_BTHK[:, -W:])
    return WindowAttention(y_BGWHK.reshape(v_BTHK.shape), q_BTHK, k_BTHK, last)


def states_dropout(
    key: jax.Array | None, rate: float, sizes: tuple[int, int, int], dtype: DTypeLike
) -> jax.Array | None:
    """Returns the dropout factors of attention to states; sizes: (H, W, S)."""
    return keep_mask(key, rate, sizes, jnp.promote_types(dtype, jnp.float32))


def attention_to_states(
    q_BTHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array | None,
    keep_HWS: jax.Array | None = None,
    attention: Callable[..., jax.Array] = attention,
) -> jax.Array:
    """Returns attention of the tokens of G blocks to the states of their block, (B, T, H, K).

    q_BTHK: projections. scale_H: as for `window_attention`; the queries are normalised too.
    """
    q_BTHK, scale_H = scaled_queries(q_BTHK, scale_H)
    q_BGWHK = in_blocks(q_BTHK, q_BTHK.shape[1] // k_BGSHK.shape[1])
    return attention(q_BGWHK, k_BGSHK, v_BGSHK, scale_H, None, keep_HWS).reshape(q_BTHK.shape)


def in_blocks(x_BTHK: jax.Array, window: int) -> jax.Array:
    """Reshapes (B, T, ...) to (B, G, W, ...)."""
    return x_BTHK.reshape(len(x_BTHK), -1, window, *x_BTHK.shape[2:])


def block_pairs(previous_BWHK: jax.Array, x_BTHK: jax.Array) -> jax.Array:
    """Returns each block with the block before it, (B, G, 2W, H, K)."""
    W = previous_BWHK.shape[1]
    blocks = in_blocks(jnp.concatenate([previous_BWHK, x_BTHK], axis=1), W)
    return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2)


# Dropout, and the loop over blocks.


def keep_mask(
    key: jax.Array | None, rate: float, shape: tuple[int, ...], dtype: DTypeLike
) -> jax.Array | None:
    """Returns 0 where dropped, 1 / (1 - rate) where kept; None without a key or a rate."""
    if key is None or rate == 0.0:
        return None
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return kept.astype(dtype) / (1.0 - rate)


def repeated_mask(
    key: jax.Array | None, rate: float, tokens: int, width: int, dtype: DTypeLike
) -> jax.Array | None:
    """Returns a mask, (P, D), that repeats along the tokens, as in the released code."""
    return keep_mask(key, rate, (min(tokens, PERIOD), width), dtype)


def dropped(x_BTD: jax.Array, mask_PD: jax.Array | None) -> jax.Array:
    T = x_BTD.shape[1]
    return x_BTD if mask_PD is None else x_BTD * jnp.tile(mask_PD, (-(-T // len(mask_PD)), 1))[:T]


def scan_blocks(
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]],
    weights: Any,
    carry: Any,
    blocks: Any,
    remat: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any, Any]:
    """Folds `step(weights, carry, block)` over the blocks of a segment.

    Args:
        step: returns the next carry, the block's outputs, and its metrics.
        weights: a tree of arrays and of `Matrix`.
        remat: recompute each step in the backward pass.
        unroll: steps of an iteration, as in `jax.lax.scan`, without remat; if one iteration has all
            steps, nothing is stacked for the backward pass.

    Returns:
        The last carry, the outputs, (B, G, ...), and the means of the metrics.
    """

    def run(carry, block):
        carry, outputs, metrics = step(weights, carry, block)
        return carry, (outputs, metrics)

    blocks = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), blocks)
    run = jax.checkpoint(run) if remat else run
    # A recomputed step stacks nothing; unrolled ones would keep their values at the same time.
    carry, (outputs, metrics) = jax.lax.scan(run, carry, blocks, unroll=1 if remat else unroll)
    outputs = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), outputs)
    return carry, outputs, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)
