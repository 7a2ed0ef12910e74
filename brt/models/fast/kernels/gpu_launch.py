"""Windowed self-attention as Pallas Triton kernels for NVIDIA GPUs.

Plain counterpart: `brt.models.ops.window_attention` (tests/models/test_gpu_kernels.py compares
outputs and all gradients, in interpret mode). The mathematics are in `gpu_window`; this file has
the sizes of tiles, the memory layout, and everything that depends on Pallas's Triton compiler.

The backward pass has two kernels and no atomic operation, so that it is the same bit for bit in
every run. The first computes the scores once more, with their bias and dropout, and gives the
gradients of keys, values and scores; the second multiplies those of the scores by the keys. The
gradients of the scores, (B, H, G, F, Q) in the activations' type, are in memory between them: the
bias needs them anyway, summed over batch and frames.

Axes as in `gpu_window`.
"""

import functools
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike

from brt.models.axis_rules import device
from brt.models.fast.kernels import gpu_window
from brt.models.fast.kernels.gpu_window import LOG2_E, Tiles
from brt.models.fast.kernels.parts import (
    Heads,
    TileDropout,
    on_each_device,
    summed_over_batch,
    upcast,
)
from brt.models.ops import HIDDEN, at_least_float32, unit_heads, window_table

SIZES = 32, 64, 128, 256
"""Of heads: powers of two, as everything in a Triton kernel."""
STEP, LONGEST, FEWEST = 128, 2048, 16
"""Windows are multiples of STEP, and of FEWEST, the rows of a matrix unit, when interpreted."""
LARGE = re.compile(r"\bG?[HB]\d\d")
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


def launches(window: int, head_size: int, dtype: DTypeLike, large: bool = False) -> Launches:
    """Returns sizes that fit into the shared memory of a block and into a thread's 255 registers.

    large: for a card of `LARGE`; others have 99 KiB of shared memory or more.
    """
    if dtype != jnp.bfloat16:
        found = _FLOAT32 if head_size <= 128 else _WIDE_FLOAT32
    elif head_size == 128:
        found = _LARGE if large else _SMALL
    else:
        found = _NARROW if head_size < 128 else _WIDE
    most = math.gcd(window, STEP)  # smaller only when interpreted
    return Launches(
        *(x._replace(queries=min(x.queries, most), keys=min(x.keys, most)) for x in found)
    )


def _launches(window, head_size, dtype):
    return launches(window, head_size, dtype, bool(LARGE.search(device().device_kind)))


def misfit(heads: Heads, window: int, dtype: DTypeLike) -> str | None:
    """Returns why the kernels cannot compute this attention, or None."""
    if dtype not in (jnp.bfloat16, jnp.float32):
        return f"activations are {jnp.dtype(dtype)}, not bfloat16 or float32"
    if window % FEWEST:
        return f"window = {window} is not a multiple of {FEWEST}"
    if heads.interpret:
        return None
    kind = device().device_kind
    if OLD.search(kind):
        return f"the compute capability of {kind} is below 8.0"
    if heads.head_size not in SIZES:
        return f"head_size = {heads.head_size} is none of {', '.join(map(str, SIZES))}"
    if window % STEP or window > LONGEST:
        return f"window = {window} is not a multiple of {STEP} up to {LONGEST}"
    return None


def padded_bias(bias_HW: jax.Array, frame: int) -> jax.Array:
    """Returns the base-2 bias of distances 1 - Q ... W + Q, (H, W + 2Q), hidden ones included."""
    bias_HW = at_least_float32(bias_HW)
    hidden_HQ = jnp.full((len(bias_HW), frame), HIDDEN, bias_HW.dtype)
    return jnp.concatenate([hidden_HQ, bias_HW, hidden_HQ], axis=1) * LOG2_E


