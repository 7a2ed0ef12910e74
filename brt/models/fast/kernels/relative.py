"""Relative attention as a Pallas TPU kernel; plain form: `plain_attend_by_distance`.

A grid step is one tile of queries of the heads that share 128 lanes, and all keys. Scores by
distance are a product with the tile's band of distances, and become scores by key in vector
registers: row i moves left by Q - 1 - i lanes. Compiled for v4, a layer of `wt103_large` takes 0.53
of the cycles of the plain form, without dropout 0.32 (docs/benchmarks/tpu_compiler.md). No TPU has
run it.

Axes as in `parts`, and J keys    C distances, J - 1 first    G tiles
W distances of a tile    P, N: heads = P * N
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from brt.models.fast.kernels.parts import (
    COMPILER,
    LANES,
    TILE,
    Heads,
    dot,
    head_masks,
    interpreted,
    on_each_device,
    only,
    softmax,
    summed_over_batch,
    upcast,
)
from brt.models.ops import HIDDEN, at_least_float32
from brt.models.relative_attention import Positions

ROWS = 32
"""Of a vector register of int8."""
MOST = 1024
"""Keys that fit into 16 MiB of VMEM, with heads of 64 or 128."""


def misfit(heads: Heads, keys: int) -> str | None:
    most = heads.fitting(MOST)
    return f"{keys} keys are more than {most}" if keys > most else heads.misfit()


class Plan(NamedTuple):
    """Static properties of an attention: T queries at the end of J keys, in whole registers.

    Queries are padded in front, keys and distances behind. causal: whether no query sees later
    keys. rate: of dropout. positions: whether scores depend on distances.
    """

    heads: Heads
    queries: int
    keys: int
    causal: bool
    rate: float
    positions: bool

    @property
    def tile(self) -> int:
        """Q."""
        return min(TILE, _padded(self.queries, ROWS))

    @property
    def rows(self) -> int:
        return _padded(self.queries, self.tile)

    @property
    def columns(self) -> int:
        return _padded(self.keys, LANES)

    @property
    def width(self) -> int:
        """W; causal: distances beyond are those of hidden keys."""
        if not self.positions:
            return LANES
        return self.columns + (0 if self.causal else LANES)

    @property
    def distances(self) -> int:
        return self.rows - self.tile + self.width if self.positions else LANES

    def bands(self, bias_HC: jax.Array) -> jax.Array:
        """Returns the entries of each tile's distances, (P, G, N, W)."""
        starts = [*range(self.rows - self.tile, -1, -self.tile)]
        starts = starts if self.positions else [0] * len(starts)
        bands_HGW = jnp.stack([bias_HC[:, x : x + self.width] for x in starts], axis=1)
        parts = bands_HGW.reshape(-1, self.heads.per_step, len(starts), self.width)
        return jnp.swapaxes(parts, 1, 2)


