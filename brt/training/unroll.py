"""Backpropagation through time, over as many memories as a segment's loss shall reach.

    caches, outputs = unroll(read, caches, segments, depth)

A step reads K consecutive segments. The memory between two of them is a value like any other, so
a gradient crosses it unless it is stopped. Depth k (RMT, section 3) lets the loss of segment t,
counted from 0 in the step, through min(t, k) of them; between steps none passes, because the
caches of the last step come in as data. Values never depend on the depth.

    caches, outputs = reread(advance, read, caches, segments)

A step that reads k segments again before one new segment gives every loss the same depth, k, as
the Recurrent Memory Transformer's language models were trained.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def without_gradient(tree: Any) -> Any:
    """Returns the tree, through which no gradient passes."""
    return jax.tree.map(jax.lax.stop_gradient, tree)


def check_depth(depth: int | None, segments: int) -> None:
    """Refuses a depth that no segment of a step could have.

    Raises:
        ValueError: naming both bindings.
    """
    if depth is None:
        return
    if not isinstance(depth, int) or depth < 0:
        raise ValueError(
            f"Trainer.bptt_depth = {depth!r} counts the memories a gradient crosses: bind 0 or "
            "more, or None for all that a step holds."
        )
    if depth > segments - 1:
        raise ValueError(
            f"Trainer.bptt_depth = {depth} reaches beyond the unroll: the {segments} segments of "
            f"a step (Trainer.segments_per_step) have {segments - 1} memories between them. Bind "
            f"Trainer.segments_per_step = {depth + 1} or more, or a smaller depth."
        )


def check_reread(
    reread_segments: int, segments_per_step: int, depth: int | None, stream: str
) -> None:
    """Refuses settings that do not go with segments that are read again.

    Raises:
        ValueError: naming the bindings.
    """
    if not isinstance(reread_segments, int) or reread_segments < 0:
        raise ValueError(
            f"Trainer.reread_segments = {reread_segments!r} counts segments that every step reads "
            "again: bind 0 or more."
        )
    if not reread_segments:
        return
    if segments_per_step != 1 or depth is not None:
        raise ValueError(
            f"Trainer.reread_segments = {reread_segments} is the depth of a step with one new "
            f"segment: bind Trainer.segments_per_step = 1 for {segments_per_step}, and "
            f"Trainer.bptt_depth = None for {depth}."
        )
    if stream in ("samples", "labelled"):
        raise ValueError(
            f"Trainer.reread_segments = {reread_segments} has nothing to read again where every "
            f'step reads whole samples (Trainer.stream = "{stream}"): bind it to 0.'
        )


def reread(
    advance: Callable[[Any, Any], Any],
    read: Callable[[Any, Any], tuple[Any, Any]],
    caches: Any,
    segments: Any,
) -> tuple[Any, Any]:
    """Reads k segments that were read before, and the one after them, with gradients through all.

    Args:
        advance: (caches, segment) -> caches, as `read` but without its outputs.
        read: (caches, segment) -> (caches, outputs), trees of arrays.
        caches: the memory before the first of the segments.
        segments: a tree whose leaves have the k + 1 segments in front, k at least 1.

    Returns:
        The caches after the first segment, with which the next step, one segment on, begins; the
        outputs of the last, with an axis of 1 in front.

    Source: Bulatov et al. 2022, section 3, and the language models of its released code. There the
    k segments are read from the memory after all of them; here from the one before them.
    """

    def part(chosen):
        return jax.tree.map(lambda x: x[chosen], segments)

    carried = advance(caches, part(0))
    again = part(slice(1, -1))
    caches, _ = jax.lax.scan(lambda *inputs: (advance(*inputs), None), carried, again)
    _, outputs = read(caches, part(-1))
    return carried, jax.tree.map(lambda x: x[None], outputs)


def unroll(
    read: Callable[[Any, Any], tuple[Any, Any]],
    caches: Any,
    segments: Any,
    depth: int | None = None,
) -> tuple[Any, Any]:
    """Reads the segments of a step in order.

    Args:
        read: (caches, segment) -> (caches, outputs), trees of arrays.
        caches: what the step begins with.
        segments: a tree whose leaves have the K segments in front.
        depth: memories the gradient of a segment's outputs crosses, 0 ... K - 1; None: all.

    Returns:
        The caches after the last segment, and the outputs of all segments with K in front.

    Depths between 0 and K - 1 read each segment after the first k + 1 again from k segments
    before, where the memory is cut: (k + 1) times the work, in the memory of one such window.
    """
    K = jax.tree.leaves(segments)[0].shape[0]
    if K == 1:  # no loop to trace, differentiate and compile
        caches, outputs = read(caches, jax.tree.map(lambda x: x[0], segments))
        return caches, jax.tree.map(lambda x: x[None], outputs)
    if depth == 0:
        return jax.lax.scan(
            lambda caches, segment: read(without_gradient(caches), segment), caches, segments
        )
    if depth is None or depth >= K - 1:
        return jax.lax.scan(read, caches, segments)
    return _windows(read, caches, segments, depth, K)


def _windows(read, caches, segments, depth, K):
    def keep(caches, segment):
        caches, outputs = read(caches, segment)
        return caches, (without_gradient(caches), outputs)

    def advance(caches, segment):
        caches, _ = read(caches, segment)
        return caches, without_gradient(caches)

    def window(carry, t):
        """Segments t - depth ... t from the memory before the first of them; scores the last."""
        begin, _ = carry
        earlier = t - depth + jnp.arange(depth)
        before = jax.tree.map(lambda x: x[earlier], segments)
        caches, entered = jax.lax.scan(advance, begin, before)
        caches, outputs = read(caches, jax.tree.map(lambda x: x[t], segments))
        return (_first(entered), without_gradient(caches)), outputs

    whole = jax.tree.map(lambda x: x[: depth + 1], segments)
    caches, (entered, first) = jax.lax.scan(keep, caches, whole)
    carry = _first(entered), without_gradient(caches)
    (_, caches), rest = jax.lax.scan(window, carry, jnp.arange(depth + 1, K))
    return caches, jax.tree.map(lambda a, b: jnp.concatenate([a, b]), first, rest)


def _first(tree):
    return jax.tree.map(lambda x: x[0], tree)
