"""LSTM and QRNN language models: the baselines of Transformer-XL, section 4.3.

The cache is the state after a token, so decoding is a segment of one token.
"""

import itertools
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, Share, configurable
from brt.models.axis_rules import constrain
from brt.models.caches import select_rows
from brt.models.counts import matrix_size
from brt.models.fast.products import matmul
from brt.models.layers.dropout import dropout, split_key
from brt.models.layers.embedding import embedded
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layerwise import Layerwise
from brt.models.model import DTYPES, LanguageModel
from brt.models.ops import at_least_float32
from brt.models.transformer_xl.adaptive_embedding import AdaptiveEmbedding


class LSTMCache(NamedTuple):
    """The last output of a layer, and c, at least float32. Empty: zeros."""

    hidden_BU: jax.Array
    cell_BU: jax.Array


class LSTMLayer(nnx.Module):
    """i, f, o = sigma(W x + V h + b), g = tanh(same); c' = f c + i g; h' = o tanh(c').

    Source: Hochreiter and Schmidhuber 1997; forget gate (initial bias 1) of Gers et al. 2000.
    """

    window = 0  # earlier tokens whose inputs reach a token without the state

    def __init__(self, rngs: nnx.Rngs, inputs: int, units: int):
        self.units = units
        self.inputs_IZ = parameter(rngs, DENSE, inputs, 4 * units)
        self.hidden_UZ = parameter(rngs, DENSE, units, 4 * units)
        self.bias_Z = parameter(rngs, _forget_bias_one, 4 * units)

    def init_cache(self, rows: int, dtype: DTypeLike) -> LSTMCache:
        cell_BU = at_least_float32(jnp.zeros((rows, self.units), dtype))
        return LSTMCache(cell_BU.astype(dtype), cell_BU)

    def __call__(self, x_BTI: jax.Array, cache: LSTMCache) -> tuple[jax.Array, LSTMCache]:
        dtype = x_BTI.dtype
        hidden_UZ = self.hidden_UZ[...].astype(dtype)
        bias_Z = self.bias_Z[...]
        inputs_BTZ = matmul(x_BTI, self.inputs_IZ[...])  # of all tokens at once

        def token(cache, inputs_BZ):
            gates_BZ = at_least_float32(inputs_BZ + cache.hidden_BU @ hidden_UZ) + bias_Z
            i_BU, f_BU, o_BU, g_BU = jnp.split(gates_BZ, 4, axis=-1)
            i_BU, f_BU, o_BU = map(jax.nn.sigmoid, (i_BU, f_BU, o_BU))
            cell_BU = f_BU * cache.cell_BU + i_BU * jnp.tanh(g_BU)
            hidden_BU = (o_BU * jnp.tanh(cell_BU)).astype(dtype)
            return LSTMCache(hidden_BU, cell_BU), hidden_BU

        cache, hidden_TBU = jax.lax.scan(token, cache, jnp.moveaxis(inputs_BTZ, 1, 0))
        return jnp.moveaxis(hidden_TBU, 0, 1), cache