def kept_factors(dropout: TileDropout, window: int) -> jax.Array:
    """Returns the factors of the weights that the kernels draw, (H, W, 2W), for `ops`."""
    tiles = Tiles(window, 0, 0, 0, True, dropout.rate)
    query, key = jnp.arange(window)[:, None], gpu_window.Range(0, jnp.arange(2 * window))
    draw = functools.partial(gpu_window.kept_weights, tiles, query=query, key=key)
    return jax.vmap(draw)(dropout.seeds_HN2[:, 0]) * tiles.kept_factor


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_to_window(
    heads: Heads,
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    cached_k_BWHK: jax.Array,
    cached_v_BWHK: jax.Array,
    scale_H: jax.Array,
    bias_HW: jax.Array,
    dropout: TileDropout | None = None,
) -> jax.Array:
    """Returns the attention of each token of a segment to the W tokens before it, (B, T, H, K).

    Args:
        heads: static properties; `qk_norm`: queries and keys get unit length.
        q_BTHK, k_BTHK, v_BTHK: projections; T is a multiple of W.
        cached_k_BWHK, cached_v_BWHK: keys (of unit length) and values of the block before.
        scale_H: factor of the scores, used through its absolute value.
        bias_HW: of the distances 1 ... W.
        dropout: seeds_HN2 of one tile, N = 1; `kept_factors` are what it draws.
    """
    return _forward(
        heads, q_BTHK, k_BTHK, v_BTHK, cached_k_BWHK, cached_v_BWHK, scale_H, bias_HW, dropout
    )[0]


_INPUTS = "BTHK", "BTHK", "BTHK", "BWHK", "BWHK", "H", "HW"
_SEEDS, _OF_QUERIES = "HS", "BHT"


def _split(dropout):
    return (0.0, ()) if dropout is None else (dropout.rate, (dropout.seeds_HN2[:, 0],))


def _forward(heads, *inputs):
    *arrays, dropout = inputs
    rate, seeds = _split(dropout)
    run = functools.partial(_forward_call, heads, rate)
    axes = *_INPUTS, *[_SEEDS] * len(seeds)
    outputs = "BTHK", _OF_QUERIES, _OF_QUERIES
    y_BTHK, *saved = on_each_device(heads, run, axes, outputs)(*arrays, *seeds)
    return y_BTHK, (*inputs, y_BTHK, *saved)


def _backward(heads, saved, dy_BTHK):
    *arrays, dropout, y_BTHK, log_sum_BHT, factor_BHT = saved
    rate, seeds = _split(dropout)
    run = functools.partial(_backward_call, heads, rate)
    axes = *_INPUTS, *[_SEEDS] * len(seeds), "BTHK", _OF_QUERIES, _OF_QUERIES, "BTHK"
    given = *arrays, *seeds, y_BTHK, log_sum_BHT, factor_BHT, dy_BTHK
    return *on_each_device(heads, run, axes, _INPUTS)(*given), None


attend_to_window.defvjp(_forward, _backward)


class _Layout(NamedTuple):
    """Blocks of arrays; grid axes are the tile and, in one, batch element and head.

    `jax.vmap` adds an axis, and a grid of a GPU has three.
    """

    window: int
    tokens: int
    num_heads: int
    head_size: int
    frame: int

    def spec(self, size, index):
        """index: of tile, batch element and head."""
        H = self.num_heads
        return pl.BlockSpec(size, lambda g, n: index(g, jax.lax.div(n, H), jax.lax.rem(n, H)))

    def every(self, tokens):
        return self.spec((None, tokens, None, self.head_size), lambda g, b, h: (b, 0, h, 0))

    def tile(self, size):
        return self.spec((None, size, None, self.head_size), lambda g, b, h: (b, g, h, 0))

    @property
    def of_queries(self):
        return self.spec((None, None, self.tokens), lambda g, b, h: (b, h, 0))

    @property
    def of_own_queries(self):
        return self.spec((None, None, self.frame), lambda g, b, h: (b, h, g))

    @property
    def of_tile(self):
        return self.spec((None, None, None), lambda g, b, h: (b, h, g))

    def of_head(self, *size):
        return self.spec((None, *size), lambda g, b, h: (h, *[0] * len(size)))

    @property
    def dscores(self):
        size = self.tokens // self.frame, self.window + self.frame, self.frame
        return self.spec((None, None, *size), lambda g, b, h: (b, h, 0, 0, 0))

    @property
    def own_dscores(self):
        size = self.window + self.frame, self.frame
        return self.spec((None, None, None, *size), lambda g, b, h: (b, h, g, 0, 0))


def _call(body, launch, heads, grid, inputs, outputs, name, **options):
    """Runs a kernel; inputs: pairs of array and block; outputs: of shape, type and block."""
    arrays, in_specs = zip(*inputs)
    return pl.pallas_call(
        body,
        grid=grid,
        in_specs=list(in_specs),
        out_specs=[spec for *_, spec in outputs],
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in outputs],
        compiler_params=launch.compiler,
        interpret=bool(heads.interpret),
        name=name,
        **options,
    )(*arrays)


def _unit(heads, k):
    return unit_heads(k) if heads.qk_norm else k


