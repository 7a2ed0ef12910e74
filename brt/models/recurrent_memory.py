"""The Recurrent Memory Transformer: memory tokens around each segment of a Transformer-XL.

    logits_BTV, caches = model(tokens_BT, caches)

Between segments S vectors are carried, and with M > 0 the cache of hidden states too. Letters as
in `brt.models` and `brt/models/memory_tokens.py`.
"""

import math

import gin
import jax
import jax.numpy as jnp

from brt.models.caches import select_rows
from brt.models.counts import matrix_size
from brt.models.hidden_cache import HiddenCache, close_segment, open_segment
from brt.models.layers.initializers import parameter
from brt.models.memory_tokens import MemoryCache, segment_mask, visible_positions
from brt.models.transformer_xl import TransformerXL

INITIAL_ROWS = ("independent", "identical")


@gin.configurable(denylist=["rngs"])
class RecurrentMemoryTransformer(TransformerXL):
    """RMT, the Memory Transformer, and both with a cache of hidden states (Tr-XL + RMT).

    The layers, their sizes and their cache are bound as `TransformerXL.width` and so on.

    Args:
        num_memory: S, memory tokens; with 0 this is Transformer-XL.
        memory_at_end: whether the memory stands at both ends of a segment. At its start alone
            (the Memory Transformer) it cannot see the tokens, so it carries nothing of them.
        read_memory_from_cache: whether memory tokens see the cache of hidden states.
        initial_rows: the learned first memory begins as S "independent" draws of N(0, 1), or
            as S times the same ("identical", the released code).
        auxiliary_weight: of a loss by which every new memory vector predicts one special token,
            an entry of the vocabulary after the last (appendix A.5).
        allow_long_memory: whether there may be as many memory tokens as a segment has tokens,
            which then can be copied whole, as in the paper's algorithmic tasks.
        transformer_xl: arguments of `TransformerXL`, which gin binds by its name.

    Raises:
        ValueError: negative counts; a setting of the layers that leaves memory tokens without
            a place or out of sight; from `for_segments`, segments that are too short.

    Source: RMT, section 3; for what it leaves open, the released code.
    """

    def __init__(
        self,
        rngs,
        num_memory: int = gin.REQUIRED,
        memory_at_end: bool = True,
        read_memory_from_cache: bool = False,
        initial_rows: str = "independent",
        auxiliary_weight: float = 0.0,
        allow_long_memory: bool = False,
        **transformer_xl,
    ):
        if num_memory < 0 or auxiliary_weight < 0:
            raise ValueError(
                f"RecurrentMemoryTransformer.num_memory = {num_memory} and auxiliary_weight = "
                f"{auxiliary_weight} must not be negative."
            )
        if initial_rows not in INITIAL_ROWS:
            raise ValueError(
                f"RecurrentMemoryTransformer.initial_rows = {initial_rows!r}: choose one of "
                f"{INITIAL_ROWS}."
            )
        self.special_tokens = int(num_memory > 0 and auxiliary_weight > 0)
        super().__init__(rngs, **transformer_xl)
        if num_memory and (self.encoding != "relative" or self.same_length):
            raise ValueError(
                "RecurrentMemoryTransformer places its memory tokens by relative positions and "
                'shows them to every token: bind TransformerXL.encoding = "relative" and '
                "same_length = False."
            )
        self.num_memory, self.memory_at_end = num_memory, memory_at_end
        self.read_memory_from_cache = read_memory_from_cache
        self.auxiliary_weight, self.allow_long_memory = auxiliary_weight, allow_long_memory
        if num_memory:
            rows = num_memory if initial_rows == "independent" else 1
            self.memory_SD = parameter(rngs, _repeated(rows), num_memory, self.width)

    def for_segments(self, length: int):
        """As the base class; refuses segments that the memory could hold whole."""
        if self.num_memory >= length and not self.allow_long_memory:
            raise ValueError(
                f"RecurrentMemoryTransformer.num_memory = {self.num_memory} memory tokens can "
                f"hold a whole segment of {length} tokens: bind fewer, or allow_long_memory = "
                "True if that is what you mean, as in the paper's algorithmic tasks."
            )
        return super().for_segments(length)

    def init_caches(self, rows: int):
        """The caches of `rows` documents that have not begun, one a layer, then the memory."""
        caches = super().init_caches(rows)
        if not self.num_memory:
            return caches
        memory_SD = self.memory_SD[...].astype(self.dtype)
        return (*caches, MemoryCache(jnp.broadcast_to(memory_SD, (rows, *memory_SD.shape))))

    # Segments.

    def stack(self, x_BTD, caches, key=None):
        """Embedded tokens of one segment, and the memory at its ends, through all layers.

        Args:
            x_BTD: (B, T, D) activations, T as long as the segment is.
            caches: segment form, from `init_caches` or the last segment.
            key: dropout key; None turns dropout off.

        Returns:
            (B, T, D) outputs of the tokens; the caches after the segment, whose memory, unlike
            the hidden states, carries gradients; monitors.
        """
        if not self.num_memory:
            return super().stack(x_BTD, caches, key)
        y_BXD, inputs = self.read_with_memory(x_BTD, caches, key)
        y_BTD, memory_BSD = self.divide(y_BXD)
        # Of rows in different documents; a memory that tells nothing of them is the same in all.
        spread = jnp.std(memory_BSD.astype(jnp.float32), axis=0).mean()
        monitors = {"memory_spread": jax.lax.stop_gradient(spread)}
        if self.special_tokens:
            monitors["added_nats"] = self.auxiliary_weight * self._special_nats(memory_BSD)
        return y_BTD, self._after(caches, inputs, memory_BSD), monitors

    def look(self, tokens_BT, caches):
        """As the base class; weights and terms (B, H, X, M + X), X = S + T + S."""
        if not self.num_memory:
            return super().look(tokens_BT, caches)
        looks = []
        y_BXD, inputs = self.read_with_memory(self.embed(tokens_BT), caches, looks=looks)
        y_BTD, memory_BSD = self.divide(y_BXD)
        return looks, self.logits(y_BTD), self._after(caches, inputs, memory_BSD)

    def read_with_memory(self, x_BTD, caches, key=None, looks=None):
        """Embedded tokens with the memory around them through all layers.

        Returns:
            (B, X, D), and a list of each layer's inputs (B, X, D).
        """
        *hidden, (memory_BSD,) = caches
        S, T = self.num_memory, x_BTD.shape[1]
        ends = (memory_BSD,) if self.memory_at_end else ()
        x_BXD = jnp.concatenate([memory_BSD, x_BTD, *ends], axis=1)
        place = jnp.arange(x_BXD.shape[1])
        mask_XX = segment_mask(S, T, self.memory_at_end)
        visible_BXJ = self._visible(hidden, mask_XX, (place < S) | (place >= S + T))
        return self.read(x_BXD, hidden, visible_BXJ, key, future=True, looks=looks)

    def divide(self, y_BXD):
        """Outputs of the tokens, (B, T, D), and the next memory, (B, S, D)."""
        S, X = self.num_memory, y_BXD.shape[1]
        if not self.memory_at_end:
            return y_BXD[:, S:], y_BXD[:, :S]
        return y_BXD[:, S : X - S], y_BXD[:, X - S :]

    def _visible(self, hidden, mask_QX, is_memory_Q):
        count_B, M = hidden[0].count_B, hidden[0].x_BMD.shape[1]
        return visible_positions(mask_QX, is_memory_Q, count_B, M, self.read_memory_from_cache)

    def _after(self, caches, inputs, memory_BSD):
        return (*self.remember(caches[:-1], inputs), MemoryCache(memory_BSD))

    def _special_nats(self, memory_BSD):
        special_BS = jnp.full(memory_BSD.shape[:2], self.vocabulary_size, jnp.int32)
        return self.token_losses(memory_BSD, special_BS)[0].mean()

    # Tokens. The inputs of the read positions stand before those of the tokens, so a token sees
    # what a token of Transformer-XL sees; the write positions follow when the segment is full.

    def begin_decoding(self, caches):
        """The decoding form of segment-form caches: the memory has been read, no token has."""
        if not self.num_memory:
            return super().begin_decoding(caches)
        *hidden, (memory_BSD,) = caches
        _, inputs = self._read_memory(hidden, memory_BSD)
        return (*self._opened(hidden, inputs, 0), caches[-1])

    def _read_memory(self, hidden, memory_BSD, before=()):
        """Outputs and inputs of memory tokens that see the segment's positions `before` them.

        before: layers' inputs there, (B, X, D) each; none for the read positions.
        """
        S, everything = self.num_memory, hidden
        X = S
        if before:
            X += before[0].shape[1]
            everything = [
                HiddenCache(jnp.concatenate([cache.x_BMD, x_BXD], axis=1), cache.count_B)
                for cache, x_BXD in zip(hidden, before, strict=True)
            ]
        visible_BSJ = self._visible(hidden, jnp.ones((S, X), bool), jnp.ones(S, bool))
        return self.read(memory_BSD, everything, visible_BSJ, future=True)

    def _opened(self, hidden, inputs, counts_B):
        """Layers' caches with room for S + P positions, S and `counts_B` of which are filled."""
        S, room = self.num_memory, self.num_memory + self.period
        fill_B = jnp.zeros_like(hidden[0].count_B) + S + counts_B
        return [
            open_segment(cache, room, _to_length(x_BXD, room), fill_B)
            for cache, x_BXD in zip(hidden, inputs, strict=True)
        ]

    def read_part(self, tokens_BT, caches, counts_B):
        """Reads the beginning of a segment; as the base class."""
        if not self.num_memory:
            return super().read_part(tokens_BT, caches, counts_B)
        y_BXD, inputs = self.read_with_memory(self.embed(tokens_BT), caches)
        logits_BTV = self.logits(self.divide(y_BXD)[0])
        return logits_BTV, (*self._opened(caches[:-1], inputs, counts_B), caches[-1])

    def end_decoding(self, caches):
        """The segment form again; every row must stand at a segment's end (no token read)."""
        if not self.num_memory:
            return super().end_decoding(caches)
        return (*(close_segment(cache, self.memory_length) for cache in caches[:-1]), caches[-1])

    def decode(self, tokens_B, caches, reads_B=True):
        """One token of every row, the last of a segment with its memory; as the base class."""
        if not self.num_memory:
            return super().decode(tokens_B, caches, reads_B)
        *hidden, memory = caches
        logits_BV, hidden = self.decode_token(tokens_B, hidden, reads_B)
        counted = [
            cache._replace(fill_B=cache.fill_B + jnp.asarray(reads_B, jnp.int32))
            for cache in hidden
        ]
        full_B = counted[0].fill_B == self.num_memory + self.period
        caches = (*counted, memory)

        def move(caches):
            return select_rows(full_B, self._next_segment(caches), caches)

        return logits_BV, jax.lax.cond(jnp.any(full_B), move, lambda caches: caches, caches)

    def _next_segment(self, caches):
        """From full segments to the beginning of the next ones."""
        *full, (memory_BSD,) = caches
        M = self.memory_length
        hidden = [close_segment(cache, M) for cache in full]
        before = [cache.x_BJD[:, M:] for cache in full]
        if self.memory_at_end:
            memory_BSD, inputs = self._read_memory(hidden, memory_BSD, before)
            before = [jnp.concatenate(pair, axis=1) for pair in zip(before, inputs, strict=True)]
        else:
            memory_BSD, _ = self._read_memory(hidden, memory_BSD)
        return self.begin_decoding((*self.remember(hidden, before), MemoryCache(memory_BSD)))

    # What it costs, and how far it sees.

    def receptive_field(self) -> float:
        """How many tokens before it a token can be influenced by; infinite with a memory."""
        reads = self.memory_at_end or (self.memory_length and self.read_memory_from_cache)
        return math.inf if self.num_memory and reads else super().receptive_field()

    def flops_per_token(self) -> float:
        """As the base class; what the memory tokens cost is shared among a segment's tokens."""
        S, P, M = self.num_memory, self.period, self.memory_length
        if not S:
            return super().flops_per_token()
        seen = M if self.read_memory_from_cache else 0
        pairs = S * P + S * (S + seen)
        if self.memory_at_end:
            pairs += S * (2 * S + P + seen)
        positions = 2 * S if self.memory_at_end else S
        total = super().flops_per_token()
        for layer in self.layers:
            A = layer.num_heads * layer.head_size
            total += (2 * matrix_size(layer) * positions + 6 * A * pairs) / P
        return total


def _repeated(rows):
    """Draws of N(0, 1): `rows` of them, or one for all."""

    def draw(key, shape, dtype):
        return jnp.broadcast_to(jax.random.normal(key, (rows, *shape[1:]), dtype), shape)

    return draw


def _to_length(x_BXD, length):
    """Cut, or filled up with zeros, to so many positions."""
    x_BXD = x_BXD[:, :length]
    return jnp.pad(x_BXD, [(0, 0), (0, length - x_BXD.shape[1]), (0, 0)])
