"""Adaptive embedding and adaptive softmax.

Ids are ranks by frequency. Rare bins have narrower vectors (E), projected to the model's width. The
softmax is over the frequent words and the N rare bins, then within a bin.
"""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros
from jax.typing import DTypeLike

from brt.models.axis_rules import constrain
from brt.models.layers import losses
from brt.models.layers.initializers import normal, parameter
from brt.models.ops import at_least_float32
from brt.token_ids import BEGIN

CHUNK = 256
"""Tokens scored at a time in a rare bin."""


class Bin(nnx.Module):
    """Words of similar frequency.

    Args:
        size, bin_width, width: V words, E of their vectors, D of the model.
        projects: whether the vectors are projected from E to D.
        tied, ties_projection: as in `AdaptiveEmbedding`.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        size: int,
        bin_width: int,
        width: int,
        projects: bool,
        tied: bool,
        ties_projection: bool,
        std: float,
        projection_std: float,
    ):
        self.table_VE = parameter(rngs, normal(std), size, bin_width, multiplied=tied)
        self.bias_V = parameter(rngs, zeros, size)
        self.projects = projects
        self.tied = tied
        self.ties_projection = ties_projection
        if not tied:
            self.output_VE = parameter(rngs, normal(std), size, bin_width)
        if projects:
            self.projection_ED = parameter(rngs, normal(projection_std), bin_width, width)
            if not ties_projection:
                draw = normal(projection_std)
                self.output_projection_ED = parameter(rngs, draw, bin_width, width)

    def embed(self, ids: jax.Array, dtype: DTypeLike) -> jax.Array:
        x_BTE = self.table_VE[...].astype(dtype)[ids]
        return x_BTE @ self.projection_ED[...].astype(dtype) if self.projects else x_BTE

    def logits(
        self,
        x_BTD: jax.Array,
        more_NE: jax.Array | None = None,
        more_bias_N: jax.Array | None = None,
    ) -> jax.Array:
        """Returns (..., V + N) logits of the bin's words and of N further output vectors."""
        if self.projects:
            tied = self.ties_projection
            projection_ED = self.projection_ED if tied else self.output_projection_ED
            x_BTD = x_BTD @ projection_ED[...].astype(x_BTD.dtype).T
        output_VE = (self.table_VE if self.tied else self.output_VE)[...]
        bias_V = self.bias_V[...]
        if more_NE is not None and more_bias_N is not None:
            output_VE = jnp.concatenate([output_VE, more_NE])
            bias_V = jnp.concatenate([bias_V, more_bias_N])
        return at_least_float32(x_BTD @ output_VE.astype(x_BTD.dtype).T) + bias_V


