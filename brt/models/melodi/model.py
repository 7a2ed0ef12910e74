"""MELODI: windows that see one another through short-term and long-term memories only."""

import math
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.checks import Count, CountFrom0, Index, OneOf, Share, configurable
from brt.models.caches import zeros_outside
from brt.models.contract import check_segment, layer_indices
from brt.models.decoding_window import update_where, write_slot
from brt.models.layers.dropout import dropout as drop
from brt.models.layers.dropout import split_key
from brt.models.layers.embedding import TiedEmbedding
from brt.models.layers.initializers import parameter
from brt.models.layers.norms import RMSNorm
from brt.models.layerwise import Layerwise
from brt.models.melodi.layer import KeysValues, MelodiCache, MelodiLayer, MelodiSizes, truncated
from brt.models.model import DTYPES, REMATS, LanguageModel, Metrics
from brt.models.sizes import Sizes


class DecodingMelodi(NamedTuple):
    """A layer while a window is being filled.

    cache: from before the window. short, long: their keys and values, (B, J, H, K).
    keys_BWHK, values_BWHK, outputs_BWD: of the window's tokens, hidden beyond the fill.
    fill_B: (B,) int32, tokens of the window so far, 0 ... W - 1.
    """

    cache: MelodiCache
    short: KeysValues
    long: KeysValues | None
    keys_BWHK: jax.Array
    values_BWHK: jax.Array
    outputs_BWD: jax.Array
    fill_B: jax.Array