def _padded(size, multiple):
    return -(-size // multiple) * multiple


def attend_by_distance(
    heads: Heads,
    q_BTHK: jax.Array,
    k_BJHK: jax.Array,
    v_BJHK: jax.Array,
    content_bias_HK: jax.Array | None,
    positions: Positions | None,
    visible_BTJ: jax.Array,
    kept_BHTJ: jax.Array | None = None,
    rate: float = 0.0,
) -> jax.Array:
    """Returns `plain_attend_by_distance`, by the kernel.

    Without positions and a bias, scores are products of queries and keys. With positions of
    `distances(T, J)`, unless `future=True`, no query may see later keys.
    """
    (T, *head), J = q_BTHK.shape[1:], k_BJHK.shape[1]
    used = rate if kept_BHTJ is not None else 0.0
    if positions is None:
        plan = Plan(heads, T, J, True, used, positions=False)
        positions = Positions(*(jnp.zeros((LANES, *n), q_BTHK.dtype) for n in (head, head[:1])))
    else:
        plan = Plan(heads, T, J, len(positions.bias_CH) == J, used, positions=True)
    if content_bias_HK is None:
        content_bias_HK = jnp.zeros(head, q_BTHK.dtype)
    queries, keys = (plan.rows - T, 0), (0, plan.columns - J)
    if kept_BHTJ is not None:
        kept_BHTJ = jnp.pad(kept_BHTJ.astype(jnp.int8), ((0, 0), (0, 0), queries, keys))

    def joined(x_BTHK, padding):
        return jnp.pad(x_BTHK.reshape(*x_BTHK.shape[:-2], -1), ((0, 0), padding, (0, 0)))

    behind = (0, plan.distances - len(positions.bias_CH))
    y_BTA = _attend(
        plan,
        joined(q_BTHK, queries),
        joined(k_BJHK, keys),
        joined(v_BJHK, keys),
        content_bias_HK.astype(q_BTHK.dtype).reshape(1, -1),
        joined(positions.keys_CHK[None], behind)[0],
        jnp.pad(positions.bias_CH.T, ((0, 0), behind)),
        jnp.pad(visible_BTJ.astype(jnp.int8), ((0, 0), queries, keys)),
        kept_BHTJ,
    )
    return y_BTA[:, plan.rows - T :].reshape(q_BTHK.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, q_BTA, k_BJA, v_BJA, u_1A, keys_CA, bias_HC, visible_BTJ, kept_BHTJ):
    inputs = q_BTA, k_BJA, v_BJA, u_1A, keys_CA, bias_HC, visible_BTJ, kept_BHTJ
    return _forward(plan, *inputs)[0]


_INPUTS = ("BTA", "BTA", "BTA", "CA", "CA", "HC", "BTJ", "BHTJ")


def _forward(plan, *inputs):
    run = functools.partial(_forward_call, plan)
    (y_BTA,) = on_each_device(plan.heads, run, _INPUTS, ("BTA",))(*inputs)
    return y_BTA, (*inputs, y_BTA)


def _backward(plan, saved, dy_BTA):
    run = functools.partial(_backward_call, plan)
    inputs = *_INPUTS, "BTA", "BTA"
    return *on_each_device(plan.heads, run, inputs, _INPUTS[:6])(*saved, dy_BTA), None, None


_attend.defvjp(_forward, _backward)


def _prepared(plan, inputs):
    heads, Q, S = plan.heads, plan.tile, plan.columns
    *arrays, bias_HC, visible, kept = inputs
    N, L, G = heads.per_step, heads.lanes, plan.rows // plan.tile
    arrays += [plan.bands(at_least_float32(bias_HC)), visible]
    keys = pl.BlockSpec((1, S, L), lambda p, b, g: (b, 0, p))
    specs = [
        pl.BlockSpec((1, Q, L), lambda p, b, g: (b, g, p)),
        *(keys, keys),
        pl.BlockSpec((1, L), lambda p, b, g: (0, p)),
        pl.BlockSpec((plan.distances, L), lambda p, b, g: (0, p)),
        pl.BlockSpec((1, G, N, plan.width), lambda p, b, g: (p, 0, 0, 0)),
    ]
    masks = [pl.BlockSpec((1, Q, S), lambda p, b, g: (b, g, 0))]
    if kept is not None:
        arrays.append(kept)
        masks.append(pl.BlockSpec((1, N, Q, S), lambda p, b, g: (b, p, g, 0)))
    return (heads.num_heads // N, len(visible), G), arrays, specs, masks


def _forward_call(plan, *inputs):
    grid, arrays, specs, masks = _prepared(plan, inputs)
    y_BTA = pl.pallas_call(
        functools.partial(_forward_kernel, plan),
        grid=grid,
        in_specs=[*specs, *masks],
        out_specs=specs[0],
        out_shape=jax.ShapeDtypeStruct(inputs[0].shape, inputs[2].dtype),
        compiler_params=COMPILER,
        interpret=interpreted(plan.heads),
        name="relative_attention_forward",
    )(*arrays)
    return (y_BTA,)


def _backward_call(plan, *saved):
    *inputs, y_BTA, dy_BTA = saved
    grid, arrays, specs, masks = _prepared(plan, inputs)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:3]]
    shapes += [jax.ShapeDtypeStruct(x.shape, upcast(x.dtype)) for x in arrays[3:6]]
    sums = pltpu.VMEM((plan.columns, plan.heads.lanes), upcast(y_BTA.dtype))
    *gradients, du_1A, dkeys_CA, dbands = pl.pallas_call(
        functools.partial(_backward_kernel, plan),
        grid=grid,
        in_specs=[specs[0], specs[0], *specs, *masks],
        out_specs=specs,
        out_shape=shapes,
        scratch_shapes=[sums, sums],
        compiler_params=COMPILER,
        interpret=interpreted(plan.heads),
        name="relative_attention_backward",
    )(y_BTA, dy_BTA, *arrays)
    (dbias_HC,) = jax.linear_transpose(plan.bands, at_least_float32(inputs[5]))(dbands)
    summed = summed_over_batch(plan.heads, du_1A, dkeys_CA, dbias_HC)
    return *gradients, *(x.astype(given.dtype) for x, given in zip(summed, inputs[3:6]))


