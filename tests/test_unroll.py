"""Backpropagation through time: the gradient of segment t reaches exactly min(t, depth) back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, parameters, quick_jit, random_model, segment_length
from flax import nnx

from brt.data.document_stream import Batch
from brt.models.caches import reset_rows
from brt.training.train_step import make_loss, segment_sums
from brt.training.unroll import check_depth

K, B = 4, 2
DEPTHS = (None, 0, 1, 2, 3)
REC = "rec_fixed_skip"
SMALL = {REC: dict(num_layers=1, recurrent_layers=(0,)), "slide": dict(num_layers=2)}

every_depth = pytest.mark.parametrize("depth", DEPTHS)


@pytest.fixture(autouse=True)
def wide_types():
    with jax.enable_x64(True):
        yield


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


@functools.cache
def tiny(name):
    with jax.enable_x64(True):
        return random_model(name, dtype="float64", **SMALL[name])


@functools.cache
def bind(name):
    graph = nnx.split(tiny(name), nnx.Param)[0]

    def bound(params):
        model = nnx.merge(graph, nnx.from_flat_state(_flat(params["model"])))
        return Bumped(model, params["bumps"])

    return bound


def _flat(params):
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [(tuple(key.key for key in path), nnx.Param(leaf)) for path, leaf in leaves]


@functools.cache
def graded(name, depth, **options):
    loss = make_loss(bind(name), bptt_depth=depth, **options)
    return quick_jit(jax.value_and_grad(loss, has_aux=True))


@functools.cache
def start(name):
    """Parameters and the caches of rows in the middle of documents."""
    with jax.enable_x64(True):
        model, rng = tiny(name), np.random.default_rng(0)
        params = {
            "model": parameters(model),
            "bumps": jnp.zeros((K, segment_length(name), model.final_norm.scale_D.shape[0])),
        }
        caches = jax.tree.map(
            lambda x: jnp.asarray(0.4 * rng.normal(size=x.shape)), model.init_caches(B)
        )
        return params, caches


def batch(name, weights=None, starts=None, seed=1):
    shape, rng = (K, B, segment_length(name)), np.random.default_rng(seed)
    tokens, targets = rng.integers(0, VOCABULARY, (2, *shape)).astype(np.int32)
    weights = rng.random(shape) if weights is None else weights
    starts = np.zeros((K, B), bool) if starts is None else starts
    return Batch(tokens + VOCABULARY * np.arange(K)[:, None, None], targets, weights, starts)


def only(t, name):
    """Weights that score segment t alone."""
    return np.broadcast_to((np.arange(K) == t)[:, None, None], (K, B, segment_length(name))) * 1.0


def reached(grads, t):
    """How many segments back of t the gradient of each segment's embedded tokens is not 0."""
    moved = [bool(np.any(np.asarray(bump_TD))) for bump_TD in grads["bumps"]]
    return sorted(t - s for s, yes in enumerate(moved) if yes)


@pytest.mark.parametrize(
    ("name", "depth"),
    [*((REC, depth) for depth in DEPTHS), ("slide", None), ("slide", 1)],
)
def test_the_loss_of_a_segment_reaches_the_tokens_of_exactly_depth_segments_back(name, depth):
    params, caches = start(name)
    for t in range(K):
        scored = batch(name, only(t, name))
        _, grads = graded(name, depth)(params, caches, scored, None)
        limit = t if depth is None else min(t, depth)
        if name == "slide":  # two windows of tokens are one segment
            limit = min(limit, 1)
        assert reached(grads, t) == list(range(limit + 1)), t


def by_hand(name, depth):
    """The loss spelled out: every segment read from min(t, depth) back, its memory cut there."""

    def loss(params, caches, batch):
        memories = [caches]
        part = [jax.tree.map(lambda x, t=t: x[t], batch) for t in range(K)]
        for t in range(K):
            memories.append(read(name)(params, part[t], memories[t])[0])
        nats = 0.0
        for t in range(K):
            first = 0 if depth is None else max(0, t - depth)
            memory = jax.lax.stop_gradient(memories[first])
            for s in range(first, t + 1):
                memory, nats_BT = read(name)(params, part[s], memory)
            nats += (nats_BT * part[t].weights_KBT).sum()
        return nats / batch.weights_KBT.sum()

    return quick_jit(jax.value_and_grad(loss))


@functools.cache
def read(name):
    return jax.jit(lambda *args: segment_sums(bind(name)(args[0]), *args[1:])[:2])


