"""External memory: earlier keys and values, which the queries of attention search.

A ring buffer for each batch element and head, without gradients. A block reads what earlier blocks
wrote. Segments of several blocks are one product with the ring and the segment's own keys, which
equals the published model block for block.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, configurable
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerMemory,
    LayerTokens,
    MemoryResult,
    Metrics,
    mix_with_attention,
)
from brt.models.caches import WindowCache
from brt.models.fast.attention import attend
from brt.models.layers.initializers import parameter
from brt.models.ops import HIDDEN, at_least_float32
from brt.models.sizes import Sizes

SEARCHES = ("exact", "bucketed", "dense")
WINDOWS = (
    "the window in tokens (BlockRecurrentTransformer.window or SlidingLanguageModel.window; around "
    "windows of a pretrained backbone, its positions)"
)


class RingCache(NamedTuple):
    """The external memory of a layer, the same in both forms. Empty: zeros.

    keys_BMHK, values_BMHK: (B, M, H, K) in the activations' type; token t is in slot t mod M.
    written_B: (B,) int32, tokens of the document written so far, a multiple of W.
    """

    keys_BMHK: jax.Array
    values_BMHK: jax.Array
    written_B: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class ExternalMemory(LayerMemory):
    """A memory that each query searches with the layer's attention scale, without position bias.

    An empty slot has a zero key and value, is found last, and is attended to like any other: in a
    document's first block the memory returns zero. No dropout.

    Args:
        size: M in tokens, a multiple of the window; the oldest are overwritten.
        neighbours: k, slots that each query and head attends to.
        search: "exact", the k largest products; "bucketed", as in the released code, the largest of
            each of k groups of slots (index modulo k), 63 % of the k best of random keys; "dense",
            all slots.

    Source: Block-Recurrent, section 4.5; Memorizing Transformers, Wu et al. 2022, arXiv:2203.08913,
    section 3.
    """

    name = "memory"
    position_bias = False

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        size: Count = 65_536,
        neighbours: Count = 128,
        search: Annotated[str, OneOf(SEARCHES)] = "exact",
    ):
        if size < window or size % window:
            raise ValueError(
                f"ExternalMemory.size = {size} must be a multiple of {window}, {WINDOWS}: whole "
                "blocks are written."
            )
        if search != "dense" and neighbours > size:
            raise ValueError(
                f"ExternalMemory.neighbours = {neighbours} must be at most "
                f"ExternalMemory.size = {size}."
            )
        if search == "bucketed" and window % neighbours:
            raise ValueError(
                f"ExternalMemory.neighbours = {neighbours} must divide {window}, {WINDOWS}, where "
                'ExternalMemory.search = "bucketed".'
            )
        self.sizes = sizes
        self.window = window
        self.size = size
        self.search = search
        self.neighbours = size if search == "dense" else neighbours
        self.mix_H = parameter(rngs, jax.nn.initializers.zeros, sizes.num_heads)

    # The interface of a layer's memory.

    def init_cache(self, rows: int, dtype: DTypeLike) -> RingCache:
        shape = rows, self.size, self.sizes.num_heads, self.sizes.head_size
        return RingCache(
            jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(rows, jnp.int32)
        )

    def read(
        self,
        cache: RingCache,
        tokens: LayerTokens,
        attended_BTHK: jax.Array,
        weights: None = None,
    ) -> tuple[jax.Array, Metrics]:
        memory_BTHK = self.search_memory(cache, tokens)
        return mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)

    def update(
        self, cache: RingCache, taken: KeysValues, weights: None = None
    ) -> tuple[RingCache, Metrics]:
        return self.write(cache, *taken), {}

    def __call__(
        self,
        cache: RingCache,
        tokens: LayerTokens,
        window: WindowCache,
        attended_BTHK: jax.Array,
        weights: None = None,
        states: BlockStates | None = None,
    ) -> MemoryResult:
        attended_BTHK, metrics = self.read(cache, tokens, attended_BTHK, weights)
        after = self.write(cache, tokens.keys_BTHK, tokens.values_BTHK)
        return MemoryResult(attended_BTHK, after, None, metrics)

    def update_after_block(
        self, cache: RingCache, before: WindowCache, block: KeysValues, full_B: jax.Array
    ) -> RingCache:
        # The default would copy the whole ring.
        return self.write(cache, *block, full_B)

    def flops_per_token(self, window: int) -> float:
        A = self.sizes.attention_size
        searched = self.size if self.search != "dense" else 0
        return 2.0 * A * searched + 4 * A * self.neighbours

    # Search and writing.

    def search_memory(self, cache: RingCache, tokens: LayerTokens) -> jax.Array:
        """Returns the retrieved values for whole blocks, or for one token, (B, T, H, K).

        Gradients reach the queries and the scale only.
        """
        q_BTHK, k_BTHK, v_BTHK = tokens.queries_BTHK, tokens.keys_BTHK, tokens.values_BTHK
        (B, T, H, K), scale_H = q_BTHK.shape, tokens.scale_H
        # No block of the segment reads its last block.
        candidates = (cache.keys_BMHK, k_BTHK), (cache.values_BMHK, v_BTHK)
        k_BJHK, v_BJHK = (
            jax.lax.stop_gradient(jnp.concatenate([ring, x[:, : -self.window]], axis=1))
            for ring, x in candidates
        )
        blocks = max(T // self.window, 1)
        visible_BGJ, empty_BJ = self._visible(cache.written_B, blocks, k_BJHK.shape[1])
        if self.search == "dense":
            q_BGWHK = q_BTHK.reshape(B, blocks, -1, H, K)
            mask = None
            if visible_BGJ is not None:
                mask = jnp.where(visible_BGJ, 0.0, HIDDEN)[:, :, None, None]
            memory_BGWHK = attend(q_BGWHK, k_BJHK[:, None], v_BJHK[:, None], scale_H, mask)
            return memory_BGWHK.reshape(B, T, H, K)

        still_BTHK = jax.lax.stop_gradient(q_BTHK)
        scores_BHTJ = jnp.einsum(
            "BTHK,BJHK->BHTJ",
            still_BTHK,
            k_BJHK,
            preferred_element_type=at_least_float32(q_BTHK).dtype,
        )
        scores_BHTJ = jnp.where(empty_BJ[:, None, None], HIDDEN, scores_BHTJ)
        if visible_BGJ is not None:
            visible_BTJ = jnp.repeat(visible_BGJ, T // blocks, axis=1)
            scores_BHTJ = jnp.where(visible_BTJ[:, None], scores_BHTJ, -jnp.inf)
        picks_BTPH = jnp.moveaxis(self._best(scores_BHTJ), 1, 3)
        k_BTPHK, v_BTPHK = _taken(k_BJHK, picks_BTPH), _taken(v_BJHK, picks_BTPH)
        return attend(q_BTHK[:, :, None], k_BTPHK, v_BTPHK, scale_H)[:, :, 0]

    def write(
        self,
        cache: RingCache,
        k_BTHK: jax.Array,
        v_BTHK: jax.Array,
        rows_B: jax.Array | None = None,
    ) -> RingCache:
        """Returns the cache with whole blocks written over the oldest slots.

        rows_B: (B,) bool, batch elements that write; None: all.
        """
        T, M = k_BTHK.shape[1], self.size
        slots_BT = (cache.written_B[:, None] + jnp.arange(T)) % M
        if rows_B is not None:
            slots_BT = jnp.where(rows_B[:, None], slots_BT, M)  # beyond the end: dropped
        put = jax.vmap(lambda x_MHK, slots_T, x_THK: x_MHK.at[slots_T].set(x_THK, mode="drop"))
        # Only the end of a segment longer than the memory stays.
        latest = [jax.lax.stop_gradient(x[:, -M:]) for x in (slots_BT, k_BTHK, v_BTHK)]
        return cache._replace(
            keys_BMHK=put(cache.keys_BMHK, latest[0], latest[1]),
            values_BMHK=put(cache.values_BMHK, latest[0], latest[2]),
            written_B=cache.written_B + T * jnp.asarray(True if rows_B is None else rows_B),
        )

    def _visible(self, written_B, blocks, num_keys):
        """Returns keys visible to each block, (B, G, J), or None for all; and empty ones, (B, J).

        Keys are the ring's slots, then the segment's tokens; each block sees M keys.
        """
        M = self.size
        slots, tokens = jnp.arange(M), jnp.arange(num_keys - M)
        empty_BJ = jnp.pad(slots >= written_B[:, None], ((0, 0), (0, num_keys - M)))
        if blocks == 1:
            return None, empty_BJ
        before_G1 = jnp.arange(blocks)[:, None] * self.window  # tokens written since
        age_BM = (slots - written_B[:, None]) % M
        in_ring_BGM = age_BM[:, None] >= before_G1
        in_segment_GT = (tokens < before_G1) & (tokens >= before_G1 - M)
        in_segment_BGT = jnp.broadcast_to(in_segment_GT, (len(written_B), *in_segment_GT.shape))
        return jnp.concatenate([in_ring_BGM, in_segment_BGT], axis=2), empty_BJ

    def _best(self, scores_BHTJ):
        k = self.neighbours
        if self.search == "exact":
            return jax.lax.top_k(scores_BHTJ, k)[1]
        # Token t of a segment goes to slot written + t, and k divides `written`, so its index among
        # the candidates is in the group of its slot.
        groups = scores_BHTJ.reshape(*scores_BHTJ.shape[:3], -1, k)
        return jnp.argmax(groups, axis=3) * k + jnp.arange(k)


def _taken(x_BJHK, picks_BTPH):
    def of_head(x_JK, picks_TP):
        return x_JK.at[picks_TP].get(mode="promise_in_bounds")

    return jax.vmap(jax.vmap(of_head, (1, 2), 2))(x_BJHK, picks_BTPH)
