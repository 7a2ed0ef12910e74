"""The Associative Recurrent Memory Transformer: memory tokens that write into a matrix per layer.

A segment is [tokens; memory tokens], X = T + S positions, with causal attention. Every layer adds
its matrix's values for each position; the outputs of the memory tokens are then written into the
matrix, the only cache. Y: size of a key, L = 6 Y: of its features.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import zeros
from jax.typing import DTypeLike

from brt.checks import Count, configurable
from brt.models.counts import matrix_size
from brt.models.decoding_window import update_where
from brt.models.fast.products import matmul
from brt.models.layers.dropout import split_key
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import share_of_norm
from brt.models.layerwise import Layerwise
from brt.models.model import Metrics
from brt.models.ops import at_least_float32
from brt.models.relative_attention import distances
from brt.models.segment_memory import SegmentMemory
from brt.models.transformer_xl.decoding import open_segments
from brt.models.transformer_xl.hidden_memory import DecodingSegment, append_input, before_segment
from brt.models.transformer_xl.model import TransformerXL
from brt.models.wrapper import LanguageModelWrapper

NU = 3
"""Products per entry of the feature map, DPFP-3."""
EPSILON = 1e-5


class AssociationCache(NamedTuple):
    """Matrices that memory tokens of earlier segments wrote, at least float32. Empty: zeros.

    matrix_BLD: (B, L, D), sum of products of a key's features and a value.
    sum_BL: (B, L), sum of the features of new keys.
    """

    matrix_BLD: jax.Array
    sum_BL: jax.Array


def features(x: jax.Array) -> jax.Array:
    """Returns unit-length features of keys or queries, (..., Y) to (..., 6 Y).

    r = [relu(x), relu(-x)]; the features are r times r rolled by 1, 2 and 3 entries (DPFP-3).

    Source: Schlag et al. 2021, arXiv:2102.11174, section 5.3.
    """
    x = at_least_float32(x)
    r = jnp.concatenate([jax.nn.relu(x), jax.nn.relu(-x)], axis=-1)
    products = jnp.concatenate([r * jnp.roll(r, i, axis=-1) for i in range(1, NU + 1)], axis=-1)
    return products * jax.lax.rsqrt(jnp.sum(jnp.square(products), axis=-1, keepdims=True) + 1e-24)


class Association(SegmentMemory[jax.Array]):
    """The associative matrix of one layer, updated with the outputs of its memory tokens.

    add:    x + A^T f(W_q x) / (z . f(W_q x))
    update: A + sum_s b_s f_s (W_v m_s - A^T f_s / (z . f_s))^T,  z + sum_s g_s f_s,
            with f_s = f(W_k m_s), b_s = sigmoid(w_b m_s + c), g_s = clip(1 - z . f_s, 0, 1)

    g prevents z from counting a key twice; no gradient flows through it. The released code also
    subtracts `EPSILON` from g, but not in the first segment.

    Source: Rodkin et al. 2024, arXiv:2407.04841, section 2, and the released code.
    """

    name = "association"

    def __init__(self, rngs: nnx.Rngs, width: int, key_size: int):
        self.queries_DY = parameter(rngs, DENSE, width, key_size)
        self.keys_DY = parameter(rngs, DENSE, width, key_size, multiplied=False)
        self.values_DD = parameter(rngs, zeros, width, width, multiplied=False)
        self.rate_D = parameter(rngs, normal(width**-0.5), width)
        self.rate_bias_N = parameter(rngs, zeros, 1)

    def init_cache(self, rows: int, dtype: DTypeLike) -> AssociationCache:
        D, Y = self.queries_DY.shape
        kept = jnp.promote_types(dtype, jnp.float32)
        return AssociationCache(
            jnp.zeros((rows, 2 * NU * Y, D), kept), jnp.zeros((rows, 2 * NU * Y), kept)
        )

    def read(self, cache: AssociationCache, dtype: DTypeLike) -> AssociationCache:
        return cache

    def add(self, read: AssociationCache, x_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the layer's inputs, (B, T, D), and the memory's share of their norm."""
        f_BTL = features(matmul(x_BTD, self.queries_DY[...]))
        y_BTD, _ = _stored(read, f_BTL)
        return x_BTD + y_BTD.astype(x_BTD.dtype), share_of_norm(y_BTD, x_BTD)

    def update(
        self, cache: AssociationCache, segment: jax.Array
    ) -> tuple[AssociationCache, Metrics]:
        m_BSD = at_least_float32(segment)
        f_BSL = features(m_BSD @ self.keys_DY[...])
        stored_BSD, known_BS = _stored(cache, f_BSL)
        v_BSD = m_BSD @ self.values_DD[...] - stored_BSD
        rate_BS = jax.nn.sigmoid(m_BSD @ self.rate_D[...] + self.rate_bias_N[...])
        new_BS = jax.lax.stop_gradient(jnp.clip(1 - known_BS, 0, 1))
        matrix_BLD = cache.matrix_BLD + jnp.einsum("BSL,BSD,BS->BLD", f_BSL, v_BSD, rate_BS)
        sum_BL = cache.sum_BL + jnp.einsum("BSL,BS->BL", f_BSL, new_BS)
        return AssociationCache(matrix_BLD, sum_BL), {}


