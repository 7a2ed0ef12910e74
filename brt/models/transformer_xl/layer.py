"""One layer of Transformer-XL."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros

from brt.models.axis_rules import constrain
from brt.models.fast.products import matmul
from brt.models.fast.table import form_by_distance
from brt.models.layers.dropout import independent_dropout
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.ops import at_least_float32
from brt.models.relative_attention import (
    Positions,
    Terms,
    read_values,
    score_terms,
    scores,
    weights,
)
from brt.models.sizes import Sizes

ENCODINGS = ("relative", "shaw", "absolute", "learned")
NORMS = ("post", "pre")


class Drops(NamedTuple):
    """Dropout rates, in general and on attention weights; variational: one mask for all tokens."""

    rate: float = 0.0
    attention: float = 0.0
    variational: bool = False

    def __call__(self, x_BTD: jax.Array, key: jax.Array | None) -> jax.Array:
        return independent_dropout(x_BTD, self.rate, key, self.variational)


NO_DROPS = Drops()


class Distances(NamedTuple):
    """The distances between queries and keys, the same in all layers.

    distance_C: (C,) int. sinusoid_CD: their encodings, for "relative". biases: u and v of all
    layers, (H, K) each; None: each layer has its own. misfit: why no kernel computes them.
    """

    distance_C: jax.Array
    sinusoid_CD: jax.Array | None = None
    biases: tuple[jax.Array, jax.Array] | None = None
    misfit: str | None = None


class LayerAttention(NamedTuple):
    weights_BHTJ: jax.Array
    terms: Terms


class TransformerXLLayer(nnx.Module):
    """Attention, output projection, residual and norm; MLP, residual and norm.

    Args:
        encoding, position_rows, clamp: as in `TransformerXL`; "absolute" has no part in this layer.
        own_biases: u and v (of "relative") belong to this layer and not to the model.
        norm: "post": after the residual sums; "pre": before attention and MLP.
        std: of the initial matrices and the scales of norms.

    Source: Transformer-XL, section 3.3, and the released code.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        encoding: str = "relative",
        position_rows: int = 0,
        own_biases: bool = False,
        norm: str = "post",
        drops: Drops = NO_DROPS,
        clamp: int | None = None,
        std: float = 0.02,
    ):
        D, H, K, A = sizes.width, sizes.num_heads, sizes.head_size, sizes.attention_size
        R = position_rows
        self.sizes = sizes
        self.encoding = encoding
        self.pre_norm = norm == "pre"
        self.drops = drops
        self.clamp = clamp
        draw = normal(std)
        self.queries_DA = parameter(rngs, draw, D, A)
        self.keys_DA = parameter(rngs, draw, D, A)
        self.values_DA = parameter(rngs, draw, D, A)
        self.output_AD = parameter(rngs, draw, A, D)
        self.attention_norm = LayerNorm(rngs, D, std)
        if sizes.feed_forward_size:
            self.feed_forward = FeedForward(rngs, D, sizes.feed_forward_size, draw, biases=True)
            self.feed_forward_norm = LayerNorm(rngs, D, std)
        if encoding == "relative":
            self.positions_DA = parameter(rngs, draw, D, A, multiplied=False)
        if encoding == "shaw" or own_biases:
            self.content_bias_HK = parameter(rngs, draw, H, K, multiplied=False)
        if encoding == "shaw":
            self.distance_keys_RHK = parameter(rngs, draw, R, H, K)
            self.distance_bias_RH = parameter(rngs, zeros, R, H, multiplied=False)
        elif own_biases:
            self.position_bias_HK = parameter(rngs, draw, H, K, multiplied=False)
        if encoding == "learned":
            self.places_RD = parameter(rngs, draw, R, D, multiplied=False)

    # Positions.

    def add_position_vectors(self, x_BTD: jax.Array, backwards_T: jax.Array) -> jax.Array:
        """Returns the layer's input, which is also remembered, with learned positions.

        backwards_T: (T,) or (B, T) int, tokens to the end of the segment.
        """
        if self.encoding != "learned":
            return x_BTD
        return x_BTD + self._rows(self.places_RD, backwards_T).astype(x_BTD.dtype)

    def positions(self, distances: Distances) -> Positions | None:
        if self.encoding == "shaw":
            keys_CHK = self._rows(self.distance_keys_RHK, distances.distance_C)
            return Positions(keys_CHK, self._rows(self.distance_bias_RH, distances.distance_C))
        if self.encoding != "relative":
            return None
        keys_CHK = self._heads(distances.sinusoid_CD, self.positions_DA)
        v_HK = self._biases(distances)[1].astype(keys_CHK.dtype)
        return Positions(keys_CHK, jnp.einsum("HK,CHK->CH", v_HK, keys_CHK))

    def _biases(self, distances):
        if self.encoding == "shaw":
            return self.content_bias_HK[...], None
        if self.encoding != "relative":
            return None, None
        return distances.biases or (self.content_bias_HK[...], self.position_bias_HK[...])

    def _rows(self, matrix_RX, distance_C):
        R = matrix_RX.shape[0]
        farthest = R if self.clamp is None else min(R, max(self.clamp, 1))
        return matrix_RX[...][R - 1 - jnp.clip(distance_C, 0, farthest - 1)]

    # One segment.

    def __call__(
        self,
        x_BTD: jax.Array,
        memory_BMD: jax.Array,
        visible_BTJ: jax.Array,
        distances: Distances,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Runs the layer on one segment; returns (B, T, D).

        Args:
            x_BTD: from `add_position_vectors`.
            memory_BMD: earlier inputs of this layer; no gradient reaches them.
            visible_BTJ: bool, keys each query sees, J = M + T.
        """
        weights_key, *other_keys = (None,) * 4 if key is None else jax.random.split(key, 4)
        with jax.named_scope("attention"):
            positions = self.positions(distances)
            q_BTHK, k_BJHK, v_BJHK = self._queries_keys_values(x_BTD, memory_BMD)
            (B, T, H, _), J = q_BTHK.shape, k_BJHK.shape[1]
            rate = self.drops.attention
            kept_BHTJ = None
            if weights_key is not None and rate:
                kept_BHTJ = jax.random.bernoulli(weights_key, 1.0 - rate, (B, H, T, J))
            u_HK, _ = self._biases(distances)
            attend = form_by_distance(self.sizes, B, T, J, distances.misfit)
            y_BTHK = attend(q_BTHK, k_BJHK, v_BJHK, u_HK, positions, visible_BTJ, kept_BHTJ, rate)
        return self._finish(x_BTD, y_BTHK, *other_keys)

    def show(
        self, x_BTD: jax.Array, memory_BMD: jax.Array, visible_BTJ: jax.Array, distances: Distances
    ) -> LayerAttention:
        q_BTHK, k_BJHK, _ = self._queries_keys_values(x_BTD, memory_BMD)
        u_HK, _ = self._biases(distances)
        terms = score_terms(q_BTHK, k_BJHK, u_HK, self.positions(distances))
        return LayerAttention(weights(functools.reduce(jnp.add, terms), visible_BTJ), terms)

    def content_attention(
        self, x_BTD: jax.Array, memory_BJD: jax.Array, filled_BJ: jax.Array
    ) -> jax.Array:
        """Returns attention by content alone, (B, T, H, K), for `CompressiveMemory`.

        x_BTD: the queries' inputs. memory_BJD: the vectors; gradients reach these only. filled_BJ:
        visible ones, at least one.
        """
        graph, params = nnx.split(self)
        layer = nnx.merge(graph, jax.lax.stop_gradient(params))
        x_BTD = layer._normed(jax.lax.stop_gradient(x_BTD))
        memory_BJD = layer._normed(memory_BJD)
        s_BHTJ = scores(
            layer._heads(x_BTD, layer.queries_DA), layer._heads(memory_BJD, layer.keys_DA)
        )
        w_BHTJ = weights(s_BHTJ, filled_BJ[:, None])
        return read_values(w_BHTJ, layer._heads(memory_BJD, layer.values_DA))

    def _normed(self, x_BTD):
        return self.attention_norm(x_BTD) if self.pre_norm else x_BTD

    def _queries_keys_values(self, x_BTD, memory_BMD):
        T = x_BTD.shape[1]
        memory_BMD = jax.lax.stop_gradient(memory_BMD)
        x_BJD = self._normed(jnp.concatenate([memory_BMD.astype(x_BTD.dtype), x_BTD], axis=1))
        q_BTHK = self._heads(x_BJD[:, x_BJD.shape[1] - T :], self.queries_DA)
        return q_BTHK, self._heads(x_BJD, self.keys_DA), self._heads(x_BJD, self.values_DA)

    def _heads(self, x_BTD, matrix_DA):
        x_BTA = matmul(x_BTD, matrix_DA[...])
        x_BTHK = x_BTA.reshape(*x_BTA.shape[:-1], self.sizes.num_heads, self.sizes.head_size)
        return constrain(x_BTHK, "BTHK") if x_BTHK.ndim == 4 else x_BTHK

    def _finish(self, x_BTD, y_BTHK, output_key=None, hidden_key=None, mlp_key=None):
        with jax.named_scope("attention"):
            y_BTA = y_BTHK.reshape(*x_BTD.shape[:2], -1)
            y_BTD = self.drops(matmul(y_BTA, self.output_AD[...]), output_key)
            x_BTD = x_BTD + y_BTD if self.pre_norm else self.attention_norm(x_BTD + y_BTD)
        if not self.sizes.feed_forward_size:
            return constrain(x_BTD, "BTD")
        with jax.named_scope("feed_forward"):
            normed_BTD = self.feed_forward_norm(x_BTD) if self.pre_norm else x_BTD
            y_BTD = self.feed_forward(normed_BTD, lambda h_BTF: self.drops(h_BTF, hidden_key))
            x_BTD = x_BTD + self.drops(y_BTD, mlp_key)
            return constrain(x_BTD if self.pre_norm else self.feed_forward_norm(x_BTD), "BTD")

    # One token.

    def decode(
        self,
        x_BD: jax.Array,
        hidden: Sequence[jax.Array],
        visible_BJ: jax.Array,
        distance_BJ: jax.Array,
        distances: Distances,
    ) -> jax.Array:
        """Runs the layer on one token; returns (B, D).

        The key matrix multiplies the query, instead of J earlier inputs.

        Args:
            hidden: inputs of this layer up to the token, J in consecutive parts: (B, M, D)
                remembered and (B, P, D) of the segment.
            visible_BJ, distance_BJ: whether the token sees them, and their distances.
            distances: 0, 1, ... J - 1.
        """
        x_B1D = x_BD[:, None]
        normed_B1D = self._normed(x_B1D)
        parts = [self._normed(part_BJD.astype(x_BD.dtype)) for part_BJD in hidden]
        q_BHK = self._heads(normed_B1D, self.queries_DA)[:, 0]
        u_HK, v_HK = self._biases(distances)
        dtype = at_least_float32(x_BD).dtype
        q_BHD = self._through(q_BHK, u_HK, self.keys_DA)
        by_part = [
            jnp.einsum("BHD,BJD->BHJ", q_BHD, part_BJD, preferred_element_type=dtype)
            for part_BJD in parts
        ]
        s_BHJ = jnp.concatenate(by_part, axis=-1)
        p_BHC = self._distance_scores(q_BHK, v_HK, distances, dtype)
        if p_BHC is not None:
            s_BHJ += jnp.take_along_axis(p_BHC, jnp.maximum(distance_BJ, 0)[:, None], axis=-1)
        w_BH1J = weights((s_BHJ / math.sqrt(self.sizes.head_size))[:, :, None], visible_BJ[:, None])
        w_BHJ = w_BH1J[:, :, 0].astype(x_BD.dtype)
        edges = list(itertools.accumulate(part_BJD.shape[1] for part_BJD in parts[:-1]))
        y_BHD = sum(
            jnp.einsum("BHJ,BJD->BHD", weight_BHJ, part_BJD)
            for weight_BHJ, part_BJD in zip(jnp.split(w_BHJ, edges, axis=-1), parts)
        )
        y_BHK = jnp.einsum("BHD,DHK->BHK", y_BHD, self._by_head(self.values_DA, x_BD.dtype))
        return self._finish(x_B1D, y_BHK[:, None])[:, 0]

    def _distance_scores(self, q_BHK, v_HK, distances, dtype):
        if self.encoding == "relative":
            q_BHD = self._through(q_BHK, v_HK, self.positions_DA)
            return jnp.einsum(
                "BHD,CD->BHC", q_BHD, distances.sinusoid_CD, preferred_element_type=dtype
            )
        positions = self.positions(distances)
        if positions is None:
            return None
        p_BHC = jnp.einsum("BHK,CHK->BHC", q_BHK, positions.keys_CHK, preferred_element_type=dtype)
        return p_BHC + positions.bias_CH.T

    def _through(self, q_BHK, bias_HK, matrix_DA):
        if bias_HK is not None:
            q_BHK = q_BHK + bias_HK.astype(q_BHK.dtype)
        return jnp.einsum("BHK,DHK->BHD", q_BHK, self._by_head(matrix_DA, q_BHK.dtype))

    def _by_head(self, matrix_DA, dtype):
        return matrix_DA[...].astype(dtype).reshape(-1, self.sizes.num_heads, self.sizes.head_size)
