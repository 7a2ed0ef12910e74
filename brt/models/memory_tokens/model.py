"""The Recurrent Memory Transformer: memory tokens around each segment of a backbone."""

from collections.abc import Callable
from typing import Annotated, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx

from brt.checks import Count, NotNegative, OneOf, configurable
from brt.models.attention_weights import AttentionLayout, AttentionWeights, ShowsAttention
from brt.models.body import Body, MemoryTokens
from brt.models.caches import select_rows
from brt.models.decoding_window import update_where
from brt.models.layers.initializers import parameter
from brt.models.memory_layout import MemoryLayout
from brt.models.memory_tokens.token_vectors import MemoryCache, TokenVectors
from brt.models.model import Metrics
from brt.models.transformer_xl.model import TransformerXL
from brt.models.wrapper import LanguageModelWrapper

INITIAL_ROWS = ("independent", "identical")


class DecodingMemory(NamedTuple):
    """The memory while a segment is being decoded.

    memory_BSD: (B, S, D), as in `MemoryCache`; without write positions and after a segment's first
    token, the next memory.
    fill_B: (B,) int32, tokens of the segment so far, 0 ... P - 1.
    """

    memory_BSD: jax.Array
    fill_B: jax.Array


@configurable(denylist=["rngs"])
class RecurrentMemoryTransformer(LanguageModelWrapper, ShowsAttention):
    """RMT and the Memory Transformer, around any `Body`.

    Around a Transformer-XL with `memory_length` > 0 it is Tr-XL + RMT.

    Args:
        num_memory: S, memory tokens.
        body: builds the backbone, a `Body`.
        memory_at_end: whether there are write positions. Without them (the Memory Transformer) the
            memory does not see the segment's tokens.
        read_memory_from_cache: whether memory tokens see the memory of a Transformer-XL.
        initial_rows: the initial memory is S "independent" draws of N(0, 1), or S times the same
            one ("identical", the released code).
        auxiliary_weight: of a loss by which every new memory vector predicts a special token
            (appendix A.5).
        allow_long_memory: allow as many memory tokens as tokens in a segment, as in the paper's
            algorithmic tasks.

    Source: RMT, section 3, and the released code.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        num_memory: Count,
        body: Callable[..., Body] = TransformerXL,
        memory_at_end: bool = True,
        read_memory_from_cache: bool = False,
        initial_rows: Annotated[str, OneOf(INITIAL_ROWS)] = "independent",
        auxiliary_weight: NotNegative = 0.0,
        allow_long_memory: bool = False,
    ):
        self.special_tokens = int(auxiliary_weight > 0)
        self.wrap(body(rngs, special_tokens=self.special_tokens))
        if not isinstance(self.body, Body):
            raise ValueError(
                "RecurrentMemoryTransformer.body must build a model that memory tokens can be put "
                f"around, a Body, and {type(self.body).__name__} is none."
            )
        self.num_memory = num_memory
        self.memory_at_end = memory_at_end
        self.read_memory_from_cache = read_memory_from_cache
        self.auxiliary_weight = auxiliary_weight
        self.allow_long_memory = allow_long_memory
        self.segment_length = 1
        rows = num_memory if initial_rows == "independent" else 1
        self.memory_SD = parameter(
            rngs,
            _repeated(rows),
            num_memory,
            self.body.width,
            purpose="recurrence",
            multiplied=False,
        )

    @property
    def layout(self) -> MemoryLayout:
        return MemoryLayout(
            self.num_memory, self.period, self.memory_at_end, self.read_memory_from_cache
        )

    @property
    def memory(self) -> TokenVectors:
        return TokenVectors(self.memory_SD)

    @property
    def positions(self) -> MemoryTokens:
        return self.body.memory_tokens(self.layout)

    def for_segments(self, length: int) -> Self:
        if self.num_memory >= length and not self.allow_long_memory:
            raise ValueError(
                f"RecurrentMemoryTransformer.num_memory = {self.num_memory} memory tokens can "
                f"hold a whole segment of {length} tokens: bind fewer, or allow_long_memory = "
                "True if that is what you mean, as in the paper's algorithmic tasks."
            )
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        model.body = model.body.for_memory_tokens(model.layout)
        model.body.memory_tokens(model.layout)  # raises if it does not support the layout
        return model

    # Segments.

    def init_caches(self, rows: int) -> tuple:
        return (*self.body.init_caches(rows), self.memory.init_cache(rows, self.dtype))

    def stack(
        self, x_BTD: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple, Metrics]:
        *body_caches, cache = caches
        memory = self.memory.read(cache, self.dtype)
        y_BTD, memory_BSD, after, metrics = self.positions.segment(
            x_BTD, tuple(body_caches), memory.x_BMD, key
        )
        with jax.named_scope("memory"):
            cache, memory_metrics = self.memory.update(cache, memory_BSD)
        metrics = metrics | memory_metrics
        if self.special_tokens:
            with jax.named_scope("vocabulary"):
                special_BS = jnp.full(memory_BSD.shape[:2], self.vocabulary_size, jnp.int32)
                nats_BS, _ = self.token_losses(memory_BSD, special_BS)
            added = self.auxiliary_weight * nats_BS.mean()
            metrics["added_nats"] = metrics.get("added_nats", 0.0) + added
        return y_BTD, (*after, cache), metrics

    def attention_layout(self, segment_length: int) -> AttentionLayout | None:
        return self.for_segments(segment_length).positions.attention_layout()

    def attention_weights(
        self, tokens_BT: jax.Array, caches: tuple
    ) -> tuple[AttentionWeights, jax.Array, tuple]:
        *body_caches, (memory_BSD,) = caches
        weights, y_BTD, memory_BSD, after = self.positions.attention_weights(
            self.embed(tokens_BT), tuple(body_caches), memory_BSD
        )
        return weights, self.logits(y_BTD), (*after, MemoryCache(memory_BSD))

    def gradient_metrics(self, grads: dict) -> Metrics:
        return self.body.gradient_metrics(grads["body"])

    # Tokens. The read positions are processed with a segment's first token, the write positions
    # with its last, so between segments the decoding form contains the segment form only.

    def begin_decoding(self, caches: tuple) -> tuple:
        *body_caches, (memory_BSD,) = caches
        fill_B = jnp.zeros(len(memory_BSD), jnp.int32)
        begun = self.positions.begin_decoding(tuple(body_caches))
        return (*begun, DecodingMemory(memory_BSD, fill_B))

    def end_decoding(self, caches: tuple) -> tuple:
        *body_caches, memory = caches
        ended = self.positions.end_decoding(tuple(body_caches))
        return (*ended, MemoryCache(memory.memory_BSD))

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        *body_caches, (memory_BSD,) = caches
        y_BPD, part, read_BSD = self.positions.read_part(
            self.embed(tokens_BT), tuple(body_caches), memory_BSD, counts_B
        )
        memory_BSD = self._while_decoding(memory_BSD, read_BSD)
        part = (*part, DecodingMemory(memory_BSD, counts_B))
        return self.logits(y_BPD), select_rows(counts_B > 0, part, self.begin_decoding(caches))

    def _while_decoding(self, memory_BSD, read_BSD):
        return memory_BSD if self.memory_at_end else read_BSD

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        *body_caches, (memory_BSD, fill_B) = caches
        reads_B = jnp.broadcast_to(jnp.asarray(reads_B), fill_B.shape)
        positions = self.positions

        def begin(before):
            caches, memory_BSD = before
            caches, read_BSD = positions.begin(caches, memory_BSD)
            return caches, self._while_decoding(memory_BSD, read_BSD)

        before = tuple(body_caches), memory_BSD
        begun, memory_BSD = update_where(reads_B & (fill_B == 0), begin, before)
        x_BD = self.embed(tokens_B[:, None])[:, 0]
        y_BD, decoded = positions.decode(x_BD, begun, reads_B)
        fill_B = fill_B + reads_B.astype(jnp.int32)
        full_B = fill_B == self.period
        before = decoded, memory_BSD
        after, memory_BSD = update_where(full_B, lambda before: positions.finish(*before), before)
        fill_B = jnp.where(full_B, 0, fill_B)
        return self.logits(y_BD), (*after, DecodingMemory(memory_BSD, fill_B))

    def flops_per_token(self) -> float:
        return self.positions.flops_per_token()


def _repeated(rows):
    def draw(key, shape, dtype):
        return jnp.broadcast_to(jax.random.normal(key, (rows, *shape[1:]), dtype), shape)

    return draw
