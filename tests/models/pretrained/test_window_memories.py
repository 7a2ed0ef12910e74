"""Memories between windows: what they begin as, what they are refused for, what they cost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WINDOW, abstract
from flax import nnx
from marking import slow
from pretrained_architectures import GPT2_SIZES, LLAMA_SIZES
from tiny_models import OneKey, cast, quick_jit, randomised

from brt.models.block_recurrent.associative_memory import AssociativeMemory
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.gated_delta import GatedDeltaMemory
from brt.models.block_recurrent.memory import LayerMemory
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.memories.backbone_memory import BackboneMemory, CellMemory
from brt.pretrained.memories.pooled_memory import PooledMemory
from brt.pretrained.memories.window_memory import Positions, Window
from brt.pretrained.sliding_model import SlidingLanguageModel

ROWS = 2
BODY = functools.partial(GPT2, **GPT2_SIZES)
SMALL_CELL = functools.partial(RecurrentCell, num_states=3)
MEMORIES = {
    "pooled": (PooledMemory,),
    "attention": (functools.partial(PooledMemory, layer_index=None, pooling="attention"),),
    "cell": (functools.partial(CellMemory, cell=SMALL_CELL),),
}


def model_of(memories=(), overlap=0, rngs=None):
    model = PretrainedLanguageModel(rngs or OneKey(), body=BODY, memories=memories, overlap=overlap)
    return model.for_segments(SEGMENT)


def with_memories(memories, overlap=0):
    """A model in float64 with the memories as they begin, around the same random body."""
    model = model_of(memories, overlap, nnx.Rngs(3))
    model.body = randomised(model.body, 1)
    return cast(model, "float64")


def windows(model, tokens_KBT):
    graph, params = nnx.split(model, nnx.Param)
    read = quick_jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs))
    caches, found = model.init_caches(ROWS), []
    for tokens_BT in tokens_KBT:
        logits_BTV, caches = read(params, tokens_BT, caches)
        found.append(np.asarray(logits_BTV))
    return found


def tokens(windows, seed=0):
    shape = windows, ROWS, SEGMENT
    return jnp.asarray(np.random.default_rng(seed).integers(0, VOCABULARY, shape), jnp.int32)


@pytest.mark.parametrize("name", ["pooled", slow("attention"), "cell"])
def test_a_memory_that_is_not_there_changes_nothing(name):
    """P1: the first window, and with a cell before training every window, is the body's own."""
    with jax.enable_x64(True):
        plain = windows(with_memories((), 3), tokens(3))
        found = windows(with_memories(MEMORIES[name], 3), tokens(3))
    unchanged = [np.abs(a - b).max() <= 1e-12 * np.abs(b).max() for a, b in zip(found, plain)]
    assert unchanged == [True, name == "cell", name == "cell"]


def test_the_cell_starts_to_learn_through_the_zero_matrix():
    with jax.enable_x64(True):
        model = with_memories(MEMORIES["cell"])
        graph, params = nnx.split(model, nnx.Param)

        def loss(params):
            model = nnx.merge(graph, params)
            caches = model.init_caches(ROWS)
            for tokens_BT in tokens(2):
                logits_BTV, caches = model(tokens_BT, caches)
            return jnp.square(logits_BTV).sum()

        grads = nnx.to_pure_dict(quick_jit(jax.grad(loss))(params))
    of_cell = grads["memories"][0]
    assert np.abs(of_cell["cross_output_AD"]).max() > 0
    assert not np.abs(of_cell["cross_queries_DA"]).max()  # moves when that matrix has moved


