"""Segments divided over devices, for memories whose states are combined by an associative scan.

Device d of N has the segments d R, ..., d R + R - 1 of a step, and all devices run the same layer
at once. A layer whose memory is `affine` changes its matrix S in R segments to A S + b, whatever S
was before: each device computes its A and b, and `jax.lax.associative_scan` over those of all
devices gives each the matrix before its segments. The rest of a cache (windows, inputs of
convolutions) depends on the last tokens alone, and comes from the device before.

A layer's keys, values and memory are computed a second time, about a quarter of its operations; the
backward pass computes each layer again. No device is idle.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.flatten_util import ravel_pytree

from brt.models.caches import select_rows
from brt.models.diagonal import layerwise_of
from brt.models.model import Model
from brt.training.over_time.order import after, first_values

AGAIN = 0.25
"""Estimated share of a layer's operations that this schedule repeats."""
FEWEST = 4
"""Tokens of a segment that include all inputs of a convolution which the next segment needs."""


def scan_is_faster(model: Model, segments: int, devices: int, tokens: int) -> bool:
    """Returns whether all states can be scanned, and at less cost than the ring's idle times.

    segments: K of a step. tokens: T of a segment.
    """
    layers = layerwise_of(model).layers
    memories = [memory for layer in layers for memory in getattr(layer, "memories", ())]
    known = all(hasattr(layer, "memories") for layer in layers)
    affine = known and tokens >= FEWEST and all(memory.affine for memory in memories)
    return affine and devices - 1 > AGAIN * len(layers) * segments / devices


def run_scan(
    model: Model, x_RBTD: jax.Array, caches: tuple, starts_RB: jax.Array, axis: str
) -> tuple[jax.Array, tuple]:
    """Runs the segments of one device of the axis; the others run theirs at the same time.

    As `run_ring`, but the last device has the caches after the last segment.
    """
    layerwise = layerwise_of(model)
    empty = model.init_caches(x_RBTD.shape[1])
    inputs = jax.vmap(layerwise.enter)(x_RBTD)
    caches_after = []
    for layer, cache, fresh in zip(layerwise.layers, caches, empty, strict=True):
        graph, params = nnx.split(layer)

        @jax.checkpoint
        def run(params, xs, cache, graph=graph, fresh=fresh):
            def segment(cache, xs):
                x, starts_B = xs
                cache = select_rows(starts_B, fresh, cache)
                y, cache = layerwise.run(nnx.merge(graph, params), x, cache)
                return cache, y

            return jax.lax.scan(segment, cache, xs)

        def segments(cache, first=0, run=run, params=params, xs=(inputs, starts_RB)):
            return run(params, jax.tree.map(lambda x: x[first:], xs), cache)

        cache, inputs = segments(before(segments, cache, fresh, axis))
        caches_after.append(cache)
    return jax.vmap(layerwise.leave)(inputs), tuple(caches_after)


def before(segments: Callable, first: Any, empty: Any, axis: str) -> Any:
    """Returns the cache before this device's segments.

    Args:
        segments: from the cache before them, and the number of the first, to the cache after them,
            and their outputs.
        first: the cache before the segments of device 0.
        empty: any cache of the same shapes.
    """
    N, device = jax.lax.axis_size(axis), jax.lax.axis_index(axis)

    # Of the last segment alone, whose tokens decide all but the matrices.
    own, restore = ravel_pytree(split(segments(empty, -1)[0])[1])
    received = jax.lax.ppermute(own, axis, [(i, (i + 1) % N) for i in range(N)])
    S, others = split(first)
    others = jax.tree.map(lambda x, y: jnp.where(device == 0, x, y), others, restore(received))
    if not S:
        return joined(first, S, others)

    def change(S):
        return split(segments(joined(first, S, others))[0])[0]

    # b and A I + b, in one pass; kernels of the rule have no forward derivative that would give A.
    units = (jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape) for x in S)
    both = [jnp.stack([jnp.zeros_like(x), x]) for x in units]
    b_and_A = [jnp.stack([x[0], x[1] - x[0]]) for x in jax.vmap(change)(both)]
    b_and_A = after(first_values(received), b_and_A)
    found = []
    for S_BHKK, parts in zip(S, jax.lax.all_gather(b_and_A, axis), strict=True):
        b_NBHKK, A_NBHKK = jax.lax.associative_scan(combined, (parts[:, 0], parts[:, 1]))
        last = jnp.maximum(device - 1, 0)
        found.append(jnp.where(device == 0, S_BHKK, A_NBHKK[last] @ S_BHKK + b_NBHKK[last]))
    return joined(first, found, others)


def combined(earlier: tuple, later: tuple) -> tuple[jax.Array, jax.Array]:
    """Returns b and A of two changes S -> A S + b, one after the other."""
    (b, A), (later_b, later_A) = earlier, later
    return later_A @ b + later_b, later_A @ A


def _is_matrix(path):
    return getattr(path[-1], "name", "") == "matrix_BHKK"


def split(cache: Any) -> tuple[list[jax.Array], list[jax.Array]]:
    """Returns the matrices of a cache, and its other arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(cache)
    matrices = [x for path, x in leaves if _is_matrix(path)]
    return matrices, [x for path, x in leaves if not _is_matrix(path)]


def joined(like: Any, matrices: list[jax.Array], others: list[jax.Array]) -> Any:
    """Returns a cache with the structure of `like` from the results of `split`."""
    given = iter(matrices), iter(others)
    return jax.tree_util.tree_map_with_path(lambda path, x: next(given[not _is_matrix(path)]), like)