class AdaptiveEmbedding(nnx.Module):
    """Embedding and softmax of V words.

    Args:
        cutoffs: first ids of the rare bins, increasing, 0 < ... < V. Empty: one bin, a plain
            softmax.
        div_val: the vectors of bin i have size D // div_val ** i; above 1 all bins project.
        tied: whether the softmax uses the embedding matrices.
        tied_projections: whether it uses the embedding's projections: one bool, or one per bin.
        owner: the model whose bindings errors and `divided_sizes` name.

    Source: Grave et al. 2017 (arXiv:1609.04309) and Baevski and Auli 2019 (arXiv:1809.10853).
    """

    purpose = "embedding"

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: int,
        width: int,
        cutoffs: tuple[int, ...] = (),
        div_val: int = 1,
        tied: bool = True,
        tied_projections: bool | tuple[bool, ...] = True,
        std: float = 0.02,
        projection_std: float = 0.01,
        owner: str = "TransformerXL",
    ):
        edges = (0, *cutoffs, vocabulary_size)
        if any(low >= high for low, high in itertools.pairwise(edges)):
            raise ValueError(
                f"{owner}.cutoffs = {tuple(cutoffs)} must increase and lie between 0 and "
                f"{owner}.vocabulary_size = {vocabulary_size}."
            )
        bins = len(edges) - 1
        if div_val < 1 or width // div_val ** (bins - 1) < 1:
            raise ValueError(
                f"{owner}.div_val = {div_val} leaves bin {bins - 1} of a model of width "
                f"{width} no width: make it smaller, at least 1."
            )
        if isinstance(tied_projections, bool):
            tied_projections = (tied_projections,) * bins
        if len(tied_projections) != bins:
            raise ValueError(
                f"{owner}.tied_projections = {tuple(tied_projections)} needs one value for "
                f"each of {bins} bins, or one for all."
            )
        self.edges = edges
        self.width = width
        self.owner = owner
        self.bins = nnx.List(
            Bin(
                rngs,
                size=high - low,
                bin_width=width // div_val**i,
                width=width,
                projects=div_val > 1,
                tied=tied,
                ties_projection=tied_projections[i],
                std=std,
                projection_std=projection_std,
            )
            for i, (low, high) in enumerate(itertools.pairwise(edges))
        )
        if bins > 1:
            self.clusters_ND = parameter(rngs, normal(std), bins - 1, width)
            self.cluster_bias_N = parameter(rngs, zeros, bins - 1)
        self.begin_D = parameter(rngs, normal(std), width)

    def __call__(self, tokens_BT: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Returns (B, T, D) vectors of (B, T) ids (or `BEGIN`), times sqrt(D)."""
        begin_D = self.begin_D[...].astype(dtype)
        x_BTD = jnp.where((tokens_BT == BEGIN)[..., None], begin_D, jnp.zeros((), dtype))
        for part, low, high in zip(self.bins, self.edges[:-1], self.edges[1:], strict=True):
            inside_BT = (tokens_BT >= low) & (tokens_BT < high)
            y_BTD = part.embed(jnp.clip(tokens_BT - low, 0, high - low - 1), dtype)
            x_BTD = jnp.where(inside_BT[..., None], y_BTD, x_BTD)
        return constrain(x_BTD * self.width**0.5, "BTD")

    def divided_sizes(self) -> dict[str, int]:
        ends = [f"{self.owner}.cutoffs[{i}]" for i in range(len(self.bins) - 1)]
        ends.append(f"{self.owner}.vocabulary_size")
        names = [ends[0], *(f"{high} - {low}" for low, high in itertools.pairwise(ends))]
        sizes = (high - low for low, high in itertools.pairwise(self.edges))
        return dict(zip(names, sizes, strict=True))

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Maps (..., D) to (..., V): logits of one bin, log-probabilities of several."""
        x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
        if len(self.bins) == 1:
            return self.bins[0].logits(x_BTD)
        head_BTV = self._head(x_BTD)
        size = self.edges[1]
        parts = [head_BTV[..., :size]]
        for i, part in enumerate(self.bins[1:]):
            tail_BTV = jax.nn.log_softmax(part.logits(x_BTD))
            parts.append(head_BTV[..., size + i, None] + tail_BTV)
        return jnp.concatenate(parts, axis=-1)

    def _head(self, x_BTD):
        first = self.bins[0]
        return jax.nn.log_softmax(
            first.logits(x_BTD, self.clusters_ND[...], self.cluster_bias_N[...])
        )

    def token_losses(self, x_BTD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of each target, and whether it is the most likely word.

        For several bins no (B, T, V) array exists: a rare bin is scored, CHUNK tokens at a time,
        only where it contains the target or is more likely than every frequent word.
        """
        if len(self.bins) == 1:
            return losses.token_losses(self.logits(x_BTD), targets_BT)
        x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
        targets_N = targets_BT.reshape(-1)
        size = self.edges[1]
        head_NV = self._head(x_ND)
        first_N = jnp.minimum(targets_N, size - 1)
        log_p_N = jnp.take_along_axis(head_NV, first_N[:, None], axis=-1)[:, 0]
        best_N = jax.lax.stop_gradient(head_NV[:, :size].max(axis=-1))
        likely_N = jnp.argmax(head_NV[:, :size], axis=-1)
        frequent_N = best_N
        for i, (part, low, high) in enumerate(
            zip(self.bins[1:], self.edges[1:-1], self.edges[2:], strict=True)
        ):
            inside_N = (targets_N >= low) & (targets_N < high)
            cluster_N = head_NV[:, size + i]
            needed_N = inside_N | (cluster_N > frequent_N)
            target_N = jnp.clip(targets_N - low, 0, high - low - 1)
            tail_N, top_N, word_N = _score_needed(part, x_ND, target_N, needed_N)
            log_p_N = jnp.where(inside_N, cluster_N + tail_N, log_p_N)
            top_N = jnp.where(needed_N, jax.lax.stop_gradient(cluster_N) + top_N, -jnp.inf)
            likely_N = jnp.where(top_N > best_N, low + word_N, likely_N)
            best_N = jnp.maximum(best_N, top_N)
        shape = targets_BT.shape
        return -log_p_N.reshape(shape), (likely_N == targets_N).reshape(shape)


def _score_needed(part, x_ND, target_N, needed_N):
    count = x_ND.shape[0]
    order_N = jnp.argsort(~needed_N, stable=True)  # needed tokens first
    chunk = min(CHUNK, count)
    padded = -(-count // chunk) * chunk
    rows_XC = jnp.pad(order_N, (0, padded - count)).reshape(-1, chunk)
    starts = jnp.arange(0, padded, chunk)
    total = needed_N.sum()
    dtype = at_least_float32(x_ND).dtype

    def score(x_CD, target_C):
        log_p_CV = jax.nn.log_softmax(part.logits(x_CD))
        log_p_C = jnp.take_along_axis(log_p_CV, target_C[:, None], axis=-1)[:, 0]
        top_C = jax.lax.stop_gradient(log_p_CV.max(axis=-1))
        return log_p_C, top_C, jnp.argmax(log_p_CV, axis=-1).astype(jnp.int32)

    def skip(x_CD, target_C):
        return jnp.zeros(chunk, dtype), jnp.zeros(chunk, dtype), jnp.zeros(chunk, jnp.int32)

    def step(carry, inputs):
        rows_C, start = inputs
        return carry, jax.lax.cond(start < total, score, skip, x_ND[rows_C], target_N[rows_C])

    # The backward pass would otherwise keep the logits of all chunks.
    _, scored = jax.lax.scan(jax.checkpoint(step), None, (rows_XC, starts))
    back_N = jnp.argsort(order_N)
    return tuple(x.reshape(-1)[:count][back_N] for x in scored)