def _stored(cache, f_BTL):
    known_BT = jnp.einsum("BTL,BL->BT", f_BTL, cache.sum_BL)
    y_BTD = jnp.einsum("BTL,BLD->BTD", f_BTL, cache.matrix_BLD)
    return y_BTD / (known_BT + EPSILON)[..., None], known_BT


@configurable(denylist=["rngs"])
class AssociativeRecurrentMemoryTransformer(LanguageModelWrapper):
    """ARMT around a Transformer-XL without memory, which has its own bindings.

    Args:
        num_memory: S, memory tokens at the end of a segment, at least 1.
        key_size: Y.
        body: builds the backbone, a `TransformerXL` with memory_length 0 and relative positions.

    Source: Rodkin et al. 2024, arXiv:2407.04841, section 2.
    """

    body: TransformerXL

    def __init__(
        self,
        rngs: nnx.Rngs,
        num_memory: Count,
        key_size: Count = 64,
        body: Callable[..., TransformerXL] = TransformerXL,
    ):
        self.wrap(body(rngs))
        if self.body.memory_length or self.body.encoding != "relative":
            raise ValueError(
                "AssociativeRecurrentMemoryTransformer remembers by its matrices, and places its "
                "memory tokens by relative positions: bind TransformerXL.memory_length = 0 and "
                'TransformerXL.encoding = "relative".'
            )
        self.num_memory = num_memory
        self.segment_length = 1
        width = self.body.width
        self.memory_SD = parameter(
            rngs, normal(1.0), num_memory, width, purpose="recurrence", multiplied=False
        )
        self.associations = nnx.List(Association(rngs, width, key_size) for _ in self.body.layers)

    def for_segments(self, length: int) -> Self:
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        model.body = model.body.for_segments(length)
        return model

    def init_caches(self, rows: int) -> tuple:
        return tuple(each.init_cache(rows, self.dtype) for each in self.associations)

    # Segments.

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, Metrics]:
        T = x_BTD.shape[1]
        _, outputs, shares = self._run(self._enter(x_BTD), caches, key=key)
        written = self._written(caches, [y_BXD[:, T:] for y_BXD in outputs])
        metrics = {f"layer{i}/memory_share": share for i, share in enumerate(shares)}
        last_key = None if key is None else jax.random.fold_in(key, len(caches) + 2)
        with jax.named_scope("vocabulary"):
            return self.body.drops(outputs[-1][:, :T], last_key), written, metrics

    def layerwise(self) -> Layerwise:
        S = self.num_memory

        def run(modules, x_BXD, cache):
            _, (y_BXD,), _ = self._run(x_BXD, (cache,), modules=[modules])
            return y_BXD, modules[1].update(cache, y_BXD[:, -S:])[0]

        layers = [nnx.List(modules) for modules in self._modules()]
        return Layerwise(layers, run, self._enter, lambda x_BXD: x_BXD[:, :-S])

    def _modules(self):
        return list(zip(self.body.layers, self.associations, strict=True))

    def _enter(self, x_BTD):
        return jnp.concatenate([x_BTD, self._memory(len(x_BTD))], axis=1)

    def _memory(self, rows):
        memory_SD = self.memory_SD[...].astype(self.dtype)
        return jnp.broadcast_to(memory_SD, (rows, *memory_SD.shape))

    def _run(self, x_BQD, caches, before=None, key=None, modules=None):
        """Runs layers, by default all, on positions after the inputs `before`, (B, M, D) each.

        Returns each layer's input with the memory, output, and share of the memory.
        """
        rows, Q, D = x_BQD.shape
        before = before or [jnp.zeros((rows, 0, D), x_BQD.dtype)] * len(caches)
        M = before[0].shape[1]
        causal_QJ = M + jnp.arange(Q)[:, None] >= jnp.arange(M + Q)
        visible_BQJ = jnp.broadcast_to(causal_QJ, (rows, Q, M + Q))
        keys = split_key(key, self.dropout, len(caches) + 2)
        x_BQD = self.body.drops(x_BQD, keys[-1])
        shared = self.body.distances(distances(Q, M + Q), keys[-2])
        by_layer = []
        parts = zip(modules or self._modules(), caches, before, strict=True)
        for i, ((layer, association), cache, before_BMD) in enumerate(parts):
            with jax.named_scope(f"layer{i}"):
                with jax.named_scope("memory"):
                    read = association.read(cache, self.dtype)
                    input_BQD, share = association.add(read, x_BQD)
                x_BQD = layer(input_BQD, before_BMD, visible_BQJ, shared, keys[i])
            by_layer.append((input_BQD, x_BQD, share))
        return zip(*by_layer)

    def _written(self, caches, outputs):
        with jax.named_scope("memory"):
            parts = zip(self.associations, caches, outputs, strict=True)
            return tuple(each.update(cache, m_BSD)[0] for each, cache, m_BSD in parts)

    # Tokens.

    def begin_decoding(self, caches: tuple) -> tuple:
        return open_segments(self.body, caches, self.period)

    def end_decoding(self, caches: tuple) -> tuple:
        return before_segment(caches)

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        inputs, outputs, _ = self._run(self.embed(tokens_BT), caches)
        opened = open_segments(self.body, caches, self.period, inputs, counts_B)
        return self.logits(outputs[-1]), opened

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        x_BD = self.embed(tokens_B[:, None])[:, 0]
        index_P = jnp.arange(self.period)
        distance_BP = caches[0].fill_B[:, None] - index_P
        shared = self.body.distances(index_P)
        opened: list[DecodingSegment] = []
        for (layer, association), cache in zip(self._modules(), caches, strict=True):
            read = association.read(cache.before, self.dtype)
            x_BD = association.add(read, x_BD[:, None])[0][:, 0]
            opened.append(append_input(cache, x_BD, reads_B))
            hidden = (opened[-1].x_BPD,)
            x_BD = layer.decode(x_BD, hidden, distance_BP >= 0, distance_BP, shared)
        full_B = opened[0].fill_B == self.period

        def finish(opened):
            before = before_segment(opened)
            inputs = [cache.x_BPD for cache in opened]
            _, outputs, _ = self._run(self._memory(len(full_B)), before, inputs)
            return self.begin_decoding(self._written(before, outputs))

        return self.logits(x_BD), update_where(full_B, finish, tuple(opened))

    def flops_per_token(self) -> float:
        S, P = self.num_memory, self.period
        D, Y = self.associations[0].queries_DY.shape
        attention = 6 * self.body.sizes.attention_size * S * (P + (S + 1) / 2)
        layers = sum(2 * matrix_size(layer) * S for layer in self.body.layers)
        matrix = 2 * NU * Y * D
        read = 2 * (D * Y + matrix) * (P + S)
        write = 2 * (D * Y + D * D + 2 * matrix) * S
        shared = layers + len(self.associations) * (attention + read + write)
        return self.body.flops_per_token() + shared / P
