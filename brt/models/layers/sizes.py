"""The dimensions that the parts of a layer share."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Dimensions of a layer, passed on as one value.

    Attributes:
        width: D.
        num_heads, head_size: H, K.
        feed_forward_size: F.
    """

    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int

    @property
    def attention_size(self) -> int:
        """A = H * K."""
        return self.num_heads * self.head_size
