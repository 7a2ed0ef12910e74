"""Associative memory: each head's matrix maps keys of earlier blocks to their values."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import OneOf, configurable
from brt.models.block_recurrent.memory import (
    KeysValues,
    LayerMemory,
    LayerTokens,
    Metrics,
    mix_with_attention,
)
from brt.models.layers.initializers import parameter
from brt.models.ops import at_least_float32
from brt.models.sizes import Sizes

RULES = ("linear", "delta")


class AssociativeCache(NamedTuple):
    """Maps keys of earlier blocks to values, at least float32. Empty: zeros.

    matrix_BHKK: (B, H, K, K), sum of products of a key's features and its stored value.
    sum_BHK: (B, H, K), sum of the features.
    """

    matrix_BHKK: jax.Array
    sum_BHK: jax.Array


def features(x: jax.Array) -> jax.Array:
    """Returns elu(x) + 1, positive, at least float32."""
    return jax.nn.elu(at_least_float32(x)) + 1


def retrieved(cache: AssociativeCache, features_BTHK: jax.Array) -> jax.Array:
    """Returns the mean of stored values, weighted by products of features, (B, T, H, K)."""
    stored_BTHK = jnp.einsum("BTHK,BHKV->BTHV", features_BTHK, cache.matrix_BHKK)
    weights_BTH = jnp.einsum("BTHK,BHK->BTH", features_BTHK, cache.sum_BHK)
    return stored_BTHK / jnp.maximum(weights_BTH, 1e-6)[..., None]


@configurable(denylist=["rngs", "sizes", "window"])
class AssociativeMemory(LayerMemory):
    """Compressive memory of fixed size, mixed with attention by a learned gate for each head.

    rule: "linear" adds the value to the one stored for its key; "delta" adds their difference.

    Source: Infini-attention, Munkhdalai et al. 2024, arXiv:2404.07143, section 2.1.
    """

    name = "associative"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        rule: Annotated[str, OneOf(RULES)] = "delta",
    ):
        self.sizes = sizes
        self.rule = rule
        self.mix_H = parameter(rngs, jax.nn.initializers.zeros, sizes.num_heads)

    def init_cache(self, rows: int, dtype: DTypeLike) -> AssociativeCache:
        H, K = self.sizes.num_heads, self.sizes.head_size
        kept = jnp.promote_types(dtype, jnp.float32)
        return AssociativeCache(jnp.zeros((rows, H, K, K), kept), jnp.zeros((rows, H, K), kept))

    def read(
        self, cache: AssociativeCache, tokens: LayerTokens, attended_BTHK: jax.Array, weights: None
    ) -> tuple[jax.Array, Metrics]:
        memory_BTHK = retrieved(cache, features(tokens.queries_BTHK))
        return mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)

    def update(
        self, cache: AssociativeCache, taken: KeysValues, weights: None
    ) -> tuple[AssociativeCache, Metrics]:
        features_BWHK, new_BWHK = features(taken.keys_BTHK), at_least_float32(taken.values_BTHK)
        if self.rule == "delta":
            new_BWHK = new_BWHK - retrieved(cache, features_BWHK)
        matrix_BHKK = cache.matrix_BHKK + jnp.einsum("BWHK,BWHV->BHKV", features_BWHK, new_BWHK)
        return AssociativeCache(matrix_BHKK, cache.sum_BHK + features_BWHK.sum(axis=1)), {}

    def flops_per_token(self, window: int) -> float:
        products = 3 if self.rule == "delta" else 2
        return 2.0 * products * self.sizes.attention_size * (self.sizes.head_size + 1)
