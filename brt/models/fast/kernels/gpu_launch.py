"""Tile sizes, memory layout and launches of Pallas Triton kernels for attention on NVIDIA GPUs.

Everything that depends on Pallas's Triton compiler is here. Axes as in `gpu_tiles`.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.experimental.xla_metadata import set_xla_metadata
from jax.typing import DTypeLike

from brt.models.axis_rules import device
from brt.models.fast.kernels.parts import Heads

SIZES = 32, 64, 128, 256
"""Of heads: powers of two, like all sizes in a Triton kernel."""
STEP, LONGEST, FEWEST = 128, 2048, 16
"""Windows are multiples of STEP; queries and keys of any layout, and interpreted windows, of
FEWEST, the rows of a matrix unit. LONGEST limits windows, 2 LONGEST the keys of a block."""
LARGE = re.compile(r"\bG?(H\d\d|B\d{3})")
"""Names of Hopper and Blackwell cards for data centers, with 227 KiB of shared memory a block."""
OLD = re.compile(r"\b([TPKM]\d+|V100\w*|GTX|TITAN|RTX 20\d\d|Quadro)\b")
"""Names of cards with a compute capability below 8.0, which Pallas refuses."""


class Launch(NamedTuple):
    """Queries and keys of a tile, and how Triton compiles a kernel.

    warps: of 32 threads. stages: tiles that are loaded at the same time.
    """

    queries: int
    keys: int
    warps: int
    stages: int

    @property
    def compiler(self) -> plgpu.CompilerParams:
        return plgpu.CompilerParams(num_warps=self.warps, num_stages=self.stages)


class Launches(NamedTuple):
    """Of the three kernels: the forward pass, the gradients of keys, and those of queries."""

    forward: Launch
    of_keys: Launch
    of_queries: Launch


_SMALL = Launches(Launch(128, 32, 8, 2), Launch(64, 64, 8, 2), Launch(128, 64, 8, 2))
_LARGE = Launches(Launch(128, 64, 8, 2), Launch(32, 128, 8, 2), Launch(128, 64, 8, 2))
_NARROW = Launches(Launch(128, 64, 8, 2), Launch(32, 64, 4, 2), Launch(128, 64, 4, 2))
_WIDE = Launches(Launch(64, 32, 8, 2), Launch(32, 32, 8, 2), Launch(64, 32, 8, 2))
_FLOAT32 = Launches(*[Launch(32, 32, 8, 1)] * 3)
_WIDE_FLOAT32 = Launches(*[Launch(16, 16, 4, 1)] * 3)


def launches(
    queries: int, keys: int, head_size: int, dtype: DTypeLike, large: bool | None = None
) -> Launches:
    """Returns sizes that fit into the shared memory of a block and into a thread's 255 registers.

    queries, keys: of a block, which tiles divide. large: for a card of `LARGE`; others have 99 KiB
    of shared memory or more; None: for the card of this process.
    """
    if large is None:
        large = LARGE.search(device().device_kind) is not None
    if dtype != jnp.bfloat16:
        found = _FLOAT32 if head_size <= 128 else _WIDE_FLOAT32
    elif head_size == 128:
        found = _LARGE if large else _SMALL
    else:
        found = _NARROW if head_size < 128 else _WIDE
    Q, X = math.gcd(queries, STEP), math.gcd(keys, STEP)
    return Launches(*(x._replace(queries=min(x.queries, Q), keys=min(x.keys, X)) for x in found))


def window_misfit(heads: Heads, window: int, dtype: DTypeLike) -> str | None:
    if dtype not in (jnp.bfloat16, jnp.float32):
        return f"activations are {jnp.dtype(dtype)}, not bfloat16 or float32"
    if window % FEWEST:
        return f"window = {window} is not a multiple of {FEWEST}"
    if not heads.interpret and (window % STEP or window > LONGEST):
        return f"window = {window} is not a multiple of {STEP} up to {LONGEST}"
    return misfit(heads)


def block_misfit(heads: Heads, queries: int, keys: int) -> str | None:
    for number, what in (queries, "queries"), (keys, "keys"):
        if number % FEWEST or number > 2 * LONGEST:
            return f"{number} {what} are no multiple of {FEWEST} up to {2 * LONGEST}"
    return misfit(heads)


def misfit(heads: Heads) -> str | None:
    if heads.interpret:
        return None
    kind = device().device_kind
    if OLD.search(kind):
        return f"the compute capability of {kind} is below 8.0"
    if heads.head_size not in SIZES:
        return f"head_size = {heads.head_size} is none of {', '.join(map(str, SIZES))}"
    return None


class Block(NamedTuple):
    """An input of a kernel, or the shape and type of an output, and the part of a grid step."""

    array: jax.Array | jax.ShapeDtypeStruct
    spec: pl.BlockSpec


class Layout(NamedTuple):
    """Blocks of arrays; grid axes are the tile and, in one, batch element and head.

    `jax.vmap` adds an axis, and a grid of a GPU has three.
    """

    num_heads: int

    def spec(self, size: tuple[int | None, ...], index: Callable[..., tuple[Any, ...]]) -> Any:
        """index: of tile, batch element and head."""
        H = self.num_heads
        return pl.BlockSpec(size, lambda g, n: index(g, jax.lax.div(n, H), jax.lax.rem(n, H)))

    def every(self, x_BTHK: Any) -> Block:
        spec = None, x_BTHK.shape[1], None, x_BTHK.shape[3]
        return Block(x_BTHK, self.spec(spec, lambda g, b, h: (b, 0, h, 0)))

    def tile(self, x_BTH: Any, size: int) -> Block:
        """Returns a tile of (B, T, H, ...)."""
        spec, zeros = (None, size, None, *x_BTH.shape[3:]), [0] * (x_BTH.ndim - 3)
        return Block(x_BTH, self.spec(spec, lambda g, b, h: (b, g, h, *zeros)))

    def values(self, x_BTHV: Any, part: int) -> Block:
        """Returns `part` channels of the values of all tokens; the grid's first axis: parts."""
        spec = None, x_BTHV.shape[1], None, part
        return Block(x_BTHV, self.spec(spec, lambda p, b, h: (b, 0, h, p)))

    def matrices(self, x_BHV: Any, part: int) -> Block:
        """Returns the same part of the last axis of (B, H, ..., V)."""
        spec, zeros = (None, None, *x_BHV.shape[2:-1], part), [0] * (x_BHV.ndim - 3)
        return Block(x_BHV, self.spec(spec, lambda p, b, h: (b, h, *zeros, p)))

    def each(self, x_BHG: Any) -> Block:
        """Returns the blocks of (B, H, G, ...), one for each tile."""
        size = x_BHG.shape[3:]
        spec = self.spec((None, None, None, *size), lambda g, b, h: (b, h, g, *[0] * len(size)))
        return Block(x_BHG, spec)

    def of_queries(self, x_BHT: Any, size: int) -> Block:
        return Block(x_BHT, self.spec((None, None, size), lambda g, b, h: (b, h, g)))

    def of_batch(self, x_BH: Any) -> Block:
        """Returns all of (B, H, ...), the same for every tile."""
        size = x_BH.shape[2:]
        spec = self.spec((None, None, *size), lambda g, b, h: (b, h, *[0] * len(size)))
        return Block(x_BH, spec)

    def of_head(self, x_H: jax.Array | None) -> Block | None:
        if x_H is None:
            return None
        size = x_H.shape[1:]
        return Block(x_H, self.spec((None, *size), lambda g, b, h: (h, *[0] * len(size))))


def call(
    body: Callable[..., None],
    launch: Launch,
    heads: Heads,
    grid: tuple[int, int],
    inputs: Any,
    outputs: Sequence[Block],
    name: str,
    flops: int,
    untouched: int = 0,
    **options: Any,
) -> Any:
    """Runs a kernel.

    inputs: a tree of `Block`. flops: operations of its matrix products. untouched: bytes of inputs
    and outputs that it neither reads nor writes. Flops and bytes become attributes of the compiled
    program (`brt.benchmarks.roofline` reads them), because the compiler does not count kernels.
    """

    def part(index):
        return jax.tree.map(lambda x: x[index], inputs, is_leaf=lambda x: isinstance(x, Block))

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x, _ in outputs]
    kernel = pl.pallas_call(
        body,
        grid=grid,
        in_specs=part(1),
        out_specs=[spec for _, spec in outputs],
        out_shape=shapes,
        compiler_params=launch.compiler,
        interpret=bool(heads.interpret),
        name=name,
        **options,
    )
    sizes = (x.size * x.dtype.itemsize for x in (*jax.tree.leaves(part(0)), *shapes))
    with set_xla_metadata(flops=flops, bytes=sum(sizes) - untouched):
        return kernel(*part(0))
