"""The memory of a Transformer-XL layer: its inputs at the last M positions.

The buffer has a fixed size and a count of filled positions per batch element. Other memories of
inputs inherit from `HiddenMemory`. Axes as in `brt.models`.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.caches import select_rows
from brt.models.layers.sizes import Sizes

if TYPE_CHECKING:
    from brt.models.transformer_xl.layer import TransformerXLLayer


class HiddenCache(NamedTuple):
    """The inputs of a layer at the last M positions, the newest last.

    x_BMD: (B, M, D) in the activations' type, zeros where nothing is stored yet.
    count_B: (B,) int32, how many of the last M are filled, and visible; empty: 0.
    """

    x_BMD: jax.Array
    count_B: jax.Array

    @property
    def carries_state(self) -> bool:
        return False

    def clear_state(self, empty: "HiddenCache") -> "HiddenCache":
        """Returns the cache as it is: a long window."""
        return self


class HiddenMemory(nnx.Module):
    """Keeps the last M inputs of a layer: the base of the memories of Transformer-XL.

    A memory is built as `memory(rngs, sizes, length)` from the `Sizes` of its layer and
    `TransformerXL.memory_length`. Its cache is a named tuple, batch axis first, with a method
    `clear_state(empty)`. The layer attends to `contents` where `filled`, as to inputs right before
    the segment.

    Attributes:
        length: M, vectors that the layer attends to.

    Source: Transformer-XL, section 3.2.
    """

    name: ClassVar[str] = "hidden"
    purpose = "recurrence"

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, length: int):
        self.width = sizes.width
        self.length = length

    def check_segment(self, positions: int) -> None:
        """Raises a `ValueError` if the memory does not support segments of so many positions."""

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        """Returns the cache of `rows` new documents; dtype: of activations."""
        x_BMD = jnp.zeros((rows, self.length, self.width), dtype)
        return HiddenCache(x_BMD, jnp.zeros(rows, jnp.int32))

    def contents(self, cache: Any) -> jax.Array:
        """Returns the vectors before the segment, (B, M, D), the newest last."""
        return cache.x_BMD

    def filled(self, cache: Any) -> jax.Array:
        """Returns which of the contents are filled, (B, M) bool."""
        M = cache.x_BMD.shape[1]
        return jnp.arange(M) >= M - cache.count_B[:, None]

    def content_positions(self) -> tuple[int | None, ...]:
        """Returns the position of each of the contents, for drawing attention.

        Relative to the segment's first position, -1 is right before it; None: no single position.
        """
        return tuple(range(-self.length, 0))

    def remember(
        self, cache: Any, x_BTD: jax.Array, layer: "TransformerXLLayer"
    ) -> tuple[NamedTuple, dict[str, jax.Array]]:
        """Returns the cache after a segment, without gradient, and metrics.

        Args:
            cache: before the segment.
            x_BTD: (B, T, D), the layer's inputs, of any length.
            layer: whose inputs they are.

        Source: Transformer-XL, section 3.2 (h = [SG(m), h]) and the released code's update.
        """
        T = x_BTD.shape[1]
        x_BJD = jnp.concatenate([cache.x_BMD, x_BTD.astype(cache.x_BMD.dtype)], axis=1)
        count_B = jnp.minimum(cache.count_B + T, self.length)
        return HiddenCache(jax.lax.stop_gradient(x_BJD[:, T:]), count_B), {}

    # Receptive field and cost.

    def oldest(self, position: float, period: int) -> float:
        """Returns the oldest position that a query may attend to through the last inputs.

        Args:
            position: of the query, relative to the beginning of some segment; minus infinity if it
                may be any.
            period: P, tokens of a segment.
        """
        return position // period * period - self.length

    def oldest_remembered(self, position: float, period: int) -> float:
        """Returns the oldest position that may influence a query at all."""
        return self.oldest(position, period)

    def flops_per_token(self, period: int) -> float:
        """Returns operations of one token's forward pass, attention to the contents excluded."""
        return 0.0


class DecodingSegment(NamedTuple):
    """The cache of a layer before a segment, and the segment while it is being filled.

    x_BPD: (B, P, D), inputs of the layer in the segment, zeros beyond the fill.
    fill_B: (B,) int32, positions of the segment processed so far, 0 ... P - 1.
    """

    before: NamedTuple
    x_BPD: jax.Array
    fill_B: jax.Array


def visible_keys(
    filled_BM: jax.Array, distance_TJ: jax.Array, same_length: bool = False
) -> jax.Array:
    """Returns which keys, M remembered ones and a segment's, each query sees, (B, T, J) bool.

    Args:
        filled_BM: (B, M) bool, which of the first M keys are filled.
        distance_TJ: (T, J) or (B, T, J) int, from key to query.
        same_length: a query sees the last M keys only, itself included.

    Source: Transformer-XL's released PyTorch code, for the count of `same_length`.
    """
    B, M = filled_BM.shape
    seen = distance_TJ >= 0
    if same_length:
        seen &= distance_TJ < M
    in_segment_BT = jnp.ones((B, distance_TJ.shape[-1] - M), bool)
    return jnp.concatenate([filled_BM, in_segment_BT], axis=1)[:, None] & seen


def open_segment(
    before: Any, room: int, x_BPD: jax.Array, fill_B: jax.Array, dtype: DTypeLike
) -> DecodingSegment:
    """Returns the decoding form: the cache, and room for a segment.

    Args:
        before: the cache before the segment.
        room: positions of the segment.
        x_BPD, fill_B: inputs of a segment, of any length, of which the first `fill_B` are valid.
        dtype: of the activations.
    """
    x_BPD = x_BPD[:, :room].astype(dtype)
    x_BPD = jnp.pad(x_BPD, [(0, 0), (0, room - x_BPD.shape[1]), (0, 0)])
    valid_BP = jnp.arange(room) < fill_B[:, None]
    return DecodingSegment(before, jnp.where(valid_BP[..., None], x_BPD, 0), fill_B)


def append_input(
    cache: DecodingSegment, x_BD: jax.Array, reads_B: jax.Array | bool = True
) -> DecodingSegment:
    """Appends one position's input to the segment of the batch elements in `reads_B`."""
    rows = jnp.arange(cache.fill_B.shape[0])
    x_BD = x_BD.astype(cache.x_BPD.dtype)
    if reads_B is not True:
        x_BD = select_rows(jnp.asarray(reads_B), x_BD, cache.x_BPD[rows, cache.fill_B])
    return cache._replace(
        x_BPD=cache.x_BPD.at[rows, cache.fill_B].set(x_BD),
        fill_B=cache.fill_B + jnp.asarray(reads_B, jnp.int32),
    )
