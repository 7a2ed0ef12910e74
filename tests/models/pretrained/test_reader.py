"""Readers of labelled documents: the memory between segments, and the answers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marking import slow
from tiny_models import OneKey, quick_jit, randomised

from brt.models.block_recurrent.associative_memory import AssociativeMemory
from brt.models.block_recurrent.cached_states import CachedStates
from brt.models.block_recurrent.delta_layers import GatedDeltaLayer
from brt.models.block_recurrent.gated_delta import GatedDeltaMemory
from brt.models.caches import select_rows
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.memories.backbone_memory import BackboneMemory, CellMemory
from brt.pretrained.memories.pooled_memory import FinalLayerMemory
from brt.pretrained.reader import LOWEST, PretrainedReader
from brt.token_ids import PADDING

SIZES = dict(vocabulary_size=19, num_layers=2, width=8, num_heads=2, feed_forward_size=12)
BODIES = {
    "bert": functools.partial(BERT, **SIZES, num_positions=16),
    "roberta": functools.partial(RoBERTa, **SIZES, num_positions=18),
    "deberta": functools.partial(DeBERTa, **SIZES, num_positions=16, longest_distance=5),
    "t5": functools.partial(T5, **SIZES, head_size=3, buckets=8, longest_distance=6),
}
B, T = 3, 7
EVERY_TOKEN = functools.partial(BackboneMemory, memory=GatedDeltaMemory)
FINAL = functools.partial(FinalLayerMemory, layer_index=1, hidden=(6,))


@functools.cache
def reader(name, memory=2, targets=None, pooled=False):
    targets = targets or ("words" if name == "t5" else "classes")

    def build():
        return PretrainedReader(
            OneKey(),
            body=BODIES[name],
            targets=targets,
            classes=3,
            words=3,
            num_memory=memory,
            memories=(FINAL,) if pooled else (),
        )

    return randomised(nnx.eval_shape(build), 2).for_segments(T)


def tokens(*lengths, seed=0, width=T):
    """Rows of so many tokens, padded."""
    ids = np.random.default_rng(seed).integers(2, 19, (len(lengths), width))
    return np.where(np.arange(width) < np.array(lengths)[:, None], ids, PADDING).astype(np.int32)


@functools.partial(quick_jit, static_argnums=0)
def read_one(graph, params, ids_BT, caches, starts_B):
    model = nnx.merge(graph, params)
    caches = select_rows(starts_B, model.init_caches(len(ids_BT)), caches)
    outputs, caches, _ = model.stack(model.embed(ids_BT), caches)
    return outputs, caches


def read(model, segments, starts):
    """Outputs of each segment and the caches after the last, as the step reads them."""
    caches = model.init_caches(len(segments[0]))
    found = []
    for ids_BT, starts_B in zip(segments, starts, strict=True):
        outputs, caches = read_one(*nnx.split(model), ids_BT, caches, np.asarray(starts_B))
        found.append(outputs)
    return found, caches


KINDS = [("bert", 2, False), ("t5", 2, False), ("bert", 0, True)]
MORE_KINDS = [("roberta", 2, False), ("deberta", 2, False), ("roberta", 2, True)]
every_kind = pytest.mark.parametrize(
    "name, memory, pooled", [*KINDS, *(slow(*kind) for kind in MORE_KINDS)]
)
YES, NO = [True] * B, [False] * B


@every_kind
def test_only_a_memory_carries_the_first_segment_to_the_answer(name, memory, pooled):
    later = [tokens(7, 7, 7, seed=s) for s in (1, 2)]
    for with_memory in (True, False):
        if not with_memory and pooled:
            continue
        model = reader(name, memory if with_memory else 0, pooled=pooled and with_memory)
        outputs = [
            read(model, [tokens(7, 7, 7, seed=seed), *later], [YES, NO, NO])[0][-1].x_BTD
            for seed in (3, 4)
        ]
        assert np.array_equal(*outputs) != with_memory


def test_without_memory_a_segment_is_the_body_and_its_head():
    model = reader("bert", 0)
    ids = tokens(7, 5, 3)
    (outputs,), _ = read(model, [ids], [YES])
    x_BTD = model.body.embed(jnp.asarray(ids))
    expected = model.body.read(x_BTD, jnp.asarray(ids != PADDING)).outputs[-1]
    real = ids != PADDING
    np.testing.assert_allclose(outputs.x_BTD[real], np.asarray(expected)[real], atol=1e-6)
    np.testing.assert_allclose(model.answers(outputs), model.head(expected[:, 0]), atol=1e-6)


@pytest.mark.slow
def test_of_several_labels_each_has_a_probability_of_its_own():
    model = reader("bert", 2, targets="labels")
    (outputs,), _ = read(model, [tokens(7, 5, 3)], [YES])
    scores_BN = np.asarray(model.answers(outputs), float)
    assert scores_BN.shape == (B, 3)
    targets_BT = np.random.default_rng(1).integers(0, 2, (B, T)).astype(np.int32)
    nats_BT, correct_BT = model.token_losses(outputs, jnp.asarray(targets_BT))
    probabilities = 1 / (1 + np.exp(-scores_BN))
    labels_BN = targets_BT[:, :3] == 1
    expected = -np.log(np.where(labels_BN, probabilities, 1 - probabilities))
    np.testing.assert_allclose(nats_BT[:, :3], expected, rtol=1e-5)
    assert np.array_equal(correct_BT[:, :3], (scores_BN > 0) == labels_BN)
    assert not np.asarray(nats_BT[:, 3:]).any()


def test_memory_stands_after_the_first_position_and_before_t5s():
    for name, first in (("bert", 1), ("t5", 0)):
        model = reader(name, 2)
        ids = tokens(7, 7, 7)
        caches = model.init_caches(B)
        (memory_BSD,) = caches[1]
        words = model.body.embed(jnp.asarray(ids))
        x = jnp.concatenate([words[:, :first], memory_BSD, words[:, first:]], axis=1)
        y = model.body.read(x, jnp.ones(x.shape[:2], bool)).outputs[-1]
        _, after = read(model, [ids], [YES])
        np.testing.assert_allclose(after[1].memory_BSD, y[:, first : first + 2], atol=1e-6)


@pytest.mark.parametrize("memory", [FINAL, EVERY_TOKEN])
def test_padding_enters_no_memory(memory):
    build = functools.partial(PretrainedReader, OneKey(), BODIES["bert"], memories=(memory,))
    model = randomised(nnx.eval_shape(build), 2)
    ids = tokens(5, 3, 1, width=5)
    padded = np.pad(ids, [(0, 0), (0, 2)], constant_values=PADDING)
    (_, found), (_, expected) = (read(model, [x], [YES]) for x in (padded, ids))
    same = functools.partial(np.testing.assert_allclose, atol=1e-6)
    jax.tree.map(same, found, expected)


@pytest.mark.parametrize("name, targets", [("bert", "classes"), ("bert", "spans"), ("t5", "words")])
def test_losses_are_of_what_is_answered(name, targets):
    model = reader(name, 2, targets)
    ids = tokens(7, 5, 4)
    (outputs,), _ = read(model, [ids], [YES])
    answers = np.asarray(model.answers(outputs))
    if targets == "classes":
        assert answers.shape == (B, 3)
        scores = [answers]
    elif targets == "spans":
        assert answers.shape == (B, 2 * T + 3)
        assert (answers[1, 5:T] <= LOWEST / 2).all() and (answers[1, :5] > LOWEST / 2).all()
        scores = np.split(answers, [T, 2 * T], axis=1)
    else:
        # The likeliest answer is right at each word, whatever it is.
        assert answers.shape == (B, 3)
        padded = jnp.zeros((B, T), jnp.int32).at[:, :3].set(answers)
        nats, correct = model.token_losses(outputs, padded)
        assert np.asarray(correct[:, :3]).all() and not np.asarray(correct[:, 3:]).any()
        assert (np.asarray(nats[:, :3]) > 0).all()
        return
    best = np.stack([part.argmax(axis=1) for part in scores], axis=1)
    other = np.ones_like(best)
    for wanted in (best, other):
        targets_BT = np.zeros((B, T), np.int32)
        targets_BT[:, : wanted.shape[1]] = wanted
        nats, correct = model.token_losses(outputs, jnp.asarray(targets_BT))
        assert nats.shape == correct.shape == (B, T)
        for position, part in enumerate(scores):
            exact = np.log(np.exp(part.astype(float)).sum(axis=1))
            exact -= part[np.arange(B), wanted[:, position]]
            np.testing.assert_allclose(nats[:, position], exact, atol=1e-5)
            right = part.argmax(axis=1) == wanted[:, position]
            assert np.asarray(correct[:, position]).tolist() == right.tolist()
        assert not np.asarray(nats[:, len(scores) :]).any()


def test_the_kind_of_answer_is_the_highest_of_all_segments():
    model = reader("roberta", 0, "spans")
    segments = [tokens(7, 5, 3, seed=1), tokens(4, 6, 7, seed=2)]
    found, _ = read(model, segments, [YES, NO])
    highest = np.maximum(found[0].x_BTD[:, 0], found[1].x_BTD[:, 0])
    np.testing.assert_allclose(found[1].first_BD, highest, atol=1e-6)
    expected = model.head.kinds(jnp.asarray(highest))
    np.testing.assert_allclose(model.answers(found[1])[:, -3:], expected, atol=1e-6)


def test_gradients_reach_the_first_segment_through_the_memory():
    model = reader("bert", 2)
    graph, params = nnx.split(model, nnx.Param)
    segments = jnp.asarray(np.stack([tokens(7, 7, 7, seed=s) for s in (1, 2, 3)]))

    def loss(added, params):
        model = nnx.merge(graph, params)
        caches = model.init_caches(B)
        for number in range(3):
            embedded = model.embed(segments[number])
            if number == 0:
                embedded = embedded._replace(x_BTD=embedded.x_BTD + added)
            outputs, caches, _ = model.stack(embedded, caches)
        return model.token_losses(outputs, jnp.zeros((B, T), jnp.int32))[0].sum()

    gradient = quick_jit(jax.grad(loss))(jnp.zeros((B, T, 8)), params)
    assert (np.abs(np.asarray(gradient)).max(axis=2) > 0).all()


def refused(**settings):
    nnx.eval_shape(lambda: PretrainedReader(OneKey(), **settings))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"@T5 answers with \"words\""):
        refused(body=BODIES["bert"], targets="words")
    with pytest.raises(ValueError, match=r"@T5 answers with \"words\""):
        refused(body=BODIES["t5"])
    with pytest.raises(ValueError, match="DeBERTa"):
        refused(body=BODIES["deberta"], memories=(FINAL,))
    with pytest.raises(ValueError, match="T5 knows positions by their distance"):
        refused(body=BODIES["t5"], targets="words", memories=(CellMemory,))
    with pytest.raises(ValueError, match=r"RecurrentCell, .* padding"):
        refused(body=BODIES["bert"], memories=(CellMemory,))
    with pytest.raises(ValueError, match=r"AssociativeMemory, .* padding"):
        blockwise = functools.partial(BackboneMemory, memory=AssociativeMemory)
        refused(body=BODIES["bert"], memories=(blockwise,))
    with pytest.raises(ValueError, match=r"CachedStates, .* padding"):
        states = functools.partial(CachedStates, memory=GatedDeltaLayer, most=2)
        refused(body=BODIES["bert"], memories=(functools.partial(BackboneMemory, memory=states),))
    with pytest.raises(ValueError, match=r"PretrainedReader\.body = .* an Encoder"):
        sizes = dict(vocabulary_size=9, num_layers=1, width=4, num_heads=1, num_positions=8)
        refused(body=functools.partial(GPT2, **sizes))
    with pytest.raises(ValueError, match=r"16 positions.*segment_length = 14"):
        reader("bert", 2).for_segments(15)
    with pytest.raises(ValueError, match=r"classes = 3 .*segment_length = 3 or more"):
        reader("bert", 2, targets="labels").for_segments(2)
    with pytest.raises(ValueError, match=r"PretrainedReader\.classes = 1"):
        refused(body=BODIES["bert"], classes=1)


def test_operations_count_memory_positions_and_all_keys():
    model = reader("bert", 2)
    positions = T + 2
    matrices = 2 * (4 * 8 * 8 + 2 * 8 * 12)
    per_position = 2 * (matrices + 4 * 8 * positions)
    assert model.flops_per_token() == pytest.approx(per_position * positions / T)
