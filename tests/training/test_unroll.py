"""Backpropagation through time: the gradient of segment t reaches exactly min(t, depth) back."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from architectures import VOCABULARY, random_model, segment_length
from flax import nnx
from marking import slow
from tiny_models import cast, leaves_close, parameters, quick_jit, wide_types  # noqa: F401

from brt.data.streams.batch import Batch
from brt.evaluation.segment_reader import read_segment
from brt.models.layers.dropout import dropout
from brt.models.layers.initializers import normal, parameter
from brt.models.model import Model
from brt.training.train_step import TrainState, make_loss, make_train_step

K, B, T, D = 4, 2, 3, 5
DEPTHS = (None, 0, 2)


class SumCache(NamedTuple):
    """The cache of the toy: a state that every token updates."""

    state_BD: jax.Array


class Toy(Model):
    """The smallest model with a memory and a learned first state: quick to compile."""

    vocabulary_size, dropout = VOCABULARY, 0.3

    def __init__(self, rngs):
        self.embedding_VD = parameter(rngs, normal(0.5), VOCABULARY, D)
        self.state_DD = parameter(rngs, normal(0.5), D, D)
        self.first_D = parameter(rngs, normal(0.5), D)

    def init_caches(self, rows):
        return (SumCache(jnp.broadcast_to(self.first_D[...], (rows, D))),)

    def embed(self, tokens_BT):
        return self.embedding_VD[...][tokens_BT]

    def stack(self, x_BTD, caches, key=None):
        read_BTD = dropout(x_BTD + caches[0].state_BD[:, None], 0.3 if key is not None else 0, key)
        y_BTD = jnp.tanh(jnp.cumsum(read_BTD, axis=1) @ self.state_DD[...])
        return y_BTD, (SumCache(y_BTD[:, -1]),), {"size": jnp.mean(y_BTD**2)}

    def logits(self, x_BTD):
        return x_BTD @ self.embedding_VD[...].T


class Bumped:
    """A model whose embedded tokens can be pushed, segment by segment.

    A batch adds the segment's number, times the vocabulary's size, to its token ids.
    """

    def __init__(self, model, bumps_KTD):
        self.model, self.bumps_KTD = model, bumps_KTD

    def __getattr__(self, name):
        return getattr(self.model, name)

    def embed(self, tokens_BT):
        number = tokens_BT[0, 0] // VOCABULARY
        return self.model.embed(tokens_BT % VOCABULARY) + self.bumps_KTD[number]

    def gradient_metrics(self, grads):
        return self.model.gradient_metrics(grads["model"])


class Case(NamedTuple):
    """A model to grade: its parameters with the bumps, caches of rows mid-document, T, reach."""

    bind: callable
    params: dict
    caches: tuple
    length: int
    back: int


SETTINGS = {
    "rmt": dict(num_layers=1),
    "rmt_txl": dict(num_layers=2, memory_length=24),  # a cache of all that came before
    "rec_fixed_skip": dict(num_layers=1, recurrent_layers=(0,)),
    "slide": dict(num_layers=2),  # which sees 2 windows of tokens, a segment, and no farther
}
BACK = {"slide": 1}


def segment_sums(model, segment, caches):
    caches, x_BTD, metrics = read_segment(model, segment, caches)
    return caches, *model.token_losses(x_BTD, segment.targets_BT), metrics


@functools.cache
def case(name) -> Case:
    with jax.enable_x64(True):
        if name == "toy":
            model, length, width = cast(Toy(nnx.Rngs(0)), "float64"), T, D
        else:
            model = random_model(name, dtype="float64", **SETTINGS[name])
            length, width = segment_length(name), 12
        graph = nnx.graphdef(model)

        def bind(params):
            flat = jax.tree_util.tree_leaves_with_path(params["model"])
            state = [(tuple(key.key for key in path), nnx.Param(leaf)) for path, leaf in flat]
            return Bumped(nnx.merge(graph, nnx.from_flat_state(state)), params["bumps"])

        rng = np.random.default_rng(0)
        params = {"model": parameters(model), "bumps": jnp.zeros((K, length, width))}
        caches = model.init_caches(B)
        caches = jax.tree.map(lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape)), caches)
        return Case(bind, params, caches, length, BACK.get(name, K))


@functools.cache
def graded(name, depth, **options):
    loss = make_loss(case(name).bind, bptt_depth=depth, **options)
    return quick_jit(jax.value_and_grad(loss, has_aux=True))


def grade(name, depth, batch, key=None, **options):
    return graded(name, depth, **options)(case(name).params, case(name).caches, batch, key)


def batch(name, scored=None, starts=None):
    """Random tokens; weights are random, or 1 on the tokens of segment `scored` alone."""
    shape, rng = (K, B, case(name).length), np.random.default_rng(1)
    tokens, targets = rng.integers(0, VOCABULARY, (2, *shape)).astype(np.int32)
    numbers = np.arange(K)[:, None, None]
    weights = rng.random(shape) if scored is None else np.float64((numbers == scored) + 0 * tokens)
    starts = np.zeros((K, B), bool) if starts is None else starts
    return Batch(np.int32(tokens + VOCABULARY * numbers), targets, weights, starts)


@pytest.mark.parametrize(
    ("name", "depth"),
    [("toy", depth) for depth in DEPTHS] + [("rmt_txl", None), ("rec_fixed_skip", 1), ("slide", 2)],
)
def test_a_loss_reaches_tokens_exactly_depth_segments_back(name, depth):
    model, caches = case(name).params["model"], case(name).caches

    @quick_jit
    @jax.grad
    def slopes(bumps_KTD, batch):
        loss = make_loss(case(name).bind, bptt_depth=depth)
        return loss({"model": model, "bumps": bumps_KTD}, caches, batch, None)[0]

    for t in range(K):
        bumps_KTD = slopes(case(name).params["bumps"], batch(name, scored=t))
        limit = min(t, K if depth is None else depth, case(name).back)
        moved = [t - s for s in range(K) if np.any(np.asarray(bumps_KTD[s]))]
        assert sorted(moved) == list(range(limit + 1)), f"segment {t}"


def by_hand(name, depth):
    """The loss spelled out: every segment read from min(t, depth) back, its memory cut there."""
    read = jax.jit(lambda *args: segment_sums(case(name).bind(args[0]), *args[1:])[:2])

    def loss(params, caches, batch):
        memories = [caches]
        part = [batch.segment(t) for t in range(K)]
        for t in range(K):
            memories.append(read(params, part[t], memories[t])[0])
        nats = 0.0
        for t in range(K):
            first = 0 if depth is None else max(0, t - depth)
            memory = jax.lax.stop_gradient(memories[first])
            for s in range(first, t + 1):
                memory, nats_BT = read(params, part[s], memory)
            nats += (nats_BT * part[t].weights_BT).sum()
        return nats / batch.weights_KBT.sum(), memories[K]

    return quick_jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize(("name", "depth"), [*(("toy", depth) for depth in DEPTHS), slow("rmt", 2)])
def test_the_gradient_is_that_of_the_unroll_spelled_out(name, depth):
    starts = np.zeros((K, B), bool)
    starts[0, 0] = starts[1, 1] = starts[3, 0] = True  # learned initial states at several positions
    mixed = batch(name, starts=starts)
    (value, (caches, _, _)), grads = grade(name, depth, mixed)
    (expected, memory), slopes = by_hand(name, depth)(case(name).params, case(name).caches, mixed)
    leaves_close((value, caches, grads), (expected, memory, slopes), 1e-11)


@pytest.mark.parametrize("key", [None, jax.random.key(3)], ids=["plain", "dropout"])
def test_no_value_depends_on_the_depth_whatever_is_dropped(key):
    found = [grade("toy", depth, batch("toy"), key)[0] for depth in (None, 0, 2)]
    for other in found[1:]:
        leaves_close(other, found[0], 1e-12)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_learned_memory_gets_gradients_within_the_depth(depth):
    starts = np.zeros((K, B), bool)
    starts[0] = True
    for t in range(K):
        _, grads = grade("toy", depth, batch("toy", t, starts))
        learned = bool(np.any(np.asarray(grads["model"]["first_D"])))
        assert learned == (depth is None or t <= depth), t


@pytest.mark.parametrize("depth", [None, 2])
def test_recomputing_segments_changes_no_gradient(depth):
    key = jax.random.key(4)
    leaves_close(
        grade("toy", depth, batch("toy"), key, remat_segments=True),
        grade("toy", depth, batch("toy"), key),
        1e-12,
    )


def test_recomputing_segments_needs_less_memory():
    name, segments = "slide", 32
    tokens = np.zeros((segments, B, case(name).length))
    many = Batch(np.int32(tokens), np.int32(tokens), tokens, np.zeros((segments, B), bool))

    def temporary(remat):
        step = graded(name, None, remat_segments=remat)
        compiled = step.lower(case(name).params, case(name).caches, many, None).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(True) < temporary(False) / 3


# Segments that are read again.


@pytest.mark.parametrize(
    ("name", "key"),
    [("toy", None), ("toy", jax.random.key(5)), slow("rmt_txl", jax.random.key(5))],
    ids=["plain", "dropout", "cache"],
)
def test_segments_read_again_give_one_long_unrolls_gradient(name, key):
    starts = np.zeros((K, B), bool)
    starts[0, 0] = starts[2, 1] = True
    last = batch(name, scored=K - 1, starts=starts)
    (value, (_, sums, _)), grads = grade(name, None, last, key, reread_segments=K - 1)
    (expected, (_, expected_sums, _)), slopes = grade(name, None, last, key)
    leaves_close((value, sums, grads), (expected, expected_sums, slopes), 1e-12)
    moved = [s for s in range(K) if np.any(np.asarray(grads["bumps"][s]))]
    assert moved == list(range(K))


def test_only_the_new_segment_counts_whatever_the_weights():
    (value, (_, sums, means)), _ = grade("toy", None, batch("toy"), reread_segments=K - 1)
    only_last = batch("toy")
    only_last.weights_KBT[:-1] = 0
    (expected, (_, expected_sums, all_means)), _ = grade("toy", None, only_last)
    leaves_close((value, sums), (expected, expected_sums), 1e-12)
    caches, read = case("toy").caches, case("toy").bind(case("toy").params)
    for k in range(K):
        caches, *_, metrics = segment_sums(read, only_last.segment(k), caches)
    np.testing.assert_allclose(means["size"], metrics["size"], rtol=1e-12)
    assert abs(means["size"] - all_means["size"]) > 1e-3


AGAIN, STEPS, RATE = 2, 6, 0.3


@functools.cache
def corpus(name):
    """The segments of a stream: tokens, targets and starts of STEPS segments, some in between."""
    rng = np.random.default_rng(7)
    shape = STEPS, B, case(name).length
    tokens, targets = rng.integers(0, VOCABULARY, (2, *shape)).astype(np.int32)
    starts = np.zeros((STEPS, B), bool)
    starts[0] = starts[3, 1] = True
    return tokens, targets, starts


def step_batch(name, step, again):
    """Segments step - again ... step of a step; padding before the first."""
    numbers = np.arange(step - again, step + 1)
    tokens, targets, starts = (x[np.maximum(numbers, 0)] for x in corpus(name))
    weights = np.zeros(tokens.shape)
    weights[-1] = 1
    starts = starts | (numbers < 0)[:, None]
    bumped = tokens + VOCABULARY * np.arange(again + 1)[:, None, None]
    return Batch(bumped.astype(np.int32), targets, weights, starts)


def trained(name, again, rate):
    """The loss of each step of training, and the parameters after the last."""
    train_step = quick_jit(
        make_train_step(case(name).bind, optax.sgd(rate), lambda step: rate, reread_segments=again)
    )
    params, caches = case(name).params, case(name).caches
    state = TrainState(jnp.zeros((), jnp.int32), params, optax.sgd(rate).init(params), caches)
    losses = []
    for step in range(STEPS):
        state, metrics = train_step(state, step_batch(name, step, again))
        losses.append(float(metrics.nats / metrics.weight))
    return losses, state.params


def trained_by_hand(name, again, rate):
    """The same, spelled out: memories are kept by the number of the segment that they precede."""

    @jax.jit
    def read(params, segment, memory):
        return segment_sums(case(name).bind(params), segment, memory)[:2]

    @jax.value_and_grad
    def loss(params, memory, segments):
        for segment in segments:
            memory, nats_BT = read(params, segment, memory)
        return nats_BT.mean()

    params, losses, before = case(name).params, [], {}
    for step in range(STEPS):
        first = max(step - again, 0)
        whole = step_batch(name, step, again)
        segments = [whole.segment(k) for k in range(first - step + again, again + 1)]
        memory = before.get(first, case(name).caches)
        before[first + 1] = read(params, segments[0], memory)[0]
        value, grads = loss(params, memory, segments)
        params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        losses.append(float(value))
    return losses, params


@pytest.mark.parametrize("name", ["toy", slow("rmt")])
def test_each_step_begins_with_the_memory_before_rereading(name):
    leaves_close(trained(name, AGAIN, RATE), trained_by_hand(name, AGAIN, RATE), 1e-10)


def test_without_updates_no_loss_depends_on_rereading():
    losses, _ = trained("toy", 0, 0.0)
    for again in (1, 2, 3):
        np.testing.assert_allclose(trained("toy", again, 0.0)[0], losses, rtol=1e-12)
    assert np.std(losses) > 0.01
