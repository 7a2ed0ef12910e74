"""The memory of the Compressive Transformer: `TransformerXL.memory = @CompressiveMemory`."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, NotNegative, OneOf, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.model import Metrics
from brt.models.ops import at_least_float32
from brt.models.segment_memory import MemoryVectors
from brt.models.sizes import Sizes
from brt.models.transformer_xl.hidden_memory import HiddenMemory, LayerSegment, last_filled

if TYPE_CHECKING:
    from brt.models.transformer_xl.layer import TransformerXLLayer

COMPRESSIONS = ("mean", "max", "convolution")


class CompressiveCache(NamedTuple):
    """The compressed vectors and the last inputs of a layer, both with the newest last.

    compressed_BLD: (B, L, D) in the activations' type, of which the last `compressed_count_B` are
    filled. x_BMD, count_B: as in `HiddenCache`.
    """

    compressed_BLD: jax.Array
    compressed_count_B: jax.Array
    x_BMD: jax.Array
    count_B: jax.Array

    def clear_state(self, empty: "CompressiveCache") -> "CompressiveCache":
        return empty._replace(x_BMD=self.x_BMD, count_B=self.count_B)


@configurable(denylist=["rngs", "sizes", "length"])
class CompressiveMemory(HiddenMemory):
    """Keeps the last M inputs of a layer, and L vectors compressed from earlier inputs.

    A compressed vector counts as one position.

    Args:
        length: M, `TransformerXL.memory_length`.
        compressed: L, vectors of the compressed memory.
        rate: c, inputs per compressed vector; it must divide M and the segment length.
        compression: "mean" or "max" pooling, or a learned "convolution" with stride and kernel c.
        reconstruction_weight: of the attention-reconstruction loss, the only one that trains a
            convolution.

    Source: Rae et al. 2019, arXiv:1911.05507, sections 3.1 and 3.2.
    """

    name = "compressive"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        length: int,
        compressed: Count,
        rate: Count = 3,
        compression: Annotated[str, OneOf(COMPRESSIONS)] = "mean",
        reconstruction_weight: NotNegative = 1.0,
    ):
        if length % rate:
            raise ValueError(
                f"CompressiveMemory.rate = {rate} must divide TransformerXL.memory_length = "
                f"{length}."
            )
        super().__init__(rngs, sizes, length)
        self.attention_size = sizes.attention_size
        self.compressed = compressed
        self.length = compressed + length
        self.rate = rate
        self.compression = compression
        self.reconstruction_weight = reconstruction_weight
        if compression == "convolution":
            D = sizes.width
            draw = normal((rate * D) ** -0.5)
            self.kernel_YDI = parameter(rngs, draw, rate, D, D)

    def init_cache(self, rows: int, dtype: DTypeLike) -> CompressiveCache:
        none_B = jnp.zeros(rows, jnp.int32)
        return CompressiveCache(
            jnp.zeros((rows, self.compressed, self.width), dtype),
            none_B,
            jnp.zeros((rows, self.recent, self.width), dtype),
            none_B,
        )

    def read(self, cache: CompressiveCache, dtype: DTypeLike) -> MemoryVectors:
        filled_BL = last_filled(cache.compressed_count_B, self.compressed)
        filled_BM = last_filled(cache.count_B, self.recent)
        return MemoryVectors(
            jnp.concatenate([cache.compressed_BLD, cache.x_BMD], axis=1),
            jnp.concatenate([filled_BL, filled_BM], axis=1),
        )

    def check_segment(self, positions: int) -> None:
        if positions % self.rate:
            raise ValueError(
                f"CompressiveMemory.rate = {self.rate} must divide the {positions} positions of a "
                "segment: bind another rate, or another Trainer.segment_length."
            )

    def update(self, cache: CompressiveCache, segment: LayerSegment) -> tuple[NamedTuple, Metrics]:
        """Returns the cache after a segment, without gradient.

        For a convolution, `added_nats` is the weighted attention-reconstruction loss.
        """
        x_BTD, layer = segment
        T, M, L = x_BTD.shape[1], self.recent, self.compressed
        x_BJD = jnp.concatenate([cache.x_BMD, x_BTD.astype(cache.x_BMD.dtype)], axis=1)
        x_BJD = jax.lax.stop_gradient(x_BJD)
        # The T oldest of M + T inputs leave; if fewer were stored, the first of them are empty.
        dropped_BTD = x_BJD[:, :T]
        dropped_B = jnp.maximum(cache.count_B + T - M, 0)
        new_BLD = self.compress(dropped_BTD)
        metrics = {}
        if self.compression == "convolution":
            error = self.reconstruction_error(layer, x_BTD, dropped_BTD, new_BLD, dropped_B)
            metrics["added_nats"] = self.reconstruction_weight * error
        new_BLD = jax.lax.stop_gradient(new_BLD).astype(cache.compressed_BLD.dtype)
        after = CompressiveCache(
            jnp.concatenate([cache.compressed_BLD, new_BLD], axis=1)[:, new_BLD.shape[1] :],
            jnp.minimum(cache.compressed_count_B + dropped_B // self.rate, L),
            x_BJD[:, T:],
            jnp.minimum(cache.count_B + T, M),
        )
        return after, metrics

    def compress(self, x_BOD: jax.Array) -> jax.Array:
        """Returns one vector for each c of the O inputs, (B, O / c, D)."""
        B, O, D = x_BOD.shape
        x_BLYD = x_BOD.reshape(B, O // self.rate, self.rate, D)
        if self.compression == "mean":
            return x_BLYD.mean(axis=2)
        if self.compression == "max":
            return x_BLYD.max(axis=2)
        return jnp.einsum("BLYD,YDI->BLI", x_BLYD, self.kernel_YDI[...].astype(x_BOD.dtype))

    def reconstruction_error(
        self,
        layer: "TransformerXLLayer",
        x_BTD: jax.Array,
        old_BOD: jax.Array,
        new_BLD: jax.Array,
        old_B: jax.Array,
    ) -> jax.Array:
        """Returns the mean squared difference between attention to inputs and to their compression.

        Gradients reach `new_BLD` only. The last `old_B` of the inputs `old_BOD` are filled; without
        any, the error is 0. Source: Rae et al. 2019, algorithm 2.
        """
        filled_BO = last_filled(old_B, old_BOD.shape[1])
        filled_BL = last_filled(old_B // self.rate, new_BLD.shape[1])
        expected = layer.content_attention(x_BTD, old_BOD, filled_BO)
        compressed = layer.content_attention(x_BTD, new_BLD, filled_BL)
        error_B = jnp.square(at_least_float32(expected) - at_least_float32(compressed)).mean(
            axis=(1, 2, 3)
        )
        return jnp.mean(jnp.where(old_B > 0, error_B, 0))

    def flops_per_segment(self, positions: int) -> float:
        if self.compression != "convolution":
            return 0.0
        D, A, T = self.width, self.attention_size, positions
        attended = T + T / self.rate
        return 2.0 * D**2 * T + 2 * D * A * T + 4 * (D + T) * A * attended
