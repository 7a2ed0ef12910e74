"""Backpropagation through time over the K segments of a step.

Gradients cross the memory between two segments unless they are stopped. With depth k (RMT, section
3) the gradient of the loss of segment t, from 0, crosses min(t, k) memories. Values do not depend
on the depth.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import scan, stop_gradient

Read = Callable[[Any, Any], tuple[Any, Any]]
"""(caches, segment) -> (caches, outputs), trees of arrays."""


def unroll(read: Read, caches: Any, segments: Any, depth: int | None = None) -> tuple[Any, Any]:
    """Runs the segments of a step in order.

    A depth k between 0 and K - 1 runs each segment after the first k + 1 again from k segments
    before, where the gradient is stopped: k + 1 times the work, in the memory of k + 1 segments.

    Args:
        segments: a tree with a first axis of K segments.
        depth: memories that the gradient of a segment's outputs crosses; None: all.

    Returns:
        The caches after the last segment, and the outputs with a first axis of K.
    """
    K = jax.tree.leaves(segments)[0].shape[0]
    if depth == 0:
        return scan(lambda caches, one: read(stop_gradient(caches), one), caches, segments)
    if depth is None or depth >= K - 1:
        return scan(read, caches, segments)

    def run(caches, segment):
        caches, outputs = read(caches, segment)
        return caches, (stop_gradient(caches), outputs)

    def advance(caches, segment):
        caches, _ = read(caches, segment)
        return caches, stop_gradient(caches)

    def run_again(carry, t):
        """Runs segments t - depth ... t from the first of the carried caches; scores the last."""
        first, _ = carry
        before = at(segments, t - depth + jnp.arange(depth))
        caches, later = scan(advance, first, before)
        caches, outputs = read(caches, at(segments, t))
        return (at(later, 0), stop_gradient(caches)), outputs

    caches, (later, outputs) = scan(run, caches, at(segments, slice(depth + 1)))
    carry = at(later, 0), stop_gradient(caches)
    (_, caches), rest = scan(run_again, carry, jnp.arange(depth + 1, K))
    return caches, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), outputs, rest)


def reread(read: Read, caches: Any, segments: Any) -> tuple[Any, Any]:
    """Runs k segments of earlier steps and one new one, with gradients through all.

    Every loss has the same depth k, as in RMT (Bulatov et al. 2022, section 3; its code starts from
    the memory after the k segments, this from the one before).

    segments: a tree with a first axis of k + 1 segments.
    Returns the caches after the first segment, for the next step, and outputs of the last one, with
    a first axis of one.
    """
    carried, _ = read(caches, at(segments, 0))
    caches, _ = scan(lambda *x: (read(*x)[0], None), carried, at(segments, slice(1, -1)))
    _, outputs = scan(read, caches, at(segments, slice(-1, None)))
    return carried, outputs


def at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)
