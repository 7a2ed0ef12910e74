"""The contract of a body: a language model that memory tokens can be put around.

A body reads positions that are already embedded; whether a position holds a token or a vector of
memory is nothing to it. `read_part` and `decode` of its own tokens follow from that.
"""

from typing import Self

import jax

from brt.models.memory_tokens.layout import CausalMemoryTokens, MemoryLayout, MemoryTokens
from brt.models.model import LanguageModel


class Body(LanguageModel):
    """A language model that reads embedded positions: the base of models that may be wrapped.

    It is built as `body(rngs, special_tokens=n)`, with n further entries of its vocabulary after
    the last, which no text holds.

    Attributes:
        width: D.
    """

    width: int

    def read_part_embedded(
        self, x_BPD: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        """Reads the beginning of a period; as `read_part`, but of and to (B, P, D) vectors."""
        raise NotImplementedError

    def decode_embedded(
        self, x_BD: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Reads one position of every row; as `decode`, but of and to (B, D) vectors."""
        raise NotImplementedError

    def flops_per_position(self) -> float:
        """Returns operations of reading one position that predicts nothing, a memory token's.

        The default counts a prediction all the same.
        """
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
        """Returns the same body, same parameters, for segments of that layout."""
        return self.for_segments(layout.positions)

    def memory_tokens(self, layout: MemoryLayout) -> MemoryTokens:
        """Returns how memory tokens stand around the segments that this body reads.

        The default suits every body in which a position sees what stands before it.

        Raises:
            ValueError: a layout that the body cannot read.
        """
        return CausalMemoryTokens(self, layout)
