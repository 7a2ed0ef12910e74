"""One layer of Transformer-XL: attention over a cache of inputs, feed-forward, residuals, norms.

Whatever the encodings differ in is here: where positions enter, and as what. Letters as in
`brt.models`; C: distances, in the order of `relative_attention.distances`.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros

from brt.models.layers.dropout import independent_dropout
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm, wide
from brt.models.layers.sizes import Sizes
from brt.models.shape_letters import constrain
from brt.models.transformer_xl.relative_attention import (
    Positions,
    Terms,
    attend_by_distance,
    read_values,
    score_terms,
    scores,
    weights,
)

ENCODINGS = ("relative", "shaw", "absolute", "learned")
NORMS = ("post", "pre")


class Drops(NamedTuple):
    """Rates: everywhere, on attention weights; and whether a mask is constant along time."""

    rate: float = 0.0
    attention: float = 0.0
    variational: bool = False

    def __call__(self, x_BTD: jax.Array, key: jax.Array | None) -> jax.Array:
        return independent_dropout(x_BTD, self.rate, key, self.variational)


NO_DROPS = Drops()


class Biases(NamedTuple):
    """u and v of the relative encoding, each (H, K)."""

    content_HK: jax.Array
    position_HK: jax.Array


class LayerAttention(NamedTuple):
    """Attention weights of a layer, (B, H, T, J), and the terms of its scores."""

    weights_BHTJ: jax.Array
    terms: Terms


class TransformerXLLayer(nnx.Module):
    """Attention, output projection, residual and norm; network, residual and norm.

    Args:
        sizes: D, H, K, F.
        encoding: one of ENCODINGS. "relative": keys of projected sinusoids; "shaw": keys and
            numbers learned for each distance, beyond the table those of its farthest row;
            "absolute": none here; "learned": vectors added to the layer's inputs, counted
            backwards from the end of the segment.
        position_rows: R, rows of a learned table.
        own_biases: u and v (of "relative") belong to this layer and not to the model.
        norm: "post": after the residual sums; "pre": before attention and network.
        drops: of what is dropped.
        clamp: distances above it share its encoding, or None.
        std: matrices begin as N(0, std ** 2), norms' scales as N(1, std ** 2).

    Source: Transformer-XL, section 3.3 and, for what the paper leaves open, the released code.
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
        self.num_heads = H
        self.head_size = K
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

    # The positions.

    def add_position_vectors(self, x_BTD: jax.Array, backwards_T: jax.Array) -> jax.Array:
        """Returns the layer's input, which it remembers too, with its learned position vectors.

        Only the encoding "learned" has such vectors; with others the input comes back as it is.

        backwards_T: (T,) or (B, T) int, tokens to the end of the segment.
        """
        if self.encoding != "learned":
            return x_BTD
        return x_BTD + self._rows(self.places_RD, backwards_T).astype(x_BTD.dtype)

    def positions(
        self, distance_C: jax.Array, sinusoid_CD: jax.Array | None, biases: Biases | None
    ) -> Positions | None:
        """Returns keys and biases of distances, None if the encoding knows none.

        sinusoid_CD: of these distances, for the encoding "relative".
        """
        if self.encoding == "shaw":
            keys_CHK = self._rows(self.distance_keys_RHK, distance_C)
            return Positions(keys_CHK, self._rows(self.distance_bias_RH, distance_C))
        if self.encoding != "relative":
            return None
        keys_CHK = self._heads(sinusoid_CD, self.positions_DA)
        _, v_HK = self._biases(biases)
        return Positions(keys_CHK, jnp.einsum("HK,CHK->CH", v_HK.astype(keys_CHK.dtype), keys_CHK))

    def _biases(self, biases):
        if self.encoding == "shaw":
            return self.content_bias_HK[...], None
        if self.encoding != "relative":
            return None, None
        if biases is not None:
            return biases
        return self.content_bias_HK[...], self.position_bias_HK[...]

    def _rows(self, table_RD, distance_C):
        """Returns rows of a table whose last row is distance 0; beyond it, the farthest."""
        R = table_RD.shape[0]
        farthest = R if self.clamp is None else min(R, max(self.clamp, 1))
        return table_RD[...][R - 1 - jnp.clip(distance_C, 0, farthest - 1)]

    # One segment.

    def __call__(
        self,
        x_BTD: jax.Array,
        memory_BMD: jax.Array,
        visible_BTJ: jax.Array,
        positions: Positions | None,
        biases: Biases | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Reads one segment of every row.

        Args:
            x_BTD: (B, T, D), from `add_position_vectors`.
            memory_BMD: (B, M, D), inputs of this layer before them; no gradient reaches them.
            visible_BTJ: (B, T, M + T) bool, keys each query sees.
            positions: from `positions`, of `distances(T, M + T)`.
            biases: u and v of all layers, unless the layer has its own.
            key: dropout key or None.

        Returns:
            (B, T, D).
        """
        weights_key, output_key, hidden_key, feed_key = (
            (None,) * 4 if key is None else jax.random.split(key, 4)
        )
        with jax.named_scope("attention"):
            q_BTHK, k_BJHK, v_BJHK = self._queries_keys_values(x_BTD, memory_BMD)
            B, T, H, _ = q_BTHK.shape
            rate = self.drops.attention
            kept_BHTJ = None
            if weights_key is not None and rate:
                kept_BHTJ = jax.random.bernoulli(
                    weights_key, 1.0 - rate, (B, H, T, k_BJHK.shape[1])
                )
            content_bias_HK, _ = self._biases(biases)
            y_BTHK = attend_by_distance(
                q_BTHK, k_BJHK, v_BJHK, content_bias_HK, positions, visible_BTJ, kept_BHTJ, rate
            )
        return self._project_and_feed(x_BTD, y_BTHK, output_key, hidden_key, feed_key)

    def show(
        self,
        x_BTD: jax.Array,
        memory_BMD: jax.Array,
        visible_BTJ: jax.Array,
        positions: Positions | None,
        biases: Biases | None = None,
    ) -> LayerAttention:
        """Returns the attention weights of `__call__`, and its terms; arguments as there."""
        q_BTHK, k_BJHK, _ = self._queries_keys_values(x_BTD, memory_BMD)
        terms = score_terms(q_BTHK, k_BJHK, self._biases(biases)[0], positions)
        a_BHTJ, b_BHTJ, c_BHTJ, d_BHTJ = terms
        s_BHTJ = a_BHTJ + b_BHTJ + c_BHTJ + d_BHTJ
        return LayerAttention(weights(s_BHTJ, visible_BTJ), terms)

    def content_attention(
        self, x_BTD: jax.Array, memory_BJD: jax.Array, filled_BJ: jax.Array
    ) -> jax.Array:
        """Returns what the inputs of a segment read of vectors by their content alone.

        Args:
            x_BTD: (B, T, D), inputs of the layer, which ask.
            memory_BJD: (B, J, D), what is read; gradients reach it, and nothing else.
            filled_BJ: (B, J) bool, which of them may be read; at least one of each row.

        Returns:
            (B, T, H, K).

        Source: the attention of the attention-reconstruction loss, Rae et al. 2019,
        arXiv:1911.05507, algorithm 2.
        """
        graph, params = nnx.split(self)
        layer = nnx.merge(graph, jax.lax.stop_gradient(params))
        x_BTD = jax.lax.stop_gradient(x_BTD)
        if layer.pre_norm:
            x_BTD, memory_BJD = layer.attention_norm(x_BTD), layer.attention_norm(memory_BJD)
        s_BHTJ = scores(
            layer._heads(x_BTD, layer.queries_DA), layer._heads(memory_BJD, layer.keys_DA)
        )
        w_BHTJ = weights(s_BHTJ, filled_BJ[:, None])
        return read_values(w_BHTJ, layer._heads(memory_BJD, layer.values_DA))

    def _queries_keys_values(self, x_BTD, memory_BMD):
        T = x_BTD.shape[1]
        memory_BMD = jax.lax.stop_gradient(memory_BMD)
        x_BJD = jnp.concatenate([memory_BMD.astype(x_BTD.dtype), x_BTD], axis=1)
        if self.pre_norm:
            x_BJD = self.attention_norm(x_BJD)
        q_BTHK = self._heads(x_BJD[:, x_BJD.shape[1] - T :], self.queries_DA)
        return q_BTHK, self._heads(x_BJD, self.keys_DA), self._heads(x_BJD, self.values_DA)

    def _heads(self, x_BTD, matrix_DA):
        x_BTA = x_BTD @ matrix_DA[...].astype(x_BTD.dtype)
        x_BTHK = x_BTA.reshape(*x_BTA.shape[:-1], self.num_heads, self.head_size)
        return constrain(x_BTHK, "BTHK") if x_BTHK.ndim == 4 else x_BTHK

    def _project_and_feed(self, x_BTD, y_BTHK, output_key=None, hidden_key=None, feed_key=None):
        with jax.named_scope("attention"):
            y_BTA = y_BTHK.reshape(*x_BTD.shape[:2], -1)
            y_BTD = self.drops(y_BTA @ self.output_AD[...].astype(x_BTD.dtype), output_key)
            x_BTD = x_BTD + y_BTD if self.pre_norm else self.attention_norm(x_BTD + y_BTD)
        with jax.named_scope("feed_forward"):
            fed_BTD = self.feed_forward_norm(x_BTD) if self.pre_norm else x_BTD
            y_BTD = self.feed_forward(fed_BTD, lambda h_BTF: self.drops(h_BTF, hidden_key))
            x_BTD = x_BTD + self.drops(y_BTD, feed_key)
            return constrain(x_BTD if self.pre_norm else self.feed_forward_norm(x_BTD), "BTD")

    # One token.

    def decode(
        self,
        x_BD: jax.Array,
        hidden: Sequence[jax.Array],
        visible_BJ: jax.Array,
        distance_BJ: jax.Array,
        sinusoid_CD: jax.Array | None,
        biases: Biases | None = None,
    ) -> jax.Array:
        """Reads one token of every row, over inputs that are kept as they are.

        Keys and values of all J inputs are never computed: the token's query is taken back
        through the matrices instead, H * D numbers for each key instead of D * H * K.

        Args:
            x_BD: (B, D), from `add_position_vectors`.
            hidden: inputs of this layer, the token's own among them, in parts that stand one
                after the other, J in all: (B, M, D) remembered and (B, P, D) of the segment.
            visible_BJ, distance_BJ: what it sees of them, and at which distance, (B, J).
            sinusoid_CD: of the distances 0, 1, ... J - 1, in this order.
            biases: as in `__call__`.

        Returns:
            (B, D).
        """
        H, K = self.num_heads, self.head_size
        x_B1D = x_BD[:, None]
        normed_B1D = x_B1D
        parts = [part_BJD.astype(x_BD.dtype) for part_BJD in hidden]
        if self.pre_norm:
            normed_B1D = self.attention_norm(x_B1D)
            parts = [self.attention_norm(part_BJD) for part_BJD in parts]
        q_BHK = self._heads(normed_B1D, self.queries_DA)[:, 0]
        u_HK, v_HK = self._biases(biases)

        def through(q_BHK, matrix_DA):
            matrix_DHK = matrix_DA[...].astype(q_BHK.dtype).reshape(-1, H, K)
            return jnp.einsum("BHK,DHK->BHD", q_BHK, matrix_DHK)

        def add(q_BHK, bias_HK):
            return q_BHK if bias_HK is None else q_BHK + bias_HK.astype(q_BHK.dtype)

        dtype = wide(x_BD).dtype
        content_BHD = through(add(q_BHK, u_HK), self.keys_DA)
        s_BHJ = jnp.concatenate(
            [
                jnp.einsum("BHD,BJD->BHJ", content_BHD, part_BJD, preferred_element_type=dtype)
                for part_BJD in parts
            ],
            axis=-1,
        )
        p_BHC = None
        if self.encoding == "relative":
            q_BHD = through(add(q_BHK, v_HK), self.positions_DA)
            p_BHC = jnp.einsum("BHD,CD->BHC", q_BHD, sinusoid_CD, preferred_element_type=dtype)
        elif self.encoding == "shaw":
            distance_J = jnp.arange(s_BHJ.shape[-1])
            keys_CHK = self._rows(self.distance_keys_RHK, distance_J)
            p_BHC = jnp.einsum("BHK,CHK->BHC", q_BHK, keys_CHK, preferred_element_type=dtype)
            p_BHC = p_BHC + self._rows(self.distance_bias_RH, distance_J).T
        if p_BHC is not None:
            s_BHJ += jnp.take_along_axis(p_BHC, jnp.maximum(distance_BJ, 0)[:, None], axis=-1)
        w_BH1J = weights((s_BHJ / math.sqrt(K))[:, :, None], visible_BJ[:, None])
        w_BHJ = w_BH1J[:, :, 0].astype(x_BD.dtype)
        edges = list(itertools.accumulate(part_BJD.shape[1] for part_BJD in parts[:-1]))
        y_BHD = sum(
            jnp.einsum("BHJ,BJD->BHD", weight_BHJ, part_BJD)
            for weight_BHJ, part_BJD in zip(jnp.split(w_BHJ, edges, axis=-1), parts)
        )
        values_DHK = self.values_DA[...].astype(x_BD.dtype).reshape(-1, H, K)
        y_BHK = jnp.einsum("BHD,DHK->BHK", y_BHD, values_DHK)
        return self._project_and_feed(x_B1D, y_BHK[:, None])[:, 0]
