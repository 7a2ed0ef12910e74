"""Backpropagation through time over the K segments of a step.

The memory between two segments is a value like any other: a gradient crosses it unless it is
stopped. With depth k (RMT, section 3) the gradient of the loss of segment t, counted from 0 in the
step, crosses min(t, k) memories. No gradient crosses steps: their caches come in as data. Values
do not depend on the depth.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def unroll(
    read: Callable[[Any, Any], tuple[Any, Any]],
    caches: Any,
    segments: Any,
    depth: int | None = None,
) -> tuple[Any, Any]:
    """Runs the segments of a step in order.

    A depth k between 0 and K - 1 runs each segment after the first k + 1 again from k segments
    before, where the gradient is stopped: k + 1 times the work, in the memory of one such window.

    Args:
        read: (caches, segment) -> (caches, outputs), trees of arrays.
        caches: before the first segment.
        segments: a tree whose leaves have a first axis of K segments.
        depth: memories that the gradient of a segment's outputs crosses, 0 ... K - 1; None: all.

    Returns:
        The caches after the last segment, and the outputs of all segments, K in front.
    """
    K = jax.tree.leaves(segments)[0].shape[0]
    if K == 1:  # no loop to trace, differentiate and compile
        caches, outputs = read(caches, jax.tree.map(lambda x: x[0], segments))
        return caches, jax.tree.map(lambda x: x[None], outputs)
    if depth == 0:
        return jax.lax.scan(
            lambda caches, segment: read(jax.lax.stop_gradient(caches), segment), caches, segments
        )
    if depth is None or depth >= K - 1:
        return jax.lax.scan(read, caches, segments)
    return _windows(read, caches, segments, depth, K)


def _windows(read, caches, segments, depth, K):
    def keep(caches, segment):
        caches, outputs = read(caches, segment)
        return caches, (jax.lax.stop_gradient(caches), outputs)

    def advance(caches, segment):
        caches, _ = read(caches, segment)
        return caches, jax.lax.stop_gradient(caches)

    def window(carry, t):
        """Runs segments t - depth ... t, of which the last is scored."""
        begin, _ = carry
        earlier = t - depth + jnp.arange(depth)
        before = jax.tree.map(lambda x: x[earlier], segments)
        caches, entered = jax.lax.scan(advance, begin, before)
        caches, outputs = read(caches, jax.tree.map(lambda x: x[t], segments))
        return (_first(entered), jax.lax.stop_gradient(caches)), outputs

    whole = jax.tree.map(lambda x: x[: depth + 1], segments)
    caches, (entered, first) = jax.lax.scan(keep, caches, whole)
    carry = _first(entered), jax.lax.stop_gradient(caches)
    (_, caches), rest = jax.lax.scan(window, carry, jnp.arange(depth + 1, K))
    return caches, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, rest)


def reread(
    advance: Callable[[Any, Any], Any],
    read: Callable[[Any, Any], tuple[Any, Any]],
    caches: Any,
    segments: Any,
) -> tuple[Any, Any]:
    """Runs k segments of earlier steps and one new segment, with gradients through all of them.

    Every loss has the same depth k, as in the language models of RMT (Bulatov et al. 2022, section
    3, and its code, where the k segments start from the memory after them, and not before them).

    Args:
        advance: (caches, segment) -> caches, like `read` without its outputs.
        read: (caches, segment) -> (caches, outputs), trees of arrays.
        caches: before the first segment.
        segments: a tree whose leaves have a first axis of k + 1 segments, k at least 1.

    Returns:
        The caches after the first segment, with which the next step begins; the outputs of the
        last segment, with a first axis of 1.
    """

    def part(chosen):
        return jax.tree.map(lambda x: x[chosen], segments)

    carried = advance(caches, part(0))
    again = part(slice(1, -1))
    caches, _ = jax.lax.scan(lambda *inputs: (advance(*inputs), None), carried, again)
    _, outputs = read(caches, part(-1))
    return carried, jax.tree.map(lambda x: x[None], outputs)


def _first(tree):
    return jax.tree.map(lambda x: x[0], tree)