@every_depth
def test_the_gradient_is_that_of_the_unroll_spelled_out(depth, name=REC):
    params, caches = start(name)
    starts = np.zeros((K, B), bool)
    starts[0, 0] = starts[1, 1] = starts[3, 0] = True  # learned first states, at several places
    mixed = batch(name, starts=starts)
    (value, _), grads = graded(name, depth)(params, caches, mixed, None)
    expected_value, expected = by_hand(name, depth)(params, caches, mixed)
    np.testing.assert_allclose(value, expected_value, rtol=1e-12)
    for x, y in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * max(1.0, np.abs(y).max()))


def test_no_value_depends_on_the_depth(name=REC):
    params, caches = start(name)
    found = [graded(name, depth)(params, caches, batch(name), None)[0] for depth in DEPTHS]
    for other in found[1:]:
        for x, y in zip(jax.tree.leaves(other), jax.tree.leaves(found[0]), strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(1.0, np.abs(y).max()))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_replayed_segment_drops_what_it_dropped_before(depth, name=REC):
    model = random_model(name, dtype="float64", dropout=0.4, **SMALL[name])
    graph, params = nnx.split(model, nnx.Param)
    tokens = batch(name)
    tokens = tokens._replace(inputs_KBT=tokens.inputs_KBT % VOCABULARY)

    def losses(depth):
        loss = make_loss(lambda params: nnx.merge(graph, params), bptt_depth=depth)
        return quick_jit(loss)(params, model.init_caches(B), tokens, jax.random.key(3))

    for x, y in zip(jax.tree.leaves(losses(depth)), jax.tree.leaves(losses(None)), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(1.0, np.abs(y).max()))


@every_depth
def test_a_learned_first_memory_gets_its_gradient_from_segments_within_the_depth(depth, name=REC):
    params, caches = start(name)
    starts = np.zeros((K, B), bool)
    starts[0] = True
    for t in range(K):
        scored = batch(name, only(t, name), starts)
        _, grads = graded(name, depth)(params, caches, scored, None)
        (cell,) = [layer["cell"] for layer in grads["model"]["layers"].values() if "cell" in layer]
        learned = bool(np.any(np.asarray(cell["initial_states_SD"])))
        assert learned == (depth is None or t <= depth), t


@pytest.mark.parametrize("depth", [None, 2])
def test_recomputing_segments_changes_no_gradient(depth, name=REC):
    params, caches = start(name)
    plain = graded(name, depth)(params, caches, batch(name), None)
    again = graded(name, depth, remat_segments=True)(params, caches, batch(name), None)
    for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * max(1.0, np.abs(y).max()))


def test_recomputing_segments_needs_less_memory():
    name, segments = "slide", 32
    params, caches = start(name)
    tokens = np.zeros((segments, B, segment_length(name)))
    many = Batch(np.int32(tokens), np.int32(tokens), tokens, np.zeros((segments, B), bool))

    def temporary(remat):
        loss = make_loss(bind(name), remat_segments=remat)
        step = quick_jit(jax.grad(lambda *args: loss(*args)[0]))
        compiled = step.lower(params, caches, many, None).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(True) < temporary(False) / 3


def test_a_row_that_starts_a_document_is_reset_inside_a_replay():
    params, caches = start(REC)
    model = tiny(REC)
    starts = np.zeros((K, B), bool)
    starts[2, 1] = True
    mixed = batch(REC, starts=starts)
    (_, (found, _, _)), _ = graded(REC, 1)(params, caches, mixed, None)
    for t in range(K):
        caches = reset_rows(caches, model.init_caches(B), starts[t])
        _, caches = model(jnp.asarray(mixed.inputs_KBT[t] % VOCABULARY), caches)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(caches), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11)


@pytest.mark.parametrize("depth", [4, 7])
def test_a_depth_beyond_the_unroll_names_both_bindings(depth):
    with pytest.raises(
        ValueError, match=rf"bptt_depth = {depth} .*segments_per_step = {depth + 1}"
    ):
        check_depth(depth, K)


@pytest.mark.parametrize("depth", [-1, "all"])
def test_a_depth_that_is_no_count_is_refused(depth):
    with pytest.raises(ValueError, match=r"bptt_depth = .* counts the memories"):
        check_depth(depth, K)


@every_depth
def test_depths_within_the_unroll_are_accepted(depth):
    check_depth(depth, K)
