"""A layer without attention that reads its current state and those of earlier segments."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, CountFrom0, OneOf, configurable
from brt.models.block_recurrent.delta_layers import ConvolvedCache, ConvolvedMemory, GatedDeltaLayer
from brt.models.block_recurrent.gated_delta import blocks_first, blocks_joined
from brt.models.block_recurrent.memory import LayerTokens, Metrics, TokenMemory
from brt.models.caches import select_rows
from brt.models.counts import matrix_size
from brt.models.layers.initializers import DENSE, parameter
from brt.models.ops import projected
from brt.models.sizes import Sizes

KEPT = ("last", "merged")


class Segments(NamedTuple):
    """States of Z segments, sums of keys, at least float32, and tokens, int32 (0: empty)."""

    states_BZHKK: jax.Array
    sums_BZHK: jax.Array
    tokens_BZ: jax.Array


class CachedStatesCache(NamedTuple):
    """memory: of the current segment. sum_BHK, tokens_B: the sum of its keys, its tokens."""

    memory: ConvolvedCache
    segments: Segments
    sum_BHK: jax.Array
    tokens_B: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class CachedStates(TokenMemory):
    """sum_i g_i q S_i over the current state and those at the ends of earlier segments.

    The gates g are the softmax of u m_i, u = W_u x, where m_i is the mean of segment i's keys so
    far. A segment is `every` windows.

    Args:
        memory: a layer of `delta_layers`, with its convolution, output norm and gate.
        most: states that are kept, without the current one.
        every: windows of a segment.
        kept: "last": the state continues, and the last `most` copies are kept; "merged": every
            segment starts with an empty state, and state n of `most` is the sum of 2^n segments, as
            in a Fenwick tree, the last of all earlier ones.
        chosen: kept states that a head reads, those with the largest gates; 0: all.

    Source: Memory Caching, Behrouz et al. 2026, arXiv:2602.24281: the gated residual memory, which
    for matrices is also the soup, and the sparse choice (`chosen`). "merged": Guo et al. 2025,
    arXiv:2506.04761. Differences: docs/reproduction.md.
    """

    name = "cached_states"
    in_residual = True
    replaces_attention = True

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        memory: Callable[..., ConvolvedMemory] = GatedDeltaLayer,
        most: Count = 8,
        every: Count = 1,
        kept: Annotated[str, OneOf(KEPT)] = "last",
        chosen: CountFrom0 = 0,
    ):
        if chosen > most:
            raise ValueError(f"CachedStates.chosen = {chosen} exceeds CachedStates.most = {most}.")
        self.sizes, self.window, self.every = sizes, window, every
        self.most, self.merged, self.chosen = most, kept == "merged", chosen
        self.memory = memory(rngs, sizes, window)
        self.gate_queries_DA = parameter(rngs, DENSE, sizes.width, sizes.attention_size)

    def init_cache(self, rows: int, dtype: DTypeLike) -> CachedStatesCache:
        H, K, Z = self.sizes.num_heads, self.sizes.head_size, self.most
        memory, kind = self.memory.init_cache(rows, dtype), jnp.promote_types(dtype, jnp.float32)
        segments = Segments(
            jnp.zeros((rows, Z, H, K, K), kind),
            jnp.zeros((rows, Z, H, K), kind),
            jnp.zeros((rows, Z), jnp.int32),
        )
        zeros_BHK = jnp.zeros((rows, H, K), kind)
        return CachedStatesCache(memory, segments, zeros_BHK, jnp.zeros(rows, jnp.int32))

    def run(
        self,
        cache: CachedStatesCache,
        tokens: LayerTokens,
        attended_BTHK: jax.Array,
        real_BT: jax.Array,
    ) -> tuple[jax.Array, CachedStatesCache, Metrics]:
        """Runs block by block; T > 1 tokens start at the start of a window."""
        x_BTD, T = tokens.inputs_BTD, tokens.inputs_BTD.shape[1]
        heads, carried = self.memory.heads(cache.memory, x_BTD, real_BT)
        u_BTHK = projected(x_BTD, self.gate_queries_DA[...]).reshape(heads[0].shape)
        cache = cache._replace(memory=ConvolvedCache(cache.memory.matrix_BHKK, *carried))

        def block(cache, inputs):
            *heads, u_BWHK, x_BWD, real_BW = inputs
            memory = cache.memory
            rule = memory.matrix_BHKK, tuple(heads), x_BWD, real_BW
            matrix_BHKK, own_BWHK = self.memory.rule(*rule)
            k_BWHK = jnp.where(real_BW[..., None, None], heads[1], 0)
            gates_BWHZ = self.gates(cache, u_BWHK, k_BWHK, real_BW)
            queries = heads[0], cache.segments.states_BZHKK, gates_BWHZ[..., 1:]
            read_BWHK = jnp.einsum("BWHK,BZHKV,BWHZ->BWHV", *queries)
            read_BWHK = read_BWHK + gates_BWHZ[..., :1] * own_BWHK
            after = cache._replace(
                memory=memory._replace(matrix_BHKK=matrix_BHKK),
                sum_BHK=cache.sum_BHK + k_BWHK.sum(axis=1),
                tokens_B=cache.tokens_B + real_BW.sum(axis=1, dtype=jnp.int32),
            )
            full_B = after.tokens_B == self.every * self.window
            after = select_rows(full_B, self.after_segment(after), after)
            return after, (read_BWHK, jnp.mean(1 - gates_BWHZ[..., 0]))

        inputs = blocks_first((*heads, u_BTHK, x_BTD, real_BT), min(T, self.window))
        cache, (read_GBWHK, cached_G) = jax.lax.scan(block, cache, inputs)
        y_BTD = self.memory.output(blocks_joined(read_GBWHK, T), x_BTD)
        return y_BTD, cache, {"cached_share": jnp.mean(cached_G)}

    def gates(
        self, cache: CachedStatesCache, u_BWHK: jax.Array, k_BWHK: jax.Array, real_BW: jax.Array
    ) -> jax.Array:
        """Returns the gates of the current state, then of the segments', (B, W, H, 1 + Z)."""
        sums_BWHK = cache.sum_BHK[:, None] + jnp.cumsum(k_BWHK, axis=1)
        tokens_BW = cache.tokens_B[:, None] + jnp.cumsum(real_BW, axis=1)
        own_BWHK = sums_BWHK / jnp.maximum(tokens_BW, 1)[..., None, None]
        own_BWH1 = jnp.sum(u_BWHK * own_BWHK, axis=-1, keepdims=True)
        _, sums_BZHK, tokens_BZ = cache.segments
        means_BZHK = sums_BZHK / jnp.maximum(tokens_BZ, 1)[..., None, None]
        scores_BWHZ = jnp.einsum("BWHK,BZHK->BWHZ", u_BWHK, means_BZHK)
        scores_BWHZ = jnp.where(tokens_BZ[:, None, None] > 0, scores_BWHZ, -jnp.inf)
        if self.chosen:
            least_BWH1 = jax.lax.top_k(scores_BWHZ, self.chosen)[0][..., -1:]
            scores_BWHZ = jnp.where(scores_BWHZ >= least_BWH1, scores_BWHZ, -jnp.inf)
        return jax.nn.softmax(jnp.concatenate([own_BWH1, scores_BWHZ], axis=-1), axis=-1)

    def after_segment(self, cache: CachedStatesCache) -> CachedStatesCache:
        matrix_BHKK = cache.memory.matrix_BHKK
        new = Segments(matrix_BHKK[:, None], cache.sum_BHK[:, None], cache.tokens_B[:, None])
        if self.merged:
            segments, matrix_BHKK = merged(cache.segments, new), jnp.zeros_like(matrix_BHKK)
        else:
            segments = jax.tree.map(_shifted, cache.segments, new)
        memory = cache.memory._replace(matrix_BHKK=matrix_BHKK)
        zeros = jnp.zeros_like(cache.sum_BHK), jnp.zeros_like(cache.tokens_B)
        return CachedStatesCache(memory, segments, *zeros)

    def flops_per_token(self, window: int) -> float:
        A, K, Z = self.sizes.attention_size, self.sizes.head_size, self.most
        read = 2.0 * A * (K * Z + 2 * Z + 1)
        own = 2.0 * matrix_size(self, without=("memory",))
        return self.memory.flops_per_token(window) + own + read


def _shifted(old_BZ: jax.Array, new_B1: jax.Array) -> jax.Array:
    return jnp.concatenate([old_BZ[:, 1:], new_B1], axis=1)


def merged(segments: Segments, new: Segments) -> Segments:
    """Adds a segment (Z = 1) to sums of 1, 2, 4, ... segments, as in a binary counter.

    Full levels before the first empty one move into it; the last level is never emptied.
    """
    Z, levels, carry = segments.tokens_BZ.shape[1], [], new
    waits_B = jnp.ones(len(new.tokens_BZ), bool)
    for level in range(Z):
        old = jax.tree.map(lambda x_BZ, z=level: x_BZ[:, z : z + 1], segments)
        carry = select_rows(waits_B, jax.tree.map(jnp.add, carry, old), carry)
        stays_B = (old.tokens_BZ[:, 0] == 0) | (level == Z - 1)
        nothing = jax.tree.map(jnp.zeros_like, old)
        levels.append(select_rows(waits_B, select_rows(stays_B, carry, nothing), old))
        waits_B = waits_B & ~stays_B
    return jax.tree.map(lambda *x_B1: jnp.concatenate(x_B1, axis=1), *levels)