def skewed(x: jax.Array, size: int, back: bool = False) -> jax.Array:
    """Moves row i of x (Q, C) left by Q - 1 - i lanes and returns `size` lanes.

    back: right instead of left. Entering lanes are zero. Both sizes are multiples of 128, Q <= 128.
    """
    Q = len(x)
    lane, row = (jax.lax.broadcasted_iota(jnp.int32, (Q, LANES), axis) for axis in (1, 0))
    moved = lane + row - (Q - 1) if back else lane + (Q - 1) - row
    side, index = -1 if back else 1, moved & (LANES - 1)
    inside = (moved >= 0) & (moved < LANES)

    @functools.cache
    def gathered(number):
        start = number * LANES
        if not 0 <= start < x.shape[1]:
            return jnp.zeros((Q, LANES), x.dtype)
        # A rotation within a register by a number for each row needs a TPU v5.
        block = x[:, start : start + LANES]
        return jnp.take_along_axis(block, index, axis=1, mode="promise_in_bounds")

    numbers = range(size // LANES)
    parts = [jnp.where(inside, gathered(n), gathered(n + side)) for n in numbers]
    return jnp.concatenate(parts, axis=1)


def _queries(plan, q, u):
    x = at_least_float32(q[0])
    biased = (x + at_least_float32(u[...])).astype(q.dtype)
    return at_least_float32(biased) * plan.heads.factor, x * plan.heads.factor


def _band(plan):
    start = plan.rows - (pl.program_id(2) + 1) * plan.tile
    return pl.ds(pl.multiple_of(start, plan.tile), plan.width)


def _position_scores(plan, position, keys, bias_1W, visible):
    """Returns the scores of a head that depend on distances, for each query and key."""
    if not plan.positions:
        return jnp.where(visible, 0.0, HIDDEN).astype(bias_1W.dtype)
    scores = dot(position, keys[_band(plan)], (1, 1)) + bias_1W * plan.heads.factor
    return jnp.where(visible, skewed(scores, plan.columns), HIDDEN)


def _visible(visible):
    return visible[0].astype(jnp.int32) > 0


def _kept(kept, head, dtype):
    return kept[0, head].astype(jnp.int32).astype(dtype)


def _forward_kernel(plan, q, k, v, u, keys, bias, visible, *rest):
    *kept, y = rest
    content, position = _queries(plan, q, u)
    seen, tile = _visible(visible), pl.program_id(2)
    total = jnp.zeros_like(content)
    for head, mask in enumerate(head_masks(plan.heads)):
        own, own_position = (only(x, mask).astype(q.dtype) for x in (content, position))
        bias_1W = bias[0, tile, pl.ds(head, 1)]
        table = _position_scores(plan, own_position, keys, bias_1W, seen)
        weights, inverse = softmax(own, k[0], table)
        for factors in kept:
            weights = weights * _kept(factors, head, weights.dtype)
        one = dot(weights.astype(v.dtype), v[0], (1, 0)) * (inverse / (1.0 - plan.rate))
        total = total + only(one, mask)
    y[0] = total.astype(y.dtype)


def _backward_kernel(plan, y, dy, q, k, v, u, keys, bias, visible, *rest):
    *kept, dq, dk, dv, du, dkeys, dbias, dk_sum, dv_sum = rest
    tile = pl.program_id(2)

    @pl.when((pl.program_id(1) == 0) & (tile == 0))
    def _():
        for sums in (du, dkeys, dbias):
            sums[...] = jnp.zeros_like(sums)

    @pl.when(tile == 0)
    def _():
        for sums in (dk_sum, dv_sum):
            sums[...] = jnp.zeros_like(sums)

    content, position = _queries(plan, q, u)
    seen, band = _visible(visible), _band(plan)
    gradient = at_least_float32(dy[0])
    along_y = gradient * at_least_float32(y[0])
    gradient = gradient / (1.0 - plan.rate)
    dcontent = dposition = jnp.zeros_like(content)
    for head, mask in enumerate(head_masks(plan.heads)):
        own, own_position, dy_own = (
            only(x, mask).astype(q.dtype) for x in (content, position, gradient)
        )
        one_head = pl.ds(head, 1)
        table = _position_scores(plan, own_position, keys, bias[0, tile, one_head], seen)
        exponentials, inverse = softmax(own, k[0], table)
        weights = kept_weights = exponentials * inverse
        mean = jnp.sum(only(along_y, mask), axis=-1, keepdims=True)
        dweights = dot(dy_own, v[0], (1, 1))
        for factors in kept:
            factors = _kept(factors, head, weights.dtype)
            kept_weights, dweights = weights * factors, dweights * factors
        dv_sum[...] += dot(kept_weights.astype(q.dtype), dy_own, (0, 0))
        dscores = weights * (dweights - mean)
        by_key = dscores.astype(q.dtype)
        dcontent = dcontent + only(dot(by_key, k[0], (1, 0)), mask)
        dk_sum[...] += dot(by_key, own, (0, 0))
        if plan.positions:
            dscores = skewed(dscores, plan.width, back=True)
            dbias[0, tile, one_head] += plan.heads.factor * jnp.sum(dscores, axis=0, keepdims=True)
            by_distance = dscores.astype(q.dtype)
            dposition = dposition + only(dot(by_distance, keys[band], (1, 0)), mask)
            dkeys[band] += dot(by_distance, own_position, (0, 0))
    dcontent, dposition = dcontent * plan.heads.factor, dposition * plan.heads.factor
    du[...] += jnp.sum(dcontent, axis=0, keepdims=True)
    dq[0] = (dcontent + dposition).astype(dq.dtype)

    @pl.when(tile == pl.num_programs(2) - 1)
    def _():
        dk[0], dv[0] = dk_sum[...].astype(dk.dtype), dv_sum[...].astype(dv.dtype)
