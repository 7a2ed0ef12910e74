"""The interface of a backbone that memory tokens can be put around."""

from typing import TYPE_CHECKING, Self

import jax

from brt.models.model import LanguageModel

if TYPE_CHECKING:
    from brt.models.memory_tokens.layout import MemoryLayout, MemoryTokens


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

    def for_memory_tokens(self, layout: "MemoryLayout") -> Self:
        return self.for_segments(layout.positions)

    def memory_tokens(self, layout: "MemoryLayout") -> "MemoryTokens":
        """Returns the memory tokens around segments; a `ValueError` if the layout does not fit."""
        return layout.around(self)
