"""A pretrained decoder over the windows of a document, with memories between windows.

A segment is the new part of a window.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.checks import CountFrom0, configurable
from brt.models.caches import select_rows, zeros_outside
from brt.models.decoding_window import update_where
from brt.models.memory_layout import MemoryLayout
from brt.pretrained.backbone import Reading
from brt.pretrained.backbone_layer import Reads, Seen, attention_bias
from brt.pretrained.decoder_model import DecoderModel
from brt.pretrained.decoders.decoder import Decoder
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.memories.window_memory import WindowMemory, WindowReads, WithMemories
from brt.pretrained.windows import DecodingWindow, OverlapCache, Slots, slots, write_arrays


class DecodingMemory(NamedTuple):
    """A memory while a window is being filled.

    cache: before the window. read: of the cache. summary: of the window so far. taken: of its
    tokens, (B, P, ...), or the next cache of a memory that changes with every token.
    """

    cache: Any
    read: Any
    summary: Any
    taken: Any = ()


@configurable(denylist=["rngs", "special_tokens"])
class PretrainedLanguageModel(WithMemories, DecoderModel):
    """A pretrained decoder over windows of a document; memory tokens may be put around it.

    Args:
        body: builds the `Decoder`; its sizes are bound by its name, as in `GPT2.width`.
        memories: build `WindowMemory`s, one of each name.
        overlap: O, tokens at the end of a window that start the next window. A window has O + N
            positions for segments of N tokens; a document's first has N.

    Source: Yoshida et al. 2020, sections 3 and 4.
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
        self.build_memories(rngs, memories)
        if overlap and any(memory.every_token for memory in self.memories):
            raise ValueError(
                f"PretrainedLanguageModel.overlap = {overlap} reads tokens twice, and a memory in "
                "PretrainedLanguageModel.memories changes with every token: bind it to 0."
            )
        self.overlap = overlap
        self.segment_length = 1
        self.tokens_of_window = 1

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
        model.segment_length = model.tokens_of_window = length
        for memory in model.memories:
            memory.for_windows(length + self.overlap)
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
        x_BOD = jnp.zeros((rows, self.overlap, self.width), self.dtype)
        return (OverlapCache(x_BOD, jnp.zeros(rows, jnp.int32)), *self.init_memories(rows))

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        overlap, *memories = caches
        T = x_BTD.shape[1]
        at = slots(overlap.count_B, self.overlap, T, T)
        x_BJD = jnp.concatenate([overlap.x_BOD, x_BTD], axis=1)
        reading = self._run(x_BJD, at, self.reads(memories), key)
        summaries = self.summaries(reading, at.positions())
        new, taken = self._new(reading.keys), self._new(self.taken(reading))
        memories, metrics = self.updated(memories, summaries, new, taken, reading.kept)
        count_B = jnp.minimum(overlap.count_B + T, self.overlap)
        newest = OverlapCache(x_BJD[:, T:], count_B)
        return reading.outputs[-1][:, self.overlap :], (newest, *memories), metrics

    def _run(self, x_BJD, at: Slots, reads: Reads, key=None) -> Reading:
        bias_BJJ = at.causal_bias()
        if not self.overlap:  # the same for all batch elements
            bias_BJJ = bias_BJJ[:1]
        positions_BJ = at.positions_BJ

        def seen(_, keys):
            return Seen(keys, positions_BJ, bias_BJJ)

        return self.body.read(x_BJD, positions_BJ, seen, reads, key)

    def _new(self, tree):
        # Without an overlap, what is taken may be a cache.
        return jax.tree.map(lambda x_BJ: x_BJ[:, self.overlap :], tree) if self.overlap else tree

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        x_BOD, count_B = caches[0]
        padding_B1D = jnp.zeros((len(count_B), 1, self.width), x_BOD.dtype)
        return self.read_part_embedded(padding_B1D, caches, jnp.zeros_like(count_B))[1]

    def end_decoding(self, caches: tuple) -> tuple:
        window, *memories = caches
        overlap = OverlapCache(window.recent_BOD, window.count_B)
        return (overlap, *(memory.cache for memory in memories))

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        overlap, *memories = caches
        O, P, T = self.overlap, self.period, x_BPD.shape[1]
        at = slots(overlap.count_B, O, T, P)
        real_BJ = (at.index_BJ >= 0) & (jnp.arange(O + T) - O < counts_B[:, None])
        x_BJD = jnp.concatenate([overlap.x_BOD, x_BPD], axis=1)
        reads = self.reads(memories, real_BJ)
        reading = self._run(x_BJD, at, reads)

        def padded(real_BJ, tree):
            def longer(x_BJ):
                return jnp.pad(x_BJ, [(0, 0), (0, P - T)] + [(0, 0)] * (x_BJ.ndim - 2))

            return jax.tree.map(longer, zeros_outside(real_BJ, tree))

        def padded_taken(memory, taken):
            return taken if memory.every_token else padded(real_BJ[:, O:], taken)

        # The newest O tokens of each batch element.
        newest_BO = counts_B[:, None] + jnp.arange(O)
        recent_BOD = jnp.take_along_axis(x_BJD, newest_BO[..., None], axis=1) if O else x_BJD[:, :0]
        window = DecodingWindow(
            recent_BOD=recent_BOD,
            count_B=jnp.minimum(overlap.count_B + counts_B, O),
            before_B=overlap.count_B,
            fill_B=counts_B,
            layers=tuple(padded(real_BJ, keys) for keys in reading.keys),
            extras=reads.extra_keys,
        )
        summaries = self.summaries(reading, at.positions(real_BJ))
        taken = map(padded_taken, self.memories, self._new(self.taken(reading)))
        parts = zip(memories, reads.read_once, summaries, taken, strict=True)
        return reading.outputs[-1][:, O:], (window, *(DecodingMemory(*part) for part in parts))

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        window, *memories = caches
        O, P = self.overlap, self.period
        fill_B = window.fill_B
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        slot_B = O + fill_B
        at = slots(window.before_B, O, P, P)
        visible_BJ = (at.index_BJ >= 0) & (jnp.arange(O + P) <= slot_B[:, None])
        bias_B1J = attention_bias(visible_BJ)[:, None]
        parts = list(zip(self.memories, memories, strict=True))
        before = [part.taken if memory.every_token else part.cache for memory, part in parts]
        read = [part.read for part in memories]
        reads = WindowReads(self.body, self.memories, before, read, window.extras, reads_B[:, None])

        def seen(i, keys):
            keys = write_arrays(window.layers[i], keys, slot_B, reads_B)
            return Seen(keys, at.positions_BJ, bias_B1J)

        index_B1 = (window.before_B + fill_B)[:, None]
        reading = self.body.read(x_BD[:, None], index_B1, seen, reads)
        here = at._replace(index_BJ=index_B1).positions(reads_B[:, None])
        after = []
        summaries = self.summaries(reading, here)
        for (memory, part), summary, new in zip(parts, summaries, self.taken(reading)):
            summary = select_rows(reads_B, memory.combined(part.summary, summary), part.summary)
            if memory.every_token:
                taken = select_rows(reads_B, new, part.taken)
            else:
                taken = write_arrays(part.taken, new, fill_B, reads_B)
            after.append(part._replace(summary=summary, taken=taken))
        recent_BOD = jnp.concatenate([window.recent_BOD, x_BD[:, None]], axis=1)[:, 1:]
        window = window._replace(
            recent_BOD=select_rows(reads_B, recent_BOD[:, :O], window.recent_BOD),
            count_B=jnp.minimum(window.count_B + reads_B, O),
            fill_B=fill_B + reads_B,
            layers=write_arrays(window.layers, reading.keys, slot_B, reads_B),
        )
        return reading.outputs[-1][:, 0], self._moved((window, *after))

    def _moved(self, caches):
        full_B = caches[0].fill_B == self.period

        def move(caches):
            window, *memories = caches
            overlap, *before = self.end_decoding(caches)
            summaries = [part.summary for part in memories]
            taken = [part.taken for part in memories]
            after, _ = self.updated(before, summaries, self._new(window.layers), taken)
            return self.begin_decoding((overlap, *after))

        return update_where(full_B, move, caches)

    # Windows and cost.

    def windows_reach(self) -> int:
        return self.overlap + self.tokens_of_window - 1

    def flops_per_position(self) -> float:
        T = self.overlap + self.period
        layers = self.body.flops_of_layers((T + 1) / 2) * T
        return (layers + self.flops_of_window(T)) / self.period