def _forward_call(heads, rate, q, k, v, cached_k, cached_v, scale_H, bias_HW, *seeds):
    (B, T, H, K), W = q.shape, cached_k.shape[1]
    launch = _launches(W, K, q.dtype).forward
    Q = launch.queries
    tiles = Tiles(W, Q, Q, launch.keys, heads.qk_norm, rate)
    layout, kind = _Layout(W, T, H, K, Q), upcast(q.dtype)
    inputs = [
        (q, layout.tile(Q)),
        *((x, layout.every(T)) for x in (_unit(heads, k), v)),
        *((x, layout.every(W)) for x in (cached_k, cached_v)),
        (scale_H.astype(kind), layout.of_head()),
        (padded_bias(bias_HW, Q), layout.of_head(W + 2 * Q)),
        *((x, layout.of_head(2)) for x in seeds),
    ]
    of_queries = (B, H, T), kind, layout.of_own_queries
    outputs = (v.shape, v.dtype, layout.tile(Q)), of_queries, of_queries
    body = functools.partial(gpu_window.forward, tiles)
    return _call(body, launch, heads, (T // Q, B * H), inputs, outputs, "window_forward")


def _backward_call(heads, rate, q, k, v, cached_k, cached_v, scale_H, bias_HW, *rest):
    *seeds, y, log_sum, factor, dy = rest
    (B, T, H, K), W = q.shape, cached_k.shape[1]
    launch = _launches(W, K, q.dtype)
    Q, X = launch.forward.queries, launch.of_keys.keys
    tiles = Tiles(W, Q, launch.of_keys.queries, X, heads.qk_norm, rate)
    layout, kind, unit_k = _Layout(W, T, H, K, Q), upcast(q.dtype), _unit(heads, k)
    mean_BTH = jnp.sum(at_least_float32(y) * at_least_float32(dy), axis=-1)
    of_scores = (B, H, T // Q, W + Q, Q), q.dtype, layout.dscores

    def of_keys(is_cache, raw_k, k, v, *before):
        inputs = [
            (q, layout.every(T)),
            *((x, layout.tile(X)) for x in (raw_k, k, v)),
            (padded_bias(bias_HW, Q), layout.of_head(W + 2 * Q)),
            *((x, layout.of_queries) for x in (log_sum, factor, jnp.moveaxis(mean_BTH, 1, 2))),
            (dy, layout.every(T)),
            *((x, layout.of_head(2)) for x in seeds),
            *((x, layout.dscores) for x in before),
        ]
        body = functools.partial(gpu_window.backward_of_keys, tiles, is_cache)
        outputs = *((x.shape, x.dtype, layout.tile(X)) for x in (k, v)), of_scores
        name = "window_backward_of_cache" if is_cache else "window_backward_of_keys"
        # The second call adds to what the first has written.
        aliases = {} if is_cache else {len(inputs) - 1: 2}
        grid = k.shape[1] // X, B * H
        return _call(
            body, launch.of_keys, heads, grid, inputs, outputs, name, input_output_aliases=aliases
        )

    dcached_k, dcached_v, dscores = of_keys(True, cached_k, cached_k, cached_v)
    dk, dv, dscores = of_keys(False, k, unit_k, v, dscores)

    tiles = tiles._replace(queries=Q, keys=launch.of_queries.keys)
    inputs = [
        *((q, layout.tile(Q)), (unit_k, layout.every(T)), (cached_k, layout.every(W))),
        *((scale_H.astype(kind), layout.of_head()), (dscores, layout.own_dscores)),
    ]
    outputs = (q.shape, q.dtype, layout.tile(Q)), ((B, H, T // Q), kind, layout.of_tile)
    body = functools.partial(gpu_window.backward_of_queries, tiles)
    dq, dscale_BHG = _call(
        body,
        launch.of_queries,
        heads,
        (T // Q, B * H),
        inputs,
        outputs,
        "window_backward_of_queries",
    )

    dscale_H = jnp.sum(dscale_BHG, axis=(0, 2)) * jnp.sign(scale_H)
    dtable_HQF = jnp.swapaxes(jnp.sum(dscores, axis=(0, 2), dtype=kind), 1, 2)
    expand = functools.partial(window_table, queries=Q)
    (dbias_HW,) = jax.vjp(expand, jnp.zeros(bias_HW.shape, kind))[1](dtable_HQF)
    dscale_H, dbias_HW = summed_over_batch(heads, dscale_H, dbias_HW)
    of_parameters = dscale_H.astype(scale_H.dtype), dbias_HW.astype(bias_HW.dtype)
    return dq, dk, dv, dcached_k, dcached_v, *of_parameters
