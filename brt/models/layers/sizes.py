"""The dimensions that the parts of a layer share, and the form of their attention."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Dimensions of a layer, passed on as one value.

    Attributes:
        width: D.
        num_heads, head_size: H, K.
        feed_forward_size: F.
        qk_norm: queries and keys have unit length and a learned scale for each head; without it,
            scores are q.k / sqrt(K).
    """

    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int
    qk_norm: bool = True

    @property
    def attention_size(self) -> int:
        """A = H * K."""
        return self.num_heads * self.head_size
