"""The interface of a layer's memory; see docs/extending.md. Axes as in `brt.models`.

- `LayerMemory` changes with every block: the tokens of a block `read` it, or attend to its
  `states`, and a finished block `update`s it with the results of `take`.
- `TokenMemory` changes with every token: `run`.

Segments, decoding, padding and gradients follow from these methods.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.caches import WindowCache, select_rows
from brt.models.contract import checked_result, joined_metrics
from brt.models.fast.block_loop import scan_blocks
from brt.models.layers.norms import share_of_norm
from brt.models.model import Metrics
from brt.models.ops import in_blocks


class BlockStates(NamedTuple):
    """Keys and values that the tokens of each block attend to with separate queries."""

    keys_BGSHK: jax.Array
    values_BGSHK: jax.Array


class LayerTokens(NamedTuple):
    """A layer's view of the tokens of a segment, of a block, or one decoded token (T = 1).

    inputs_BTD: normalised inputs of the layer.
    queries_BTHK, keys_BTHK, values_BTHK: of its self-attention; queries and keys have unit length
    with `qk_norm`, otherwise queries are divided by sqrt(K).
    scale_H: its attention scale, used through its absolute value; ones without `qk_norm`.
    counts_B: (B,) int32, tokens that are not padding, or None: all are tokens.
    """

    inputs_BTD: jax.Array
    queries_BTHK: jax.Array
    keys_BTHK: jax.Array
    values_BTHK: jax.Array
    scale_H: jax.Array
    counts_B: jax.Array | None = None

    def real_BT(self) -> jax.Array:
        """Returns which positions are tokens and not padding, (B, T) bool."""
        rows, T = self.inputs_BTD.shape[:2]
        if self.counts_B is None:
            return jnp.ones((rows, T), bool)
        return jnp.arange(T) < self.counts_B[:, None]


class KeysValues(NamedTuple):
    """The default result of `take`."""

    keys_BTHK: jax.Array
    values_BTHK: jax.Array


class MemoryResult(NamedTuple):
    """The results of a memory for a segment.

    attended_BTHK: the result of attention and of the memory; (B, T, D) if `in_residual`.
    states: those from before each block.
    metrics: scalars; reports draw `memory_share`, the memory's part of the result.
    """

    attended_BTHK: jax.Array
    cache: Any
    states: BlockStates | None
    metrics: Metrics


def joined_states(states: Iterable[BlockStates | None]) -> BlockStates | None:
    present = list(filter(None, states))
    if len(present) < 2:
        return present[0] if present else None
    return BlockStates(*(jnp.concatenate(parts, axis=2) for parts in zip(*present)))


def mix_with_attention(
    mix_H: jax.Array, attended_BTHK: jax.Array, memory_BTHK: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Returns (1 - g) attention + g memory, g = sigmoid(mix) of each head, and `memory_share`."""
    gate_H1 = jax.nn.sigmoid(mix_H)[:, None]
    memory_BTHK = gate_H1 * memory_BTHK
    local_BTHK = (1 - gate_H1) * attended_BTHK
    mixed_BTHK = (local_BTHK + memory_BTHK).astype(attended_BTHK.dtype)
    return mixed_BTHK, {"memory_share": share_of_norm(memory_BTHK, local_BTHK)}


