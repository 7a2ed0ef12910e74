"""Parts that the attention kernels share: heads side by side in the lanes, unit lengths, softmax.

Axes as in `brt.models`, and Q tokens of a tile of queries    X keys that a tile sees
C tokens of a chunk    L lanes of a grid step    N heads that share them    P = H / N
"""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from brt.models.ops import EPSILON
from brt.models.sizes import TILE, tile_size

LANES = 128
"""Of a vector register."""
LEAST, WIDEST = 16, 256
"""Sizes of heads whose kernels were compiled for TPUs."""
F32 = jnp.float32
COMPILER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))
"""Heads, or parts of columns, are independent, and each core of a chip loads them separately; the
rest is in order, because gradients are summed."""


@dataclasses.dataclass(frozen=True)
class TileDropout:
    """Dropout of attention weights in a kernel, which draws the factors of a tile of queries.

    seeds_HN2: (H, N, 2) uint32, for each head and each of the N tiles of a window.
    """

    seeds_HN2: jax.Array
    rate: float


jax.tree_util.register_dataclass(TileDropout, ["seeds_HN2"], ["rate"])


def tile_dropout(
    key: jax.Array | None, rate: float, num_heads: int, tiles: int
) -> TileDropout | None:
    if key is None or not rate:
        return None
    return TileDropout(jax.random.bits(key, (num_heads, tiles, 2)), rate)


MeshAxes = str | tuple[str, ...] | None


class Heads(NamedTuple):
    """Static properties of the heads of an attention kernel.

    qk_norm: whether queries and keys have unit length; otherwise queries are divided by sqrt(K).
    interpret: runs the kernel as plain JAX, on any device; "races": reports data races too.
    mesh_axes: mesh axes that divide the batch, the heads (num_heads: those of one device) and the
    blocks.
    """

    num_heads: int
    head_size: int
    qk_norm: bool = True
    interpret: bool | str = False
    mesh_axes: tuple[MeshAxes, MeshAxes, MeshAxes] = (None, None, None)

    @property
    def lanes(self) -> int:
        """L, the lanes of a grid step."""
        return max(self.head_size, min(LANES, self.num_heads * self.head_size))

    @property
    def per_step(self) -> int:
        """N, the heads that share the lanes of a grid step."""
        return self.lanes // self.head_size

    @property
    def factor(self) -> float:
        return 1.0 if self.qk_norm else self.head_size**-0.5

    def fitting(self, most: int) -> int:
        """Returns how many queries or keys fit into VMEM, if `most` do with heads of 64 or 128."""
        return most * LANES // max(LANES, self.lanes) // (1 if self.per_step <= 2 else 2)

    def misfit(self) -> str | None:
        if not (self.interpret or LEAST <= self.head_size <= WIDEST):
            return f"head_size = {self.head_size} is not between {LEAST} and {WIDEST}"
        if self.num_heads * self.head_size < LANES:  # interpreted, it is computed all the same
            few = f"{self.num_heads} heads of {self.head_size} are less than {LANES} lanes"
            return None if self.interpret else few
        if self.head_size % LANES and LANES % self.head_size:
            return f"head_size = {self.head_size} neither divides {LANES} nor is a multiple of it"
        if self.num_heads % self.per_step:
            return (
                f"num_heads = {self.num_heads} is not a multiple of {self.per_step}, the "
                f"heads of size {self.head_size} that share {LANES} lanes"
            )
        return None


def block_misfit(size: int, most: int, what: str) -> str | None:
    if size > most:
        return f"{size} {what} are more than {most}"
    if size > TILE and size % TILE:
        return f"{size} {what} are more than {TILE} and not a multiple of it"
    return None


def for_each_tile(size: int, tile: Callable[[int | jax.Array, Any], None]) -> None:
    """Calls `tile` in a kernel with the number and the rows of each tile of `size` rows."""
    Q = tile_size(size)

    def call(number, _):
        tile(number, pl.ds(pl.multiple_of(number * Q, Q), Q))

    jax.lax.fori_loop(0, size // Q, call, None, unroll=True)


def upcast(dtype: DTypeLike) -> Any:
    """Returns the type of scores and sums: float32, or float64 of float64 (interpreted)."""
    return jnp.promote_types(dtype, F32)


def with_zeros(x_BT: jax.Array, tokens: int) -> jax.Array:
    """Appends zeros to (B, T, ...)."""
    return jnp.pad(x_BT, [(0, 0), (0, tokens), *[(0, 0)] * (x_BT.ndim - 2)]) if tokens else x_BT


def lane_scale(heads: Heads, scale_H: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Returns each head's absolute scale at its lanes, (P, 1, L), of `upcast(dtype)`."""
    scale_HK = jnp.repeat(jnp.abs(scale_H.astype(upcast(dtype)))[:, None], heads.head_size, axis=1)
    return scale_HK.reshape(-1, 1, heads.lanes) * heads.factor


def on_each_device(
    heads: Heads, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]
) -> Callable[..., Any]:
    """Runs `function`, of whole arrays, on each device's part, as the compiler cannot divide a
    kernel.

    inputs, outputs: axes, such as "BTA".
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    batch, head, block = heads.mesh_axes
    axes = {"B": batch, "H": head, "A": head, "G": block}
    parts = (tuple(PartitionSpec(*map(axes.get, x)) for x in each) for each in (inputs, outputs))
    in_specs, out_specs = parts
    # JAX keeps nothing of a recomputed function for a backward pass. Otherwise values hoisted out
    # of a loop would stay divided over all axes, also over that of `by_data_shard`.
    function = jax.checkpoint(function, prevent_cse=False)
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def summed_over_batch(heads: Heads, *gradients: jax.Array | None) -> tuple[Any, ...]:
    """Sums gradients of arrays without a batch axis over the devices."""
    axis = heads.mesh_axes[0]
    return jax.lax.psum(gradients, axis) if axis else gradients


def interpreted(heads: Heads) -> pltpu.InterpretParams | bool:
    if heads.interpret == "races":
        # With one core no two parts of a grid can race.
        return pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2)
    return bool(heads.interpret)


def head_masks(heads: Heads) -> list[jax.Array | None]:
    """Returns a mask of each head's lanes, (1, L); None if a head has all lanes."""
    if heads.per_step == 1:
        return [None]
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, heads.lanes), 1)
    K = heads.head_size
    return [(lane >= n * K) & (lane < (n + 1) * K) for n in range(heads.per_step)]


