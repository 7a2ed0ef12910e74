"""Parameters by kind, and operations against the compiler's own count.

The published sizes are counted in tests/configs/test_configs.py.
"""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from architectures import ARCHITECTURES, abstract
from flax import nnx
from tiny_models import OneKey, parameters

from brt.models.block_recurrent.cached_states import CachedStates
from brt.models.block_recurrent.delta_layers import (
    GatedDeltaLayer,
    KimiDeltaLayer,
    LinearAttentionLayer,
)
from brt.models.block_recurrent.gated_delta import CHANNEL_BLOCK, HEAD_BLOCK
from brt.models.block_recurrent.kimi_delta import KimiDeltaMemory
from brt.models.block_recurrent.lact import LactMemory
from brt.models.block_recurrent.memory import LayerMemory, LayerTokens, TokenMemory
from brt.models.block_recurrent.titans import TitansMemory
from brt.models.counts import ParameterCounts, count_parameters
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import RMSNorm
from brt.models.sizes import Sizes
from brt.models.transformer_xl.compressive_memory import CompressiveMemory
from brt.models.transformer_xl.hidden_memory import LayerSegment
from brt.models.transformer_xl.layer import TransformerXLLayer

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)

OF_EMBEDDING = ("embedding", "begin_D", "positions_RD", "head_VD")


def by_name(model):
    """Counts by the names of parameters alone, where `count_parameters` goes by their marks."""
    of_memories = {"memory_SD", "cross_queries_DA", "cross_scale_H", "cross_norm"}
    of_memories |= {"cell", "memory", "memories", "associations", "summary_RD", "gate_HK"}
    of_memories |= {"summary_mixing", "short_mixing", "long_mixing"}
    for _, module in nnx.iter_modules(model):
        of_memories |= {*getattr(module, "memory_names", ())}
    found = dict.fromkeys(ParameterCounts._fields, 0)
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters(model))[0]:
        names = [entry.key for entry in path]
        if of_memories & set(names):
            found["recurrence"] += leaf.size
        elif names[-1] == "output_CD":
            found["layers"] += leaf.size // 2
            found["recurrence"] += leaf.size // 2
        elif any(str(name).startswith(OF_EMBEDDING) for name in names):
            found["embedding"] += leaf.size
        else:
            found["layers"] += leaf.size
    return ParameterCounts(**found)


@every_architecture
def test_every_parameter_is_counted_once_under_its_name(name):
    model = abstract(name)
    found = count_parameters(model)
    assert found == by_name(model)
    total = sum(leaf.size for leaf in jax.tree.leaves(parameters(model)))
    assert sum(found) == total == found.embedding + found.non_embedding


@pytest.mark.parametrize(
    ("switch", "removed"),
    [
        (dict(state_ids=False), {"state_ids_SD"}),
        (dict(qk_norm=False), {"attention_scale_H", "cross_scale_H"}),
    ],
    ids=["state_ids", "qk_norm"],
)
@pytest.mark.parametrize("name", ["rec_fixed_dual", "rec_sequential", "feedback_lstm_single"])
def test_a_switch_removes_its_own_parameters_only(name, switch, removed):
    kept, left = (
        {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(parameters(model))}
        for model in (abstract(name), abstract(name, **switch))
    )
    assert left == {path: shape for path, shape in kept.items() if path[-1].key not in removed}
    assert {path[-1].key for path in kept.keys() - left.keys()} == removed


class Summaries(LayerMemory):
    """A memory that brt does not know, with a projection of its own and two parts inside."""

    name = "summaries"

    def __init__(self, rngs, sizes, window):
        self.mix_DA = parameter(rngs, DENSE, sizes.width, sizes.attention_size)
        self.norm = RMSNorm(rngs, sizes.width)
        self.table = Table(rngs)
        self.words_VD = parameter(rngs, DENSE, 7, sizes.width, purpose="embedding")

    def init_cache(self, rows, dtype):
        return ()


class Table(nnx.Module):
    """A part with a purpose of its own, around one with none."""

    purpose = "layers"

    def __init__(self, rngs):
        self.norm = RMSNorm(rngs, 5)
        self.states_SD = parameter(rngs, DENSE, 3, 2, purpose="recurrence")


def test_a_new_memory_is_counted_without_an_edit():
    plain = count_parameters(abstract("slide"))
    model = abstract("slide", memories=((Summaries, (0, 2)),))
    found = count_parameters(model)
    # Its own and those of a part without a purpose; the nearest purpose wins, a mark over all.
    assert found.recurrence - plain.recurrence == 2 * (12 * 8 + 12 + 3 * 2)
    assert found.layers - plain.layers == 2 * 5
    assert found.embedding - plain.embedding == 2 * 7 * 12


# Operations

D, H, K, W = 128, 2, 64, 64
LAYERS = 2
WIDE = dict(
    vocabulary_size=1024, num_layers=LAYERS, width=D, num_heads=H, head_size=K,
    feed_forward_size=256, window=W, num_states=24,
)  # fmt: skip


