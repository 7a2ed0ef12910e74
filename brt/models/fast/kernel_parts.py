"""What the attention kernels share: heads side by side in the lanes, unit lengths, softmax.

Axes as in `brt.models`, and Q tokens of a tile of queries    X keys that a tile sees
C tokens of a chunk    L lanes of a grid step    N heads that share them    P = H / N
"""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from brt.models.layers.norms import EPSILON

TILE = 128
"""Queries of a tile."""
LANES = 128
"""Of a vector register."""
F32 = jnp.float32
COMPILER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))
"""Heads are independent; the rest is in order, because gradients are added up."""


class Heads(NamedTuple):
    """Static properties of the heads of an attention kernel.

    head_size: K, a multiple of 128 or a divisor of it. qk_norm: whether queries and keys have unit
    length; otherwise queries are divided by the square root of K. interpret: runs the kernel as
    plain JAX, on any device.
    """

    num_heads: int
    head_size: int
    qk_norm: bool = True
    interpret: bool = False

    @property
    def lanes(self) -> int:
        """L, the lanes of a grid step."""
        return max(self.head_size, LANES)

    @property
    def per_step(self) -> int:
        """N, the heads that share the lanes of a grid step."""
        return self.lanes // self.head_size

    @property
    def factor(self) -> float:
        """The constant factor of the queries."""
        return 1.0 if self.qk_norm else self.head_size**-0.5

    def misfit(self) -> str | None:
        """Returns why no kernel can compute these heads, or None."""
        if self.head_size % LANES and LANES % self.head_size:
            return f"head_size = {self.head_size} neither divides {LANES} nor is a multiple of it"
        if self.num_heads % self.per_step:
            return (
                f"num_heads = {self.num_heads} is not a multiple of {self.per_step}, the "
                f"heads of size {self.head_size} that share {LANES} lanes"
            )
        return None


def lane_scale(heads: Heads, scale_H: jax.Array) -> jax.Array:
    """Returns the absolute scale of each lane's head, (P, 1, L)."""
    scale_HK = jnp.repeat(jnp.abs(scale_H.astype(F32))[:, None], heads.head_size, axis=1)
    return scale_HK.reshape(-1, 1, heads.lanes) * heads.factor


def interpreted(heads: Heads) -> pltpu.InterpretParams | bool:
    """Returns the argument `interpret` of `pallas_call`; interpreted kernels report races."""
    return pltpu.InterpretParams(detect_races=True) if heads.interpret else False


def head_masks(heads: Heads) -> list[jax.Array | None]:
    """Returns a float mask of each head's lanes, (1, L); None where a head has all lanes."""
    if heads.per_step == 1:
        return [None]
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, heads.lanes), 1)
    K = heads.head_size
    return [((lane >= n * K) & (lane < (n + 1) * K)).astype(F32) for n in range(heads.per_step)]


def only(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns x with the lanes of other heads set to zero."""
    return x if mask is None else x * mask


def sum_of_heads(heads: Heads, x: jax.Array) -> jax.Array:
    """Returns the sum over the lanes of each head, (C, 1), or (C, L) where heads share lanes."""
    sums = (
        only(jnp.sum(only(x, mask), axis=-1, keepdims=True), mask) for mask in head_masks(heads)
    )
    return functools.reduce(operator.add, sums)


def inverse_length(heads: Heads, x: jax.Array) -> jax.Array:
    """Returns 1 / length of each head of x (C, L); 1 where heads are not normalised."""
    if not heads.qk_norm:
        return jnp.ones((1, 1), F32)
    return jax.lax.rsqrt(sum_of_heads(heads, x * x) + EPSILON)


def unit_gradient(heads: Heads, x: jax.Array, dunit: jax.Array) -> jax.Array:
    """Returns the gradient of x from that of x divided by its length."""
    if not heads.qk_norm:
        return dunit
    factor = inverse_length(heads, x)
    unit = x * factor
    return factor * (dunit - unit * sum_of_heads(heads, dunit * unit))


def dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Returns a product in float32; `contract` has the axis of a and the axis of b."""
    exact = jax.lax.Precision.HIGHEST if a.dtype == F32 else None
    axes = ((contract[0],), (contract[1],)), ((), ())
    return jax.lax.dot_general(a, b, axes, precision=exact, preferred_element_type=F32)


def softmax(
    queries: jax.Array, keys: jax.Array, bias: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns exponentials of the scores, (Q, X), and the inverse of their sums, (Q, 1)."""
    scores = dot(queries, keys, (1, 1))
    if bias is not None:
        scores = scores + bias
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials, 1.0 / jnp.sum(exponentials, axis=-1, keepdims=True)