def only(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Sets the lanes of other heads to zero."""
    return x if mask is None else x * mask.astype(x.dtype)


def sum_of_heads(heads: Heads, x: jax.Array) -> jax.Array:
    """Returns the sum over the lanes of each head, (C, 1), or (C, L) if heads share lanes."""
    sums = (
        only(jnp.sum(only(x, mask), axis=-1, keepdims=True), mask) for mask in head_masks(heads)
    )
    return functools.reduce(operator.add, sums)


def inverse_length(heads: Heads, x: jax.Array) -> jax.Array:
    """Returns 1 / length of each head of x (C, L); 1 if heads are not normalised."""
    if not heads.qk_norm:
        return jnp.ones((1, 1), x.dtype)
    return jax.lax.rsqrt(sum_of_heads(heads, x * x) + EPSILON)


def unit_gradient(
    heads: Heads, x: jax.Array, dunit: jax.Array, factor: jax.Array | None = None
) -> jax.Array:
    """Returns the gradient of x from that of x divided by its length; factor: `inverse_length`."""
    if not heads.qk_norm:
        return dunit
    factor = inverse_length(heads, x) if factor is None else factor
    unit = x * factor
    return factor * (dunit - unit * sum_of_heads(heads, dunit * unit))


def dot(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """Returns an upcast product; `contract` has the axis of a and the axis of b."""
    exact = jax.lax.Precision.HIGHEST if a.dtype == F32 else None
    axes = ((contract[0],), (contract[1],)), ((), ())
    kind = upcast(a.dtype)
    return jax.lax.dot_general(a, b, axes, precision=exact, preferred_element_type=kind)


def softmax(
    queries: jax.Array, keys: jax.Array, bias: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns exponentials of the scores, (Q, X), and the inverse of their sums, (Q, 1)."""
    scores = dot(queries, keys, (1, 1))
    if bias is not None:
        scores = scores + bias
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials, 1.0 / jnp.sum(exponentials, axis=-1, keepdims=True)


class Dropout:
    """Dropout of attention weights in a TPU kernel; without `keep` nothing is dropped."""

    def __init__(self, heads: Heads, keep: TileDropout | None):
        self.heads, self.rate = heads, 0.0
        self.inputs: list[jax.Array] = []
        self.specs: list[pl.BlockSpec] = []
        if keep is not None:
            self.rate, self.tiles = keep.rate, keep.seeds_HN2.shape[1]
            self.inputs = [jax.lax.bitcast_convert_type(keep.seeds_HN2, jnp.int32).reshape(-1)]
            self.specs = [pl.BlockSpec(memory_space=pltpu.SMEM)]

    @property
    def factor(self) -> float:
        """Of the weights that are kept."""
        return 1 / (1 - self.rate)

    def of_tile(
        self, inputs: Sequence[Any], head: int | jax.Array, tile: int | jax.Array
    ) -> Callable[[int, int], Callable[[jax.Array], jax.Array]]:
        """Returns a function that draws which weights of the next (rows, columns) are kept.

        Its result sets the others to zero. inputs: `self.inputs` in the kernel. head: of this
        device. tile: of queries, one of the N of a window.
        """
        if not inputs:
            return lambda rows, columns: lambda weights: weights
        bits = random_tiles(self.heads, inputs[0], head * self.tiles + tile)
        most = min(round((1 - self.rate) * 2**32), 2**32 - 1) - 2**31

        def draw(rows, columns):
            parts = [bits()[:rows, :columns] < most for _ in range(0, columns, TILE)]
            kept = jnp.concatenate(parts, axis=1)
            return lambda weights: jnp.where(kept, weights, 0.0)

        return draw


def random_tiles(
    heads: Heads, seeds: jax.Array, number: int | jax.Array
) -> Callable[[], jax.Array]:
    """Returns a function that draws the int32 bits of the next (TILE, TILE) of a tile of queries.

    They are those of the TPU's generator with two of the seeds, unless interpreted.
    """
    first, second = seeds[2 * number], seeds[2 * number + 1]
    if not heads.interpret:
        pltpu.prng_seed(first, second)
        return lambda: pltpu.prng_random_bits((TILE, TILE))
    key_data = jax.lax.bitcast_convert_type(jnp.stack([first, second]), jnp.uint32)
    key = jax.random.wrap_key_data(key_data, impl="threefry2x32")
    numbers = itertools.count()

    def draw():
        bits = jax.random.bits(jax.random.fold_in(key, next(numbers)), (TILE, TILE))
        return jax.lax.bitcast_convert_type(bits, jnp.int32)

    return draw