@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_a_window_of_padding_leaves_no_vector(pooling):
    memory = PooledMemory(OneKey(), BODY(OneKey()), pooling=pooling, num_vectors=2)
    outputs = [jax.random.normal(jax.random.key(i), (2, 4, memory.width)) for i in range(3)]
    real_BT = jnp.array([[False] * 4, [True, True, True, False]])
    summary = memory.summary(outputs, Positions(real_BT, jnp.zeros_like(real_BT)))
    cache, _ = memory.update(memory.init_cache(2, jnp.dtype("float32")), Window(summary, []))
    assert cache.count_B.tolist() == [0, 2]
    assert not np.abs(cache.vectors_BMD[0]).max() and np.abs(cache.vectors_BMD[1]).max() > 0
    assert np.isfinite(cache.vectors_BMD).all()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: PooledMemory(OneKey(), BODY(OneKey()), layer_index=3),
            r"PooledMemory\.layer_index = .*3 does not exist in a stack of 3",
        ),
        (
            lambda: CellMemory(OneKey(), BODY(OneKey()), layer_index=-4),
            r"CellMemory\.layer_index = .*-4 does not exist",
        ),
        (lambda: PooledMemory(OneKey(), BODY(OneKey()), pooling="sum"), r"pooling = 'sum'"),
        (lambda: PooledMemory(OneKey(), BODY(OneKey()), hidden=(0,)), r"PooledMemory.hidden = "),
        (lambda: model_of((), 33), r"bind Trainer\.segment_length = 7 or less\."),
        (lambda: model_of((), 40), r"= 0 or less, and a smaller overlap"),
        (lambda: model_of((), -1), r"PretrainedLanguageModel\.overlap = -1 must be"),
        (lambda: model_of((PooledMemory, PooledMemory)), "two of one name in pooled, pooled"),
        (lambda: around(2, overlap=1), r"overlap = 1 would read memory tokens again"),
        (lambda: around(17), r"Trainer\.segment_length = 6 or less, or fewer memory tokens"),
        (lambda: around(2, auxiliary_weight=0.1), r"auxiliary_weight = 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        nnx.eval_shape(build)


def around(num_memory, overlap=0, **settings):
    body = functools.partial(PretrainedLanguageModel, body=BODY, overlap=overlap)
    settings = dict(num_memory=num_memory, allow_long_memory=True) | settings
    return RecurrentMemoryTransformer(OneKey(), body=body, **settings).for_segments(SEGMENT)


class Reads(AssociativeMemory):
    update = LayerMemory.update


def test_a_memory_that_no_window_would_change_is_refused():
    build = functools.partial(model_of, (functools.partial(BackboneMemory, memory=Reads),))
    with pytest.raises(ValueError, match=r"BackboneMemory: Reads "):
        nnx.eval_shape(build)


def test_windows_that_overlap_refuse_a_memory_of_every_token():
    memories = (functools.partial(BackboneMemory, memory=GatedDeltaMemory),)
    nnx.eval_shape(lambda: model_of(memories, overlap=0))
    with pytest.raises(ValueError, match=r"PretrainedLanguageModel\.overlap = 2"):
        nnx.eval_shape(lambda: model_of(memories, overlap=2))


@pytest.mark.parametrize(
    ("binding", "build"),
    [
        ("BackboneMemory.memory", functools.partial(BackboneMemory, memory=PooledMemory)),
        ("CellMemory.cell", functools.partial(CellMemory, cell=GatedDeltaMemory)),
        ("PretrainedLanguageModel.memories", SMALL_CELL),
    ],
)
def test_a_part_of_another_kind_is_refused_by_its_argument(binding, build):
    with pytest.raises(ValueError, match=rf"^{binding} = "):
        nnx.eval_shape(lambda: model_of((build,)))


class Told(BackboneMemory):
    """An associative memory of another name, which adds to the loss."""

    def __init__(self, rngs, body, name="told"):
        super().__init__(rngs, body, memory=AssociativeMemory, layer_index=0)
        self.name = name

    def update(self, cache, segment):
        cache, metrics = super().update(cache, segment)
        return cache, metrics | {"added_nats": jnp.ones(()), "same": jnp.ones(())}


def test_metrics_of_all_memories_of_a_backbone_are_reported():
    """Metrics of reading and updating have their memory's name; terms of the loss are summed."""
    model = model_of(tuple(functools.partial(Told, name=name) for name in ("one", "two")))
    graph, params = nnx.split(model, nnx.Param)

    def stack(params, tokens_BT):
        model = nnx.merge(graph, params)
        return model.stack(model.embed(tokens_BT), model.init_caches(ROWS))[2]

    metrics = quick_jit(stack)(params, tokens(1)[0])
    assert metrics.keys() == {
        *("memory_share", "two/memory_share", "same", "two/same", "added_nats")
    }
    assert metrics["added_nats"] == 2


class Adding(AssociativeMemory):
    """Adds to the loss when it is read and when it is updated."""

    def read(self, cache, tokens, attended_BTHK, weights):
        y, _ = super().read(cache, tokens, attended_BTHK, weights)
        return y, {"added_nats": self.mix_H[...].sum()}

    def update(self, cache, taken, weights):
        return super().update(cache, taken, weights)[0], {"added_nats": 2 * self.mix_H[...].sum()}


@pytest.mark.parametrize("sliding", [False, True])
def test_what_a_memory_adds_to_the_loss_is_trained(sliding):
    memory = functools.partial(BackboneMemory, memory=Adding)
    model = model_of((memory,), rngs=nnx.Rngs(0))
    if sliding:
        body = functools.partial(Llama, **LLAMA_SIZES)
        model = SlidingLanguageModel(nnx.Rngs(0), WINDOW, body, memory)
    graph, params = nnx.split(model, nnx.Param)

    def added(params):
        model = nnx.merge(graph, params)
        x_BTD = model.embed(tokens(1)[0])
        return model.stack(x_BTD, model.init_caches(ROWS))[2]["added_nats"]

    gradient = nnx.merge(graph, quick_jit(jax.grad(added))(params))
    found = gradient.cell if sliding else gradient.memories[0]
    np.testing.assert_allclose(found.memory.mix_H[...], 3)


def test_operations_by_hand():
    """The operations of tokens that are read again are counted with the new tokens."""
    D, F, V, T, N = 12, 10, VOCABULARY, SEGMENT + 3, SEGMENT
    layers = 3 * (2 * (4 * D * D + 2 * D * F) + 4 * D * (T + 1) / 2)
    assert abstract("gpt2_overlap").flops_per_token() == 2 * V * D + layers * T / N
    model = abstract("gpt2_pooled")
    T = SEGMENT + 11
    layers = 3 * (2 * (4 * D * D + 2 * D * F) + 4 * D * (T + 1) / 2) + 4 * D
    network = 2 * (D * 8 + 8 * 6 + 6 * D) + 4 * D * D + 2 * T * D * 3
    assert model.flops_per_token() == pytest.approx(2 * V * D + (layers * T + network) / N)
