"""A pretrained decoder over the windows of a document, with memories between windows.

A segment is the new part of a window. Letters as in `brt.pretrained`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import CountFrom0, configurable
from brt.models.caches import select_rows
from brt.models.memory_tokens.layout import MemoryLayout
from brt.pretrained.backbone import Reading
from brt.pretrained.backbone_layer import LayerKeys, Seen
from brt.pretrained.decoder_model import DecoderModel
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.memories.window_memory import Positions, WindowMemory, WindowReads
from brt.pretrained.windows import (
    DecodingWindow,
    OverlapCache,
    Slots,
    slots,
    table,
    write_keys,
)


class DecodingMemory(NamedTuple):
    """A memory while a window is being filled.

    cache: before the window. view: what the window reads of it. summary: of the window so far.
    """

    cache: Any
    view: Any
    summary: Any


@configurable(denylist=["rngs", "special_tokens"])
class PretrainedLanguageModel(DecoderModel):
    """A pretrained decoder over windows of a document; memory tokens may be put around it.

    Args:
        body: builds the `Decoder`; its sizes are bound by its name, as in `GPT2.width`.
        memories: build `WindowMemory`s, one of each name. None: every window is read alone.
        overlap: O, tokens of a window that the next window begins with. A window has O + N
            positions for segments of N tokens; a document's first has N.
        special_tokens: further entries of the vocabulary; a pretrained one has none.

    Source: Yoshida et al. 2020, sections 3 and 4. There a document's first window has all its
    positions new; here all windows have N new tokens, so later ones begin O tokens earlier.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: Callable[..., Decoder] = GPT2,
        memories: tuple[Callable[..., WindowMemory], ...] = (),
        overlap: CountFrom0 = 0,
        special_tokens: int = 0,
    ):
        super().__init__(rngs, body, special_tokens)
        self.memories = nnx.List(memory(rngs, self.body) for memory in memories)
        if not all(isinstance(memory, WindowMemory) for memory in self.memories):
            raise ValueError(
                "PretrainedLanguageModel.memories must build memories between windows, such as "
                "@PooledMemory."
            )
        names = [memory.name for memory in self.memories]
        if len(set(names)) < len(names):
            raise ValueError(
                f"PretrainedLanguageModel.memories has two of one name in {', '.join(names)}."
            )
        self.overlap = overlap
        self.segment_length = 1
        self.tokens_of_window = 1

    @property
    def period(self) -> int:
        """P, tokens of a segment: memories are updated at the ends of windows."""
        return self.segment_length

    def for_segments(self, length: int) -> Self:
        room = self.body.num_positions - self.overlap
        if length > room:
            raise ValueError(
                f"Windows of {self.overlap} + {length} tokens (PretrainedLanguageModel.overlap and "
                f"the segment length) are longer than the {self.body.num_positions} positions of "
                f"{type(self.body).__name__}: bind Trainer.segment_length = {max(room, 0)} or less"
                + ("." if room > 0 else ", and a smaller overlap.")
            )
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        model.tokens_of_window = length
        return model

    def for_memory_tokens(self, layout: MemoryLayout) -> Self:
        if self.overlap:
            raise ValueError(
                f"PretrainedLanguageModel.overlap = {self.overlap} would read memory tokens again: "
                "bind it to 0."
            )
        if layout.positions > self.body.num_positions:
            room = self.body.num_positions - (layout.positions - layout.period)
            raise ValueError(
                f"A segment of {layout.period} tokens with its memory tokens is "
                f"{layout.positions} positions, and {type(self.body).__name__} has "
                f"{self.body.num_positions}: bind Trainer.segment_length = {max(room, 0)} or less, "
                "or fewer memory tokens."
            )
        model = self.for_segments(layout.positions)
        model.tokens_of_window = layout.period
        return model

    # Segments.

    def init_caches(self, rows: int) -> tuple:
        """Returns an `OverlapCache` and the caches of the memories."""
        x_BOD = jnp.zeros((rows, self.overlap, self.width), self.dtype)
        empty = OverlapCache(x_BOD, jnp.zeros(rows, jnp.int32))
        return (empty, *(memory.init_cache(rows, self.dtype) for memory in self.memories))

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        overlap, *of_memories = caches
        T = x_BTD.shape[1]
        at = slots(overlap.count_B, self.overlap, T, T)
        x_BJD = jnp.concatenate([overlap.x_BOD, x_BTD], axis=1)
        reads = self._reads(of_memories)
        reading = self._read(x_BJD, at, reads, key)
        positions = at.positions(jnp.ones_like(at.index_BJ, bool))
        own = [LayerKeys(*(x[:, self.overlap :] for x in keys)) for keys in reading.keys]
        after: list[Any] = []
        metrics: dict[str, jax.Array] = {}
        for memory, cache in zip(self.memories, of_memories, strict=True):
            with jax.named_scope("memory"):
                summary = memory.summary(reading.outputs, positions)
                cache, found = memory.update(cache, summary, own)
            after.append(cache)
            metrics |= found
        count_B = jnp.minimum(overlap.count_B + T, self.overlap)
        newest = OverlapCache(x_BJD[:, T:], count_B)
        return reading.outputs[-1][:, self.overlap :], (newest, *after), metrics

    def _reads(self, of_memories, known=None):
        pairs = zip(self.memories, of_memories, strict=True)
        with jax.named_scope("memory"):
            views = [memory.view(cache, self.dtype) for memory, cache in pairs]
        return WindowReads(list(self.memories), views, self.dtype, known)

    def _read(self, x_BJD, at: Slots, reads, key=None) -> Reading:
        table_BJJ = at.causal_table()
        if not self.overlap:  # the same for all batch elements
            table_BJJ = table_BJJ[:1]
        positions_BJ = at.positions_BJ

        def seen(_, keys):
            return Seen(keys, positions_BJ, table_BJJ)

        return self.body.read(x_BJD, positions_BJ, seen, reads, key)

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        x_BOD, count_B = caches[0]
        nothing = jnp.zeros((len(count_B), 0, self.width), x_BOD.dtype)
        return self._opened(nothing, caches, jnp.zeros_like(count_B))[1]

    def end_decoding(self, caches: tuple) -> tuple:
        window, *memories = caches
        overlap = OverlapCache(window.recent_BOD, window.count_B)
        return (overlap, *(memory.cache for memory in memories))

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        return self._opened(x_BPD, caches, counts_B)

    def _opened(self, x_BTD, caches, counts_B):
        """Returns outputs (B, T, D) of a window's first new tokens, and the decoding form.

        Of each batch element `counts_B` of them are real.
        """
        overlap, *of_memories = caches
        O, P = self.overlap, self.period
        rows, T, _ = x_BTD.shape
        at = slots(overlap.count_B, O, T, P)
        own_J = jnp.arange(O + T) - O
        real_BJ = (at.index_BJ >= 0) & (own_J < counts_B[:, None])
        x_BJD = jnp.concatenate([overlap.x_BOD, x_BTD], axis=1)
        reads = self._reads(of_memories)
        if O + T:
            reading = self._read(x_BJD, at, reads)
        else:
            reading = self._nothing_read(rows)

        def padded(x_BJGK):
            x_BJGK = jnp.where(real_BJ[..., None, None], x_BJGK, 0)
            return jnp.pad(x_BJGK, [(0, 0), (0, P - T), (0, 0), (0, 0)])

        # The newest O tokens of each batch element.
        newest_BO = counts_B[:, None] + jnp.arange(O)
        recent_BOD = jnp.take_along_axis(x_BJD, newest_BO[..., None], axis=1) if O else x_BJD[:, :0]
        window = DecodingWindow(
            recent_BOD=recent_BOD,
            count_B=jnp.minimum(overlap.count_B + counts_B, O),
            before_B=overlap.count_B,
            fill_B=counts_B,
            layers=tuple(LayerKeys(*map(padded, keys)) for keys in reading.keys),
            extras=reads.all_extra_keys(self.body),
        )
        positions = at.positions(real_BJ)
        if not O + T:
            nothing_B1 = jnp.zeros((rows, 1), bool)
            positions = Positions(nothing_B1, nothing_B1)
        memories = (
            DecodingMemory(cache, view, memory.summary(reading.outputs, positions))
            for (memory, view), cache in zip(reads.pairs, of_memories, strict=True)
        )
        return reading.outputs[-1][:, O:], (window, *memories)

    def _nothing_read(self, rows):
        """Returns the reading of one position that counts for nothing, without keys."""
        nothing_B1D = jnp.zeros((rows, 1, self.width), self.dtype)
        shape = rows, 0, self.body.num_key_heads, self.body.sizes.head_size
        keys = LayerKeys(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
        layers = len(self.body.layers)
        return Reading((nothing_B1D,) * layers, (keys,) * layers)

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        window, *of_memories = caches
        O, P = self.overlap, self.period
        fill_B = window.fill_B
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        slot_B = O + fill_B
        at = slots(window.before_B, O, P, P)
        visible_BJ = (at.index_BJ >= 0) & (jnp.arange(O + P) <= slot_B[:, None])
        table_B1J = table(visible_BJ)[:, None]
        reads = WindowReads(
            list(self.memories), [part.view for part in of_memories], self.dtype, window.extras
        )

        def seen(i, keys):
            keys = write_keys(window.layers[i], keys, slot_B, reads_B)
            return Seen(keys, at.positions_BJ, table_B1J)

        index_B1 = (window.before_B + fill_B)[:, None]
        reading = self.body.read(x_BD[:, None], index_B1, seen, reads)
        here = at._replace(index_BJ=index_B1).positions(reads_B[:, None])
        after = []
        for memory, part in zip(self.memories, of_memories, strict=True):
            with jax.named_scope("memory"):
                grown = memory.combined(part.summary, memory.summary(reading.outputs, here))
            after.append(part._replace(summary=select_rows(reads_B, grown, part.summary)))
        recent_BOD = jnp.concatenate([window.recent_BOD, x_BD[:, None]], axis=1)[:, 1:]
        pairs = zip(window.layers, reading.keys, strict=True)
        window = window._replace(
            recent_BOD=select_rows(reads_B, recent_BOD[:, :O], window.recent_BOD),
            count_B=jnp.minimum(window.count_B + reads_B, O),
            fill_B=fill_B + reads_B,
            layers=tuple(write_keys(*pair, slot_B, reads_B) for pair in pairs),
        )
        return reading.outputs[-1][:, 0], self._moved((window, *after))

    def _moved(self, caches):
        """Returns the decoding form, in which memories are updated by full windows."""
        full_B = caches[0].fill_B == self.period

        def move(caches):
            window, *memories = caches
            own = [LayerKeys(*(x[:, self.overlap :] for x in keys)) for keys in window.layers]
            after = []
            for memory, part in zip(self.memories, memories, strict=True):
                with jax.named_scope("memory"):
                    after.append(memory.update(part.cache, part.summary, own)[0])
            overlap = OverlapCache(window.recent_BOD, window.count_B)
            return select_rows(full_B, self.begin_decoding((overlap, *after)), caches)

        return jax.lax.cond(jnp.any(full_B), move, lambda caches: caches, caches)

    # What it costs, and how far it sees.

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        return {
            f"{self.memories[int(i)].name}_grad_norm": optax.tree.norm(of_memory)
            for i, of_memory in grads.get("memories", {}).items()
        }

    def windows_reach(self) -> int:
        """Returns how far back the last token of a window sees, memory tokens not counted."""
        return self.overlap + self.tokens_of_window - 1

    def receptive_field(self) -> float:
        carries = any(memory.carries() for memory in self.memories)
        return math.inf if carries else self.windows_reach()

    def flops_per_position(self) -> float:
        """Returns operations of a window for each of its new tokens, which share its cost."""
        T = self.overlap + self.period
        layers = self.body.flops_of_layers((T + 1) / 2)
        layers += sum(memory.flops_per_position() for memory in self.memories)
        of_memories = sum(memory.flops_per_window(T) for memory in self.memories)
        return (layers * T + of_memories) / self.period