class LayerMemory(nnx.Module):
    """A memory of tokens beyond a layer's window, which changes with every block.

    Built as `memory(rngs, sizes, window)`, with the `Sizes` and W of its layer, it holds parameters
    only. Its cache is a named tuple of arrays, batch first, whose names end in their axes; clearing
    the state makes it empty, except for what its method `clear_state(empty)` keeps, if it has one.

    Class attributes:
        name: of its parameters and metrics, `layer3/<name>_grad_norm`; unique in a layer.
        num_states: S, vectors that tokens attend to with separate queries; 0 for none.
        position_bias: whether the layer's self-attention keeps its relative position bias.
        reads_after_tokens: whether tokens attend to the states after their self-attention, from its
            result, instead of in parallel.
        in_residual: whether its result, (B, T, D), is added to the layer's residual instead of
            changing the result of attention; it then has its own output matrix.
        replaces_attention: whether its layer has no attention (`TokenLayer`): for a `TokenMemory`
            in the residual, which gets the inputs alone.
        affine: whether tokens change its matrix S, `matrix_BHKK` of its cache, to A S + b, where A
            and b do not depend on S, and the rest of its cache depends on the last tokens only.
    """

    purpose = "recurrence"
    name: ClassVar[str]
    num_states: int = 0
    position_bias: bool = True
    reads_after_tokens: bool = False
    in_residual: bool = False
    replaces_attention: bool = False
    affine: bool = False

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        """Returns the cache of `rows` new documents; dtype: of the activations."""
        raise NotImplementedError

    def prepare(self, dtype: DTypeLike, key: jax.Array | None = None) -> Any:
        """Returns `weights`, from parameters and a dropout key (or None) alone, once a segment."""
        return None

    def read(
        self, cache: Any, tokens: LayerTokens, attended_BTHK: jax.Array, weights: Any
    ) -> tuple[jax.Array, Metrics]:
        """Returns the result of attention and of the memory, (B, T, H, K), and metrics.

        cache: from before the block; while decoding, the decoding form. tokens: of one block, or
        one token. attended_BTHK: from self-attention and the memories before.
        """
        return attended_BTHK, {}

    def states(self, cache: Any, dtype: DTypeLike, weights: Any) -> BlockStates | None:
        """Returns the states that the next block attends to (G = 1), or None."""
        return None

    def take(self, tokens: LayerTokens) -> Any:
        """Returns arrays (B, T, ...) for `update`, a named tuple, each token computed
        separately.
        """
        return KeysValues(tokens.keys_BTHK, tokens.values_BTHK)

    @property
    def has_own_take(self) -> bool:
        return type(self).take is not LayerMemory.take

    def update(self, cache: Any, taken: Any, weights: Any) -> tuple[Any, Metrics]:
        """Returns the cache after a block, and metrics; taken: of `take`, (B, W, ...)."""
        return cache, {}

    def flops_per_token(self, window: int) -> float:
        """Returns a token's operations, without attention to states, which the layer counts."""
        return 0.0

    # A segment.

    def __call__(
        self,
        cache: Any,
        tokens: LayerTokens,
        window: WindowCache,
        attended_BTHK: jax.Array,
        weights: Any,
        states: BlockStates | None = None,
    ) -> MemoryResult:
        """Runs over the blocks of a segment: each reads the cache after the block before.

        The default is a scan of `states`, `read` and `update`. A memory that can compute all blocks
        at once overrides it.

        Args:
            window: keys and values of the block before the segment.
            states: `states(cache)`, if already computed (one block).
        """
        graph, params = nnx.split(self, nnx.Param)

        def run_block(weights, cache, block):
            memory = nnx.merge(graph, weights["params"])
            tokens = LayerTokens(**block["tokens"], scale_H=weights["scale_H"])
            prepared, attended_BWHK = weights["prepared"], block["attended_BWHK"]
            states = memory.states(cache, attended_BWHK.dtype, prepared)
            like = tokens.inputs_BTD if memory.in_residual else attended_BWHK
            result = memory.read(cache, tokens, attended_BWHK, prepared)
            attended_BWHK, read = checked_result(memory, "read", like, result)
            result = memory.update(cache, memory.take(tokens), prepared)
            cache, updated = checked_result(memory, "update", cache, result)
            return cache, (attended_BWHK, states), joined_metrics(read, memory.name, updated)

        W = window.keys_BWHK.shape[1]
        of_tokens = {
            name: in_blocks(x_BT, W)
            for name, x_BT in tokens._asdict().items()
            if name not in ("scale_H", "counts_B")
        }
        blocks = {"tokens": of_tokens, "attended_BWHK": in_blocks(attended_BTHK, W)}
        shared = dict(params=nnx.to_pure_dict(params), prepared=weights, scale_H=tokens.scale_H)
        cache, (attended_BGWHK, states), metrics = scan_blocks(run_block, shared, cache, blocks)
        if states is not None:
            states = BlockStates(*(x_BG1SHK[:, :, 0] for x_BG1SHK in states))
        attended_BTHK = attended_BGWHK.reshape(*attended_BTHK.shape[:2], *attended_BGWHK.shape[3:])
        return MemoryResult(attended_BTHK, cache, states, metrics)

    # While a block is filled, a cache may have another form, the decoding form.

    def begin_decoding(self, cache: Any, dtype: DTypeLike) -> Any:
        return cache

    def end_decoding(self, cache: Any) -> Any:
        return cache

    def decoding_states(self, cache: Any, dtype: DTypeLike) -> BlockStates | None:
        return self.states(self.end_decoding(cache), dtype, self.prepare(dtype))

    def decode(
        self, cache: Any, token: LayerTokens, attended_B1HK: jax.Array, reads_B: jax.Array | bool
    ) -> tuple[jax.Array, Any]:
        """Returns `read` for one token, and the cache after it, unchanged outside `reads_B`."""
        weights = self.prepare(attended_B1HK.dtype)
        return self.read(cache, token, attended_B1HK, weights)[0], cache

    def update_after_block(
        self, cache: Any, before: WindowCache, block: Any, full_B: jax.Array
    ) -> Any:
        """Returns the decoding form after the elements in `full_B` completed a block.

        before: keys and values of the block before. block: `take` of the tokens of the block.
        """
        dtype = before.keys_BWHK.dtype
        after, _ = self.update(self.end_decoding(cache), block, self.prepare(dtype))
        # Recomputed values of the same cache may differ in the last bit.
        return select_rows(full_B, self.begin_decoding(after, dtype), cache)


class TokenMemory(LayerMemory):
    """A memory that changes with every token, which reads the result of its own update: `run`."""

    def run(
        self, cache: Any, tokens: LayerTokens, attended_BTHK: jax.Array, real_BT: jax.Array
    ) -> tuple[jax.Array, Any, Metrics]:
        """Returns the result of attention and of the memory, the cache after T tokens, and metrics.

        T is any number of tokens: of a segment, of a block, or 1. real_BT: bool, False for padding,
        which must not change the cache.
        """
        raise NotImplementedError

    def __call__(
        self,
        cache: Any,
        tokens: LayerTokens,
        window: WindowCache,
        attended_BTHK: jax.Array,
        weights: Any,
        states: BlockStates | None = None,
    ) -> MemoryResult:
        attended_BTHK, cache, metrics = self.run(cache, tokens, attended_BTHK, tokens.real_BT())
        return MemoryResult(attended_BTHK, cache, None, metrics)

    def decode(
        self, cache: Any, token: LayerTokens, attended_B1HK: jax.Array, reads_B: jax.Array | bool
    ) -> tuple[jax.Array, Any]:
        reads_B = jnp.broadcast_to(reads_B, attended_B1HK.shape[:1])
        attended_B1HK, after, _ = self.run(cache, token, attended_B1HK, reads_B[:, None])
        return attended_B1HK, select_rows(reads_B, after, cache)

    def update_after_block(
        self, cache: Any, before: WindowCache, block: Any, full_B: jax.Array
    ) -> Any:
        return cache
