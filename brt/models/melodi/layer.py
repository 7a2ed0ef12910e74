"""One layer of MELODI: a window attends to memories only, and leaves compressed vectors behind.

U summary tokens after a window of W tokens are mixed into a short-term memory of S vectors, which
the next window attends to, and in long-term layers into I vectors for a first-in, first-out memory
of M vectors. X = W + U, R summary tokens of a segment.

Source: MELODI, Chen et al. 2024, arXiv:2410.03156, and its released code.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from brt.models.axis_rules import constrain
from brt.models.counts import matrix_size
from brt.models.fast.attention import attend
from brt.models.fast.block_loop import scan_blocks
from brt.models.fast.products import matmul
from brt.models.layers.dropout import dropout
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm, share_of_norm
from brt.models.layers.positions_t5 import RelativeBias, t5_buckets
from brt.models.model import Metrics
from brt.models.ops import (
    HIDDEN,
    at_least_float32,
    dropped,
    in_blocks,
    keep_mask,
    repeated_mask,
    unit_heads,
)
from brt.models.sizes import Sizes


class MelodiSizes(NamedTuple):
    """W, U, S, M and I in vectors; M = 0: no long-term memory."""

    window: int
    summary: int
    short: int
    long: int
    increment: int


class MelodiCache(NamedTuple):
    """Memories of a layer before any norm, (B, S, D) and (B, M, D) or None. Empty: zeros."""

    short_BSD: jax.Array
    long_BMD: jax.Array | None


class KeysValues(NamedTuple):
    """Keys of unit length and values, (B, J, H, K)."""

    keys_BJHK: jax.Array
    values_BJHK: jax.Array


class TokenMixing(nnx.Module):
    """A linear map over positions, the same for every feature: X positions to I.

    residual: normalise tokens and summary tokens separately, and add the summary tokens, U = I.
    """

    purpose = "recurrence"

    def __init__(
        self, rngs: nnx.Rngs, sizes: MelodiSizes, width: int, outputs: int, residual: bool
    ):
        if residual:
            self.tokens_norm = RMSNorm(rngs, width)
            self.summary_norm = RMSNorm(rngs, width)
        self.residual = residual
        self.window = sizes.window
        X = sizes.window + sizes.summary
        self.matrix_XI = parameter(rngs, DENSE, X, outputs, multiplied=False)
        self.bias_I = parameter(rngs, jax.nn.initializers.zeros, outputs)

    def __call__(self, tokens_BWD: jax.Array, summary_BUD: jax.Array) -> jax.Array:
        dtype = tokens_BWD.dtype
        parts = [tokens_BWD, summary_BUD]
        if self.residual:
            parts = [self.tokens_norm(tokens_BWD), self.summary_norm(summary_BUD)]
        matrix_XI, bias_I = self.matrix_XI[...].astype(dtype), self.bias_I[...].astype(dtype)
        x_BXD = jnp.concatenate(parts, axis=1)
        y_BID = jnp.einsum("BXD,XI->BID", x_BXD, matrix_XI) + bias_I[:, None]
        return y_BID + summary_BUD if self.residual else y_BID


class LayerDropout(NamedTuple):
    """Dropout masks of a segment, repeated along the positions; key: for each window's masks."""

    tokens_PD: jax.Array | None = None
    summary_PD: jax.Array | None = None
    long_PD: jax.Array | None = None
    output_PD: jax.Array | None = None
    key: jax.Array | None = None


