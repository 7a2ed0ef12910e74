"""The memories of one layer, taken together: what they read, offer and take in.

Every function takes the memories in the order in which they add to attention, and their caches in
the same order. Letters as in `brt.models`.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.block_recurrent.memory import BlockPairs, BlockStates, LayerMemory, LayerTokens
from brt.models.model import Monitors, check_scalars


def call_each(
    memories: Sequence[LayerMemory], method: str, caches: Sequence[Any], *arguments: Any
) -> tuple[Any, ...]:
    """Returns what a method of each memory returns for its cache and the same arguments."""
    pairs = zip(memories, caches, strict=True)
    return tuple(getattr(memory, method)(cache, *arguments) for memory, cache in pairs)


def offered_states(
    memories: Sequence[LayerMemory],
    caches: Sequence[Any],
    dtype: DTypeLike,
    weights: Sequence[Any] | None = None,
) -> tuple[BlockStates | None, ...]:
    """Returns the states that each memory offers to the next block (G = 1), or None.

    weights: what each memory's `loop_weights(dtype)` returned, if the caller has it already.
    """
    weights = (None,) * len(memories) if weights is None else weights
    return tuple(
        memory.states(cache, dtype, **_given(of_it))
        for memory, cache, of_it in zip(memories, caches, weights, strict=True)
    )


def joined(states: Iterable[BlockStates | None]) -> BlockStates | None:
    """Puts the states of several memories side by side; None where none has any."""
    offered = [each for each in states if each is not None]
    if len(offered) < 2:
        return offered[0] if offered else None
    return BlockStates(*map(functools.partial(jnp.concatenate, axis=2), zip(*offered)))


def read_all(
    memories: Sequence[LayerMemory],
    caches: Sequence[Any],
    tokens: LayerTokens,
    attended_BTHK: jax.Array,
    remat: bool = False,
) -> tuple[jax.Array, list[Monitors]]:
    """Returns what self-attention read with what each memory adds to it, and each one's monitors.

    remat: recompute what a memory reads in the backward pass.
    """
    monitors = []
    for memory, cache in zip(memories, caches, strict=True):
        with jax.named_scope(_part(memory)):
            attended_BTHK, found = memory.read(cache, tokens, attended_BTHK, remat)
        monitors.append(found)
    return attended_BTHK, monitors


def take_in_all(
    memories: Sequence[LayerMemory],
    caches: Sequence[Any],
    blocks: BlockPairs,
    known: Sequence[BlockStates | None] | None,
    weights: Sequence[Any],
    remat: bool = False,
) -> tuple[tuple[Any, ...], BlockStates | None, list[Monitors]]:
    """Shows the memories a segment's blocks.

    Args:
        known: `offered_states` of these caches, if the caller has them already.
        weights: what each memory's `loop_weights` returned.
        remat: recompute what a memory does in the backward pass.

    Returns:
        The caches after the blocks, the states that all offer to them, and each one's monitors.
    """
    known = (None,) * len(caches) if known is None else known
    after = []
    offered = []
    monitors = []
    for memory, cache, states, of_it in zip(memories, caches, known, weights, strict=True):
        with jax.named_scope(_part(memory)):
            cache, seen, found = memory.take_in(cache, blocks, states, remat, **_given(of_it))
        after.append(cache)
        offered.append(seen)
        monitors.append(found)
    return tuple(after), joined(offered), monitors


def complete_block(
    memories: Sequence[LayerMemory], caches: tuple[Any, ...], blocks: BlockPairs, full_B: jax.Array
) -> tuple[Any, ...]:
    """Returns the decoding-form caches after a token; only rows that completed a block change.

    full_B: (B,) bool, those rows. Where there is none, nothing is computed.
    """
    if not caches:
        return caches
    return jax.lax.cond(
        jnp.any(full_B),
        lambda caches: call_each(memories, "complete_block", caches, blocks, full_B),
        lambda caches: caches,
        caches,
    )


def named_monitors(
    memories: Sequence[LayerMemory], of_reading: Sequence[Monitors], of_blocks: Sequence[Monitors]
) -> Monitors:
    """Returns the monitors of all memories of a layer.

    A name that a memory before it reports too, or `state_share`, which is the layer's own, becomes
    `<name of the memory>/<name>`.

    Args:
        memories: of the layer.
        of_reading, of_blocks: what `read` and `take_in` of each memory report.

    Raises:
        ValueError: a memory reports a name twice, or what is no scalar.
    """
    monitors: Monitors = {}
    for memory, *found in zip(memories, of_reading, of_blocks, strict=True):
        if twice := found[0].keys() & found[1].keys():
            raise ValueError(
                f"{type(memory).__name__} reports a monitor called {min(twice)} in read and in "
                "take_in: give one of them another name."
            )
        own = found[0] | found[1]
        check_scalars(own, f"{type(memory).__name__} (memory {memory.name!r})")
        for name, value in own.items():
            is_taken = name in monitors or name == "state_share"
            monitors[f"{memory.name}/{name}" if is_taken else name] = value
    return monitors


def _given(weights):
    """What a memory without `loop_weights` of its own is not given."""
    return {} if weights is None else {"weights": weights}


def _part(memory):
    """Returns the name of a memory's part of the layer in profiles."""
    return "states" if memory.num_states else "memory"