def _forget_bias_one(key, shape, dtype):
    return jnp.repeat(jnp.array([0, 1, 0, 0], dtype), shape[0] // 4)


class QRNNCache(NamedTuple):
    """The last input, for the convolution, and c, at least float32. Empty: zeros."""

    last_BI: jax.Array
    cell_BU: jax.Array

    def clear_state(self, empty: "QRNNCache") -> "QRNNCache":
        return self._replace(cell_BU=empty.cell_BU)


class QRNNLayer(nnx.Module):
    """z = tanh, f = sigma, o = sigma of W_1 x_{t-1} + W_2 x_t + b; c' = f c + (1 - f) z; h = o c'.

    Source: Bradbury et al. 2017, arXiv:1611.01576, section 2 (width 2, fo-pooling).
    """

    window = 1

    def __init__(self, rngs: nnx.Rngs, inputs: int, units: int):
        self.inputs_size = inputs
        self.units = units
        self.earlier_IZ = parameter(rngs, DENSE, inputs, 3 * units)
        self.inputs_IZ = parameter(rngs, DENSE, inputs, 3 * units)
        self.bias_Z = parameter(rngs, jax.nn.initializers.zeros, 3 * units)

    def init_cache(self, rows: int, dtype: DTypeLike) -> QRNNCache:
        last_BI = jnp.zeros((rows, self.inputs_size), dtype)
        return QRNNCache(last_BI, at_least_float32(jnp.zeros((rows, self.units), dtype)))

    def __call__(self, x_BTI: jax.Array, cache: QRNNCache) -> tuple[jax.Array, QRNNCache]:
        dtype = x_BTI.dtype
        earlier_BTI = jnp.concatenate([cache.last_BI[:, None], x_BTI[:, :-1]], axis=1)
        gates_BTZ = matmul(earlier_BTI, self.earlier_IZ[...])
        gates_BTZ += matmul(x_BTI, self.inputs_IZ[...])
        z_BTU, f_BTU, o_BTU = jnp.split(at_least_float32(gates_BTZ) + self.bias_Z[...], 3, axis=-1)
        f_BTU = jax.nn.sigmoid(f_BTU)
        cell_BTU = pooled(f_BTU, (1 - f_BTU) * jnp.tanh(z_BTU), cache.cell_BU)
        hidden_BTU = (jax.nn.sigmoid(o_BTU) * cell_BTU).astype(dtype)
        return hidden_BTU, QRNNCache(x_BTI[:, -1], cell_BTU[:, -1])


def pooled(keep_BTU: jax.Array, add_BTU: jax.Array, first_BU: jax.Array) -> jax.Array:
    """Returns c_t = keep_t c_{t-1} + add_t from c_0 = `first_BU`, (B, T, U)."""

    def join(before, after):
        return before[0] * after[0], after[0] * before[1] + after[1]

    kept_BTU, added_BTU = jax.lax.associative_scan(join, (keep_BTU, add_BTU), axis=1)
    return kept_BTU * first_BU[:, None] + added_BTU


class RecurrentStack(LanguageModel):
    """Embedding, a stack of recurrent layers, and logits.

    Args:
        vocabulary_size, width: V, D of the embedding and of the last layer.
        num_layers, hidden_size: layers, and the units of all but the last.
        dropout: rate after the embedding and after each layer.
        cutoffs, div_val: of an `AdaptiveEmbedding` for large vocabularies.
        tied: whether the softmax uses the embedding's matrices and projections.
    """

    layer: ClassVar[type[LSTMLayer | QRNNLayer]]
    period = 1

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: Count,
        width: Count,
        num_layers: Count,
        hidden_size: Count,
        dropout: Share = 0.0,
        activation_dtype: Annotated[str, OneOf(DTYPES)] = "float32",
        cutoffs: tuple[Count, ...] = (),
        div_val: Count = 1,
        tied: bool = True,
    ):
        name = type(self).__name__
        self.vocabulary_size = vocabulary_size
        self.dropout = dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.adaptive = bool(cutoffs or div_val != 1 or not tied)
        if self.adaptive:
            # It multiplies by sqrt(D), so initial vectors equal those of the single matrix below.
            self.embedding = AdaptiveEmbedding(
                rngs,
                vocabulary_size,
                width,
                cutoffs=tuple(cutoffs),
                div_val=div_val,
                tied=tied,
                tied_projections=tied,
                std=width**-0.5,
                projection_std=width**-0.5,
                owner=name,
            )
        else:
            self.embedding_VD = parameter(
                rngs, normal(1.0), vocabulary_size, width, purpose="embedding"
            )
            self.begin_D = parameter(rngs, normal(1.0), width, purpose="embedding")
            self.bias_V = parameter(rngs, jax.nn.initializers.zeros, vocabulary_size)
        sizes = [width, *[hidden_size] * (num_layers - 1), width]
        self.layers = nnx.List(
            self.layer(rngs, inputs, units) for inputs, units in itertools.pairwise(sizes)
        )

    def init_caches(self, rows: int) -> tuple:
        return tuple(layer.init_cache(rows, self.dtype) for layer in self.layers)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        if self.adaptive:
            return self.embedding(tokens_BT, self.dtype)
        return embedded(tokens_BT, self.embedding_VD[...], self.begin_D[...], self.dtype)

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, dict[str, jax.Array]]:
        keys = split_key(key, self.dropout, len(self.layers) + 1)
        with jax.named_scope("embedding"):
            x_BTD = dropout(x_BTD, self.dropout, keys[0])

        after = []
        parts = zip(self.layers, caches, keys[1:], strict=True)
        for i, (layer, cache, layer_key) in enumerate(parts):
            with jax.named_scope(f"layer{i}/states"):
                x_BTD, cache = layer(x_BTD, cache)
                x_BTD = dropout(x_BTD, self.dropout, layer_key)
            after.append(cache)
        return x_BTD, tuple(after), {}

    def layerwise(self) -> Layerwise:
        return Layerwise(self.layers)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        if self.adaptive:
            return self.embedding.logits(x_BTD)
        x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
        logits_BTV = at_least_float32(x_BTD @ self.embedding_VD[...].astype(self.dtype).T)
        return logits_BTV + self.bias_V[...]

    def token_losses(self, x_BTD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not self.adaptive:
            return super().token_losses(x_BTD, targets_BT)
        return self.embedding.token_losses(x_BTD, targets_BT)

    def begin_decoding(self, caches: tuple) -> tuple:
        return caches

    end_decoding = begin_decoding

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        logits_BTV, after = self(tokens_B[:, None], caches)
        if reads_B is not True:
            after = select_rows(jnp.asarray(reads_B), after, caches)
        return logits_BTV[:, 0], after

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        # An interval of one token has no shorter part.
        return self(tokens_BT, caches)[0], caches

    def windows_reach(self) -> int:
        return sum(layer.window for layer in self.layers)

    def flops_per_token(self) -> float:
        return 2.0 * matrix_size(self)

    def divided_sizes(self) -> dict[str, int]:
        return self.embedding.divided_sizes() if self.adaptive else super().divided_sizes()


@configurable(denylist=["rngs"])
class LSTM(RecurrentStack):
    layer = LSTMLayer


@configurable(denylist=["rngs"])
class QRNN(RecurrentStack):
    layer = QRNNLayer