class MelodiLayer(nnx.Module):
    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        memory: MelodiSizes,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ):
        D, A, H = sizes.width, sizes.attention_size, sizes.num_heads
        self.sizes = sizes
        self.memory = memory
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.attention_norm = RMSNorm(rngs, D)
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.attention_scale_H = parameter(rngs, jax.nn.initializers.ones, H)
        self.relative_bias = RelativeBias(rngs, H)
        self.output_AD = parameter(rngs, DENSE, A, D)
        if sizes.feed_forward_size:
            self.feed_forward_norm = RMSNorm(rngs, D)
            self.feed_forward = FeedForward(rngs, D, sizes.feed_forward_size, biases=True)
        residual = memory.short == memory.summary
        self.summary_mixing = TokenMixing(rngs, memory, D, memory.summary, True)
        self.short_mixing = TokenMixing(rngs, memory, D, memory.short, residual)
        if memory.long:
            self.long_mixing = TokenMixing(rngs, memory, D, memory.increment, False)
            self.gate_HK = parameter(
                rngs, truncated, H, sizes.head_size, purpose="recurrence", multiplied=False
            )

    def init_cache(self, rows: int, dtype: DTypeLike) -> MelodiCache:
        D, memory = self.sizes.width, self.memory
        long_BMD = jnp.zeros((rows, memory.long, D), dtype) if memory.long else None
        return MelodiCache(jnp.zeros((rows, memory.short, D), dtype), long_BMD)

    # Parts that segments and decoding share.

    def queries(self, normed_BTD: jax.Array) -> jax.Array:
        return unit_heads(self._heads(normed_BTD, self.queries_DA))

    def keys_values(self, normed_BTD: jax.Array) -> KeysValues:
        keys_BTHK = unit_heads(self._heads(normed_BTD, self.keys_DA))
        return KeysValues(keys_BTHK, self._heads(normed_BTD, self.values_DA))

    def _heads(self, x_BTD, matrix_DA):
        x_BTA = matmul(x_BTD, matrix_DA[...])
        return constrain(x_BTA.reshape(*x_BTA.shape[:2], self.sizes.num_heads, -1), "BTHK")

    def bias(self, queries: slice, keys: int) -> jax.Array:
        """Returns bias and causal mask, (H, Q, J), with the memory before the window.

        queries: positions among W + U. keys: J positions, S of the memory and then the window's.
        """
        rows = np.arange(self.memory.window + self.memory.summary)[queries]
        distance_QJ = self.memory.short + rows[:, None] - np.arange(keys)
        table_HR = self.relative_bias.table_HR[...] * jnp.abs(self.attention_scale_H[...])[:, None]
        buckets = t5_buckets(distance_QJ)
        return jnp.where(distance_QJ >= 1, table_HR[:, buckets], HIDDEN)

    def attend(
        self,
        q_BTHK: jax.Array,
        seen: list[KeysValues],
        long: KeysValues | None,
        bias_HTJ: jax.Array,
        masks: tuple[jax.Array | None, jax.Array | None] = (None, None),
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns attention to memory and window, mixed with the long-term memory, and its
        share.
        """
        scale_H = self.attention_scale_H[...]
        k_BJHK, v_BJHK = (jnp.concatenate(parts, axis=1) for parts in zip(*seen))
        attended_BTHK = attend(q_BTHK, k_BJHK, v_BJHK, scale_H, bias_HTJ, masks[0])
        if long is None:
            return attended_BTHK, None
        gate_HK = jax.nn.sigmoid(self.gate_HK[...]).astype(q_BTHK.dtype)
        local_BTHK = gate_HK * attended_BTHK
        long_BTHK = (1 - gate_HK) * attend(q_BTHK, *long, scale_H, None, masks[1])
        return local_BTHK + long_BTHK, share_of_norm(long_BTHK, local_BTHK)

    def finish(
        self, x_BTD: jax.Array, attended_BTHK: jax.Array, mask_PD: jax.Array | None = None
    ) -> jax.Array:
        attended_BTA = attended_BTHK.reshape(*x_BTD.shape[:2], self.sizes.attention_size)
        x_BTD = x_BTD + matmul(attended_BTA, self.output_AD[...])
        if not self.sizes.feed_forward_size:
            return x_BTD
        normed_BTD = self.feed_forward_norm(x_BTD)
        return x_BTD + self.feed_forward(normed_BTD, mask_PD=mask_PD)

    def part(
        self, x_BTD: jax.Array, positions: slice, seen: list[KeysValues], long: KeysValues | None
    ) -> tuple[jax.Array, KeysValues]:
        """Runs on part of a window after the keys `seen`; returns outputs, and keys and values."""
        normed_BTD = self.attention_norm(x_BTD)
        own = self.keys_values(normed_BTD)
        seen = [*seen, own]
        bias_HTJ = self.bias(positions, sum(part.keys_BJHK.shape[1] for part in seen))
        attended_BTHK, _ = self.attend(self.queries(normed_BTD), seen, long, bias_HTJ)
        return self.finish(x_BTD, attended_BTHK), own

    def after_window(
        self, cache: MelodiCache, tokens_BWD: jax.Array, summary_BUD: jax.Array
    ) -> tuple[MelodiCache, jax.Array, jax.Array | None]:
        """Returns the next memories, the next layer's summary tokens, and the increment."""
        short_BSD = self.short_mixing(tokens_BWD, summary_BUD)
        long_BMD, new_BID = cache.long_BMD, None
        if long_BMD is not None:
            new_BID = self.long_mixing(tokens_BWD, summary_BUD)
            long_BMD = jnp.concatenate([long_BMD, new_BID], axis=1)[:, self.memory.increment :]
        next_BUD = self.summary_mixing(tokens_BWD, summary_BUD)
        return MelodiCache(short_BSD, long_BMD), next_BUD, new_BID

    # A segment.

    def __call__(
        self, x_BTD: jax.Array, summary_BRD: jax.Array, cache: MelodiCache, key: Any = None
    ) -> tuple[jax.Array, jax.Array, MelodiCache, Metrics]:
        """Runs on one segment, window after window.

        summary_BRD: summary tokens of all windows, (B, T / W * U, D).

        Returns:
            Tokens and summary tokens for the next layer, the cache after the segment, metrics.
        """
        W, U = self.memory.window, self.memory.summary
        B, T, D = x_BTD.shape
        G = T // W
        masks = self._masks(key, T, x_BTD.dtype)
        with jax.named_scope("attention"):
            normed_BTD = dropped(self.attention_norm(x_BTD), masks.tokens_PD)
            summary_normed_BRD = dropped(self.attention_norm(summary_BRD), masks.summary_PD)

        def by_window(tokens_BT, summary_BR):
            return jnp.concatenate([in_blocks(tokens_BT, W), in_blocks(summary_BR, U)], axis=2)

        # All windows at once; only the memories are sequential.
        heads = map(
            by_window,
            (self.queries(normed_BTD), *self.keys_values(normed_BTD)),
            (self.queries(summary_normed_BRD), *self.keys_values(summary_normed_BRD)),
        )
        inputs = by_window(x_BTD, summary_BRD), *heads
        bias_HXJ = self.bias(slice(None), self.memory.short + W + U)
        with jax.named_scope("memory"):
            long = None
            if cache.long_BMD is not None:
                normed_BMD = dropped(self.attention_norm(cache.long_BMD), masks.long_PD)
                long = self.keys_values(normed_BMD)

        graph, params = nnx.split(self, nnx.Param)

        def step(weights, carry, window):
            layer = nnx.merge(graph, weights["params"])
            return layer.window(carry, window, weights["bias_HXJ"], masks)

        # The axes at the end of a name decide its sharding.
        weights = {"params": nnx.to_pure_dict(params), "bias_HXJ": bias_HXJ}
        inputs = *inputs, jnp.broadcast_to(jnp.arange(G), (B, G))
        (cache, _), (tokens, summaries), metrics = scan_blocks(step, weights, (cache, long), inputs)
        norm = jnp.sqrt(jnp.mean(jnp.square(at_least_float32(cache.short_BSD))))
        metrics = metrics | {"state_norm": norm}
        return tokens.reshape(B, T, D), summaries.reshape(B, G * U, D), cache, metrics

    def window(
        self, carry: tuple, inputs: tuple[jax.Array, ...], bias_HXJ: jax.Array, masks: LayerDropout
    ) -> tuple[tuple, tuple, Metrics]:
        """Runs on one window and its summary tokens: a step of the loop over windows.

        carry: the cache, and keys and values of the long-term memory, or None. inputs: (B, X, D),
        queries, keys and values (B, X, H, K), and the number of the window (B,), for its dropout.
        Returns the next carry; outputs, the next layer's summary tokens, metrics.
        """
        (cache, long), (x_BXD, q_BXHK, k_BXHK, v_BXHK, index_B) = carry, inputs
        W, I = self.memory.window, self.memory.increment
        keys: list[jax.Array | None] = [None] * 4
        if masks.key is not None:
            keys = list(jax.random.split(jax.random.fold_in(masks.key, index_B[0]), 4))
        normed_BSD = dropout(self.attention_norm(cache.short_BSD), self.dropout, keys[0])
        short = self.keys_values(normed_BSD)
        weights_masks = self._weights_masks(keys[1:3], bias_HXJ.shape[1:])
        seen = [short, KeysValues(k_BXHK, v_BXHK)]
        attended_BXHK, share = self.attend(q_BXHK, seen, long, bias_HXJ, weights_masks)
        z_BXD = self.finish(x_BXD, attended_BXHK, masks.output_PD)
        tokens_BWD, summary_BUD = z_BXD[:, :W], z_BXD[:, W:]
        cache, next_BUD, new_BID = self.after_window(cache, tokens_BWD, summary_BUD)
        if new_BID is not None and long is not None:
            normed_BID = dropout(self.attention_norm(new_BID), self.dropout, keys[3])
            new = self.keys_values(normed_BID)
            long = KeysValues(*(jnp.concatenate(pair, axis=1)[:, I:] for pair in zip(long, new)))
        metrics = {} if share is None else {"memory_share": share}
        return (cache, long), (tokens_BWD, next_BUD), metrics

    def _masks(self, key, tokens, dtype):
        if key is None:
            return LayerDropout()
        *keys, window_key = jax.random.split(key, 5)
        W, U, D = self.memory.window, self.memory.summary, self.sizes.width
        lengths = tokens, tokens // W * U, self.memory.long or 1, W + U
        masks = (
            repeated_mask(own, self.dropout, length, D, dtype) for own, length in zip(keys, lengths)
        )
        return LayerDropout._make((*masks, window_key))

    def _weights_masks(self, keys, shape_XJ):
        X, J = shape_XJ
        H, M = self.sizes.num_heads, self.memory.long
        kept = jnp.float32
        local = keep_mask(keys[0], self.attention_dropout, (H, X, J), kept)
        return local, keep_mask(keys[1], self.attention_dropout, (H, X, M), kept) if M else None

    def flops_per_token(self) -> float:
        W, U, S, M, I = self.memory
        D, A = self.sizes.width, self.sizes.attention_size
        positions = (W + U) / W
        each = 2 * matrix_size(self) + 4 * A * (S + (W + U) / 2 + M)
        memories = 4 * D * A * (S + (I if M else 0)) / W
        mixing = 2 * D * positions * (U + S + (I if M else 0))
        return positions * each + memories + mixing


def truncated(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Draws N(0, 0.25 ** 2) cut at two deviations, without rescaling (released code)."""
    return 0.25 * jax.random.truncated_normal(key, -2, 2, shape, dtype)
