"""The interface of a backbone that memory tokens can be put around, and these tokens."""

from typing import Self

import jax
import jax.numpy as jnp

from brt.models.attention_weights import AttentionLayout, AttentionWeights
from brt.models.caches import select_rows
from brt.models.memory_layout import MemoryLayout
from brt.models.model import LanguageModel, Metrics


class Body(LanguageModel):
    """A language model over embedded positions, which may be tokens or memory vectors.

    Built as `body(rngs, special_tokens=n)`: n vocabulary entries that no text contains. width: D.
    """

    width: int

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        raise NotImplementedError

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        raise NotImplementedError

    def flops_per_position(self) -> float:
        """Returns the operations of a memory token, which predicts nothing."""
        return self.flops_per_token()

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        y_BTD, caches = self.read_part_embedded(self.embed(tokens_BT), caches, counts_B)
        return self.logits(y_BTD), caches

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        y_BD, caches = self.decode_embedded(self.embed(tokens_B[:, None])[:, 0], caches, reads_B)
        return self.logits(y_BD), caches

    def for_memory_tokens(self, layout: MemoryLayout) -> Self:
        return self.for_segments(layout.positions)

    def memory_tokens(self, layout: MemoryLayout) -> "MemoryTokens":
        """Returns memory tokens around segments, or raises a `ValueError` if they do not fit."""
        return MemoryTokens(self, layout)


class MemoryTokens:
    """Runs a backbone on segments with memory tokens, which are positions of a causal backbone.

    Other backbones override all methods. Caches are the backbone's. While decoding, `begin` runs on
    the read positions before a segment's first token, `finish` on the write positions after its
    last; the caller selects the batch elements where this is due.
    """

    def __init__(self, body: Body, layout: MemoryLayout):
        X, W = layout.positions, body.period
        if X % W:
            shorter = layout.period - X % W
            lengths = (shorter, shorter + W) if shorter > layout.num_memory else (shorter + W,)
            raise ValueError(
                f"A segment of {layout.period} tokens with its memory tokens is {X} positions, "
                f"and {type(body).__name__} reads blocks of {W}: make the segment length "
                f"{' or '.join(map(str, lengths))}, or bind another "
                "RecurrentMemoryTransformer.num_memory."
            )
        self.body = body
        self.layout = layout

    def segment(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array, key: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, tuple, Metrics]:
        """Returns the tokens' outputs, the next memory, the caches, and metrics."""
        x_BXD = self.layout.surround(x_BTD, memory_BSD)
        y_BXD, caches, metrics = self.body.stack(x_BXD, caches, key)
        return *self.layout.divide(y_BXD), caches, metrics

    def begin_decoding(self, caches: tuple) -> tuple:
        return self.body.begin_decoding(caches)

    def end_decoding(self, caches: tuple) -> tuple:
        return self.body.end_decoding(caches)

    def begin(self, caches: tuple, memory_BSD: jax.Array) -> tuple[tuple, jax.Array]:
        """Runs on the read positions; returns caches and outputs, (B, S, D)."""

        def token(caches, x_BD):
            y_BD, caches = self.body.decode_embedded(x_BD, caches)
            return caches, y_BD

        caches, y_SBD = jax.lax.scan(token, caches, jnp.moveaxis(memory_BSD, 1, 0))
        return caches, jnp.moveaxis(y_SBD, 0, 1)

    def decode(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        return self.body.decode_embedded(x_BD, caches, reads_B)

    def finish(self, caches: tuple, memory_BSD: jax.Array) -> tuple[tuple, jax.Array]:
        return self.begin(caches, memory_BSD) if self.layout.memory_at_end else (caches, memory_BSD)

    def read_part(
        self, x_BPD: jax.Array, caches: tuple, memory_BSD: jax.Array, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple, jax.Array]:
        """Runs on the read positions and the first `counts_B` of up to P tokens, in one pass.

        Returns the tokens' outputs, the decoding form, and the outputs of the read positions.
        """
        S, W = self.layout.num_memory, self.body.period
        x_BXD = jnp.concatenate([memory_BSD, x_BPD], axis=1)
        X = x_BXD.shape[1]
        x_BXD = jnp.pad(x_BXD, [(0, 0), (0, -X % W), (0, 0)])
        rows, _, D = x_BXD.shape
        x_GBWD = jnp.moveaxis(x_BXD.reshape(rows, -1, W, D), 1, 0)

        def block(carry, inputs):
            caches, decoding = carry
            x_BWD, first = inputs
            within_B = S + counts_B - first
            here_B = (within_B >= 0) & (within_B < W)
            y_BWD, after, _ = self.body.stack(x_BWD, caches)
            part = self.body.read_part_embedded(x_BWD, caches, jnp.clip(within_B, 0, W - 1))
            y_BWD, decoding = select_rows(here_B, part, (y_BWD, decoding))
            return (after, decoding), y_BWD

        firsts = W * jnp.arange(len(x_GBWD), dtype=jnp.int32)
        carry = caches, self.begin_decoding(caches)
        (_, decoding), y_GBWD = jax.lax.scan(block, carry, (x_GBWD, firsts))
        y_BXD = jnp.moveaxis(y_GBWD, 0, 1).reshape(rows, -1, D)
        return y_BXD[:, S:X], decoding, y_BXD[:, :S]

    def flops_per_token(self) -> float:
        memory_positions = self.layout.positions - self.layout.period
        shared = self.body.flops_per_position() * memory_positions / self.layout.period
        return self.body.flops_per_token() + shared

    def attention_layout(self) -> AttentionLayout | None:
        return None

    def attention_weights(
        self, x_BTD: jax.Array, caches: tuple, memory_BSD: jax.Array
    ) -> tuple[AttentionWeights, jax.Array, jax.Array, tuple]:
        """Returns the weights of one segment, and the results of `segment` without metrics."""
        raise NotImplementedError