MODELS = (
    *("slide", "rec_fixed_skip", "rec_fixed_dual", "rec_sequential", "feedback_fixed_skip"),
    *("memorizing_exact", "rec_memorizing", "rmt_rec", "associative_delta", "gated_delta"),
)


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_the_compiler_counts(name):
    """The compiler also counts norms and softmax: one or two per cent at this width.

    It counts a loop's body once, so the segment is one block; and the keys a token's own
    block hides from it, which `flops_per_token` leaves out: 2W are multiplied, W are seen.
    """
    settings = ARCHITECTURES[name].settings
    overrides = dict(WIDE)
    if "recurrent_layers" in settings:
        overrides |= dict(recurrent_layers=(1,))
    if "memorizing_layers" in settings:
        overrides |= dict(memorizing_layers=(1,), size=8 * W, neighbours=16)
    T = W - 2 * settings.get("num_memory", 0)  # a block with the memory tokens in it
    graph, params = nnx.split(ARCHITECTURES[name].build(OneKey(), **overrides).for_segments(T))
    model = nnx.merge(graph, params)
    caches = jax.eval_shape(lambda params: nnx.merge(graph, params).init_caches(1), params)
    tokens = jax.ShapeDtypeStruct((1, T), "int32")
    run = jax.jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs))
    counted = run.lower(params, tokens, caches).cost_analysis()["flops"] / T
    hidden = LAYERS * 4 * H * K * W * W / T
    assert 1.0 < counted / (model.flops_per_token() + hidden) < 1.02


@pytest.mark.parametrize("name", ["txl_adaptive", "lstm_adaptive"])
def test_looking_up_an_embedding_is_no_operation(name):
    """Logits are products with one matrix, also where the embedding is another."""
    tied, untied = (abstract(name, div_val=1, tied=tied) for tied in (True, False))
    assert count_parameters(untied).embedding > count_parameters(tied).embedding
    assert untied.flops_per_token() == tied.flops_per_token()


LAYER = 512, 4, 128, 8
MEMORIES = {
    "gated delta layer": (GatedDeltaLayer, LAYER, HEAD_BLOCK, 1.03),
    "Kimi delta layer": (KimiDeltaLayer, LAYER, CHANNEL_BLOCK, 1.03),
    "linear attention": (LinearAttentionLayer, LAYER, HEAD_BLOCK, 1.03),
    "Kimi delta memory": (KimiDeltaMemory, LAYER, CHANNEL_BLOCK, 1.03),
    "cached states": (CachedStates, (256, 4, 64, 8), 64, 1.06),
    "LaCT": (partial(LactMemory, muon=True), (256, 2, 128, 8), 64, 1.1),
    "LaCT without momentum": (partial(LactMemory, momentum=False), (256, 2, 128, 8), 64, 1.1),
    "Titans": (TitansMemory, (256, 2, 128, 8), 64, 1.1),
}
"""Memories, sizes of their layer, tokens of a block, and the largest ratio of operations."""


@pytest.mark.parametrize("name", MEMORIES)
def test_operations_of_a_memory_are_those_the_compiler_counts(name):
    """The compiler also counts norms, gates, and the functions of hidden units."""
    kind, sizes, W, most = MEMORIES[name]
    D, H, K, _ = sizes
    options = dict(hidden_size=64) if most == 1.1 else {}
    memory = nnx.eval_shape(lambda: kind(OneKey(), Sizes(*sizes), W, **options))
    graph, params = nnx.split(memory, nnx.Param)

    def block(params, cache, x_BTD, q, k, v):
        memory, tokens = nnx.merge(graph, params), LayerTokens(x_BTD, q, k, v, jnp.ones(H))
        if isinstance(memory, TokenMemory):
            attended = x_BTD if memory.replaces_attention else v
            return memory.run(cache, tokens, attended, jnp.ones((1, W), bool))[:2]
        weights = memory.prepare("float32")
        y, _ = memory.read(cache, tokens, v, weights)
        return y, memory.update(cache, memory.take(tokens), weights)[0]

    cache = jax.eval_shape(lambda p: nnx.merge(graph, p).init_cache(1, "float32"), params)
    inputs = [jax.ShapeDtypeStruct((1, W, *size), "float32") for size in [(D,)] + [(H, K)] * 3]
    counted = jax.jit(block).lower(params, cache, *inputs).cost_analysis()["flops"] / W
    assert 1.0 < counted / memory.flops_per_token(W) < most


def test_operations_of_a_compressive_memory_are_the_compilers():
    """Its metric, the reconstruction loss, is among the results, as in a training step."""
    D, H, K, T = 256, 4, 64, 128
    sizes = Sizes(D, H, K, 4 * D)
    memory = nnx.eval_shape(
        lambda: CompressiveMemory(
            OneKey(), sizes, T, compressed=T, rate=4, compression="convolution"
        )
    )
    layer = nnx.eval_shape(lambda: TransformerXLLayer(OneKey(), sizes))
    graph, params = nnx.split((memory, layer))

    def update(params, cache, x_BTD):
        memory, layer = nnx.merge(graph, params)
        return memory.update(cache, LayerSegment(x_BTD, layer))

    # An argument: of a constant, empty cache the compiler leaves the loss out.
    cache = jax.eval_shape(lambda: memory.init_cache(1, "float32"))
    x_BTD = jax.ShapeDtypeStruct((1, T, D), "float32")
    counted = jax.jit(update).lower(params, cache, x_BTD).compile().cost_analysis()["flops"]
    assert 1.0 < counted / memory.flops_per_segment(T) < 1.05