@configurable(denylist=["rngs"])
class Melodi(TiedEmbedding, LanguageModel):
    """Windowed attention with a short-term memory in each layer and a long-term memory in some.

    Args:
        vocabulary_size to feed_forward_size: as in `BlockRecurrentTransformer`.
        window: W in tokens, which divides the segment length.
        summary: U, summary tokens of a window.
        short_memory: S, vectors from a window to the next.
        long_layers: indices of the layers with a long-term memory, from 0, or negative from the
            last.
        long_memory: M, vectors of a long-term memory.
        long_increment: I, vectors that a window adds to it.
        dropout, attention_dropout: rates, after norms and the MLP, and on attention weights.
        remat: "layer" recomputes each layer in the backward pass.

    Source: Chen et al. 2024, arXiv:2410.03156.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count,
        num_layers: Count,
        width: Count,
        num_heads: Count,
        head_size: Count,
        feed_forward_size: CountFrom0,
        window: Count,
        summary: Count = 64,
        short_memory: Count = 64,
        long_layers: tuple[Index, ...] = (),
        long_memory: CountFrom0 = 4096,
        long_increment: Count = 32,
        dropout: Share = 0.0,
        attention_dropout: Share = 0.0,
        activation_dtype: Annotated[str, OneOf(DTYPES)] = "float32",
        remat: Annotated[str, OneOf(REMATS)] = "none",
    ):
        with_long = layer_indices("Melodi.long_layers", long_layers, num_layers)
        if long_layers and long_increment > long_memory:
            raise ValueError(
                f"Melodi.long_increment = {long_increment} must be at most Melodi.long_memory = "
                f"{long_memory}."
            )
        sizes = Sizes(width, num_heads, head_size, feed_forward_size)
        self.sizes, self.window, self.remat = sizes, window, remat
        self.dropout, self.output_dropout = max(dropout, attention_dropout), dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.vocabulary_size = vocabulary_size
        self.add_embedding(rngs, vocabulary_size, width, math.sqrt(width))
        self.summary_RD = parameter(
            rngs, truncated, summary, width, purpose="recurrence", multiplied=False
        )

        def layer(index):
            M = long_memory if index in with_long else 0
            memory = MelodiSizes(window, summary, short_memory, M, long_increment)
            return MelodiLayer(rngs, sizes, memory, dropout, attention_dropout)

        self.layers = nnx.List(layer(index) for index in range(num_layers))
        self.final_norm = RMSNorm(rngs, width)

    # Segments.

    def init_caches(self, rows: int) -> tuple:
        return tuple(layer.init_cache(rows, self.dtype) for layer in self.layers)

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, Metrics]:
        check_segment("Melodi", self.window, x_BTD.shape[1])
        keys = split_key(key, self.dropout, len(self.layers) + 1)
        x_BTD, summary_BRD = self._enter(x_BTD)
        after = []
        metrics: Metrics = {}
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            run = jax.checkpoint(layer) if self.remat == "layer" else layer
            with jax.named_scope(f"layer{i}"):
                x_BTD, summary_BRD, cache, reported = run(x_BTD, summary_BRD, cache, keys[i])
            after.append(cache)
            metrics |= {f"layer{i}/{name}": value for name, value in reported.items()}
        with jax.named_scope("vocabulary"):
            x_BTD = drop(self.final_norm(x_BTD), self.output_dropout, keys[-1])
        return x_BTD, tuple(after), metrics

    def layerwise(self) -> Layerwise:
        def run(layer, inputs, cache):
            x_BTD, summary_BRD, cache, _ = layer(*inputs, cache)
            return (x_BTD, summary_BRD), cache

        return Layerwise(self.layers, run, self._enter, lambda inputs: self.final_norm(inputs[0]))

    def _enter(self, x_BTD):
        B, T, _ = x_BTD.shape
        return x_BTD, jnp.tile(self._summary(B), (1, T // self.window, 1))

    def _summary(self, rows):
        summary_UD = self.summary_RD[...].astype(self.dtype)
        return jnp.broadcast_to(summary_UD, (rows, *summary_UD.shape))

    # Tokens.

    @property
    def period(self) -> int:
        return self.window

    def begin_decoding(self, caches: tuple) -> tuple:
        rows = caches[0].short_BSD.shape[0]
        W, D, H, K = self.window, self.sizes.width, self.sizes.num_heads, self.sizes.head_size
        heads_BWHK = jnp.zeros((rows, W, H, K), self.dtype)
        outputs_BWD = jnp.zeros((rows, W, D), self.dtype)
        fill_B = jnp.zeros(rows, jnp.int32)
        return tuple(
            DecodingMelodi(cache, short, long, heads_BWHK, heads_BWHK, outputs_BWD, fill_B)
            for layer, cache in zip(self.layers, caches, strict=True)
            for short, long in [_memory_keys(layer, cache)]
        )

    def end_decoding(self, caches: tuple) -> tuple:
        return tuple(layer.cache for layer in caches)

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        x_BWD = self.embed(tokens_BT)
        real_BW = jnp.arange(self.window) < counts_B[:, None]
        after = []
        for i, layer in enumerate(self.layers):
            with jax.named_scope(f"layer{i}"):
                short, long = _memory_keys(layer, caches[i])
                x_BWD, own = layer.part(x_BWD, slice(self.window), [short], long)
            parts = *zeros_outside(real_BW, (*own, x_BWD)), counts_B
            after.append(DecodingMelodi(caches[i], short, long, *parts))
        return self.logits(self.final_norm(x_BWD)), tuple(after)

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        fill_B, W = caches[0].fill_B, self.window
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        x_B1D = self.embed(tokens_B[:, None])

        def written(x_BW, new_B1):
            return write_slot(x_BW, fill_B, new_B1[:, 0], reads_B)

        after = []
        for i, (layer, old) in enumerate(zip(self.layers, caches, strict=True)):
            with jax.named_scope(f"layer{i}"):
                normed_B1D = layer.attention_norm(x_B1D)
                own = layer.keys_values(normed_B1D)
                window = KeysValues(
                    written(old.keys_BWHK, own.keys_BJHK), written(old.values_BWHK, own.values_BJHK)
                )
                bias_HWJ = layer.bias(slice(W), layer.memory.short + W)
                bias_BH1J = jnp.moveaxis(bias_HWJ[:, fill_B], 1, 0)[:, :, None]
                q_B1HK = layer.queries(normed_B1D)
                attended_B1HK, _ = layer.attend(q_B1HK, [old.short, window], old.long, bias_BH1J)
                x_B1D = layer.finish(x_B1D, attended_B1HK)
            after.append(
                old._replace(
                    keys_BWHK=window.keys_BJHK,
                    values_BWHK=window.values_BJHK,
                    outputs_BWD=written(old.outputs_BWD, x_B1D),
                    fill_B=fill_B + reads_B,
                )
            )
        full_B = fill_B + reads_B == W
        logits_BV = self.logits(self.final_norm(x_B1D)[:, 0])
        return logits_BV, update_where(full_B, self._after_window, tuple(after))

    def _after_window(self, caches):
        after = []
        summary_BUD = self._summary(len(caches[0].fill_B))
        for layer, old in zip(self.layers, caches, strict=True):
            seen = [old.short, KeysValues(old.keys_BWHK, old.values_BWHK)]
            outputs_BUD, _ = layer.part(summary_BUD, slice(self.window, None), seen, old.long)
            cache, summary_BUD, _ = layer.after_window(old.cache, old.outputs_BWD, outputs_BUD)
            after.append(cache)
        return self.begin_decoding(tuple(after))

    # Cost and windows.

    def windows_reach(self) -> int:
        return self.window - 1

    def gradient_metrics(self, grads: dict) -> Metrics:
        return {
            f"layer{i}/memory_grad_norm": optax.tree.norm(grads["layers"][i]["short_mixing"])
            for i in range(len(self.layers))
        }

    def flops_per_token(self) -> float:
        return 2.0 * self.embedding_VD.size + sum(l.flops_per_token() for l in self.layers)


def _memory_keys(layer, cache):
    short = layer.keys_values(layer.attention_norm(cache.short_BSD))
    if cache.long_BMD is None:
        return short, None
    return short, layer.keys_values(layer.attention_norm(cache.long_BMD))
