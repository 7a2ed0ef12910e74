"""The train step: where gradients go and where they stop, and what one bad batch may touch."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plain_reading import nats_of
from tiny_run import build, differing, leaves, write_config

from brt.data.streams.batch import Batch
from brt.data.vocabularies.base import BEGIN
from brt.training.train_step import TrainState, make_loss, make_train_step

B, T, V = 2, 16, 13
NEW, OLD = [True] * B, [False] * B

# Instead of moving the parameters this optimizer keeps the last gradient as its state.
KEEP = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params=None: (jax.tree.map(jnp.zeros_like, grads), grads),
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """A model of one recurrent layer, its parameters, and rows in the middle of documents."""
    tiny = build(
        write_config(tmp_path_factory.mktemp("step")), "BlockRecurrentTransformer.dropout = 0.3"
    )
    bind, shapes = tiny.experiment.bind, tiny.experiment.abstract_params
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.float32(0.4 * rng.normal(size=x.shape)), shapes)
    caches = jax.eval_shape(lambda params: bind(params).init_caches(B), shapes)
    caches = jax.tree.map(lambda x: jnp.float32(0.4 * rng.normal(size=x.shape)), caches)
    return SimpleNamespace(
        bind=bind, state=TrainState(jnp.int32(5), params, KEEP.init(params), caches)
    )


@functools.cache
def steps(bind, **options):
    return jax.jit(make_train_step(bind, KEEP, lambda step: 0.1, **options))


@functools.cache
def losses(bind, **options):
    return jax.jit(make_loss(bind, **options))


def batch(seed, starts_KB, weights=None):
    rng = np.random.default_rng(seed)
    starts_KB = np.array(starts_KB)
    K = len(starts_KB)
    inputs_KBT, targets_KBT = rng.integers(0, V, (2, K, B, T)).astype(np.int32)
    inputs_KBT[..., 0][starts_KB] = BEGIN
    weights_KBT = np.ones((K, B, T)) if weights is None else np.broadcast_to(weights, (K, B, T))
    return Batch(inputs_KBT, targets_KBT, weights_KBT.astype(np.float32), starts_KB)


def part(batch, k):
    return Batch(*(x[k : k + 1] for x in batch))


def norm(tree):
    return float(np.sqrt(sum((x.astype(np.float64) ** 2).sum() for x in leaves(tree).values())))


def close(first, second, tolerance):
    first, second = leaves(first), leaves(second)
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_allclose(x, second[name], atol=tolerance, err_msg=name)


# Where gradients go.


@pytest.mark.parametrize("starts", [[False, False], [False, True], [True, False], [True, True]])
def test_a_documents_initial_state_learns_only_where_one_begins(tools, starts):
    state, _ = steps(tools.bind)(tools.state, batch(1, [starts]))
    grads = state.optimizer
    learned = {
        "first states": grads["layers"][0]["cell"]["initial_states_SD"],
        "begin": grads["begin_D"],
    }
    for name, gradient in learned.items():
        assert (norm(gradient) > 1e-6) == any(starts), name
    assert norm(grads["layers"][0]["cell"]["state_ids_SD"]) > 1e-6


def test_gradients_cross_segments_of_a_step_and_not_its_border(tools):
    # Only the second segment is scored; BEGIN and the first states occur in the first one only.
    both = batch(4, [NEW, OLD], weights=np.array([0.0, 1.0])[:, None, None])
    inside = steps(tools.bind)(tools.state, both)[0].optimizer
    state, _ = steps(tools.bind)(tools.state, part(both, 0))
    outside = steps(tools.bind)(state, part(both, 1))[0].optimizer
    for name, find in {
        "begin": lambda grads: grads["begin_D"],
        "first states": lambda grads: grads["layers"][0]["cell"]["initial_states_SD"],
    }.items():
        assert norm(find(inside)) > 1e-6, name
        assert norm(find(outside)) == 0.0, name


# What counts.


def test_the_loss_is_the_weighted_mean_over_tokens(tools):
    rng = np.random.default_rng(0)
    weights = rng.choice([0.0, 0.5, 1.0, 3.0], (1, B, T))
    one = batch(7, [[True, False]], weights)
    value, (_, sums, _) = losses(tools.bind)(tools.state.params, tools.state.caches, one, None)
    empty = tools.bind(tools.state.params).init_caches(B)
    read = jax.jit(lambda params, tokens, caches: tools.bind(params)(tokens, caches)[0])
    # The plain route: each row alone, the softmax spelled out.
    nats, correct = np.zeros((B, T)), np.zeros((B, T))
    for b in range(B):
        caches = [empty, tools.state.caches][int(b == 1)]  # row 0 starts, row 1 continues
        caches = jax.tree.map(lambda x, b=b: x[b : b + 1], caches)
        logits = np.float64(read(tools.state.params, one.inputs_KBT[0, b : b + 1], caches)[0])
        nats[b] = nats_of(logits, one.targets_KBT[0, b])
        correct[b] = logits.argmax(-1) == one.targets_KBT[0, b]
    expected = (nats * weights[0]).sum(), weights.sum(), (correct * weights[0]).sum()
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    assert float(value) == pytest.approx(expected[0] / expected[1], rel=1e-5)


def test_the_half_loss_is_the_mean_over_the_second_half(tools):
    whole = batch(11, [[True, False]])
    second = np.broadcast_to(np.arange(T) >= T // 2, (1, B, T))
    given = tools.state.params, tools.state.caches
    value, (caches, sums, _) = losses(tools.bind, scores="half")(*given, whole, None)
    half = batch(11, [[True, False]], second)
    expected, (expected_caches, expected_sums, _) = losses(tools.bind)(*given, half, None)
    assert float(sums[1]) == B * (T - T // 2) == float(expected_sums[1])
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    close(caches, expected_caches, 1e-6)


def test_a_batch_of_weight_0_costs_nothing_and_moves_nothing(tools):
    state, metrics = steps(tools.bind)(tools.state, batch(9, [OLD], weights=0.0))
    assert (float(metrics.nats), float(metrics.weight), bool(metrics.finite)) == (0.0, 0.0, True)
    assert norm(state.optimizer) == 0.0
    assert differing(state.caches, tools.state.caches)


def test_a_step_counts_itself_and_reports_the_rate_it_used(tools):
    step = make_train_step(tools.bind, KEEP, lambda step: 0.5 * step)
    rate = jax.jit(lambda state, batch: step(state, batch)[1].means["learning_rate"])
    assert float(rate(tools.state, batch(1, [OLD]))) == 2.5
    state, metrics = steps(tools.bind)(tools.state, batch(1, [OLD]))
    assert int(state.step) == 6
    assert {"grad_norm", "update_norm", "layer0/cell_grad_norm", "layer0/kept"} <= set(
        metrics.means
    )
    grads = leaves(state.optimizer)
    assert float(metrics.means["grad_norm"]) == pytest.approx(norm(grads), rel=1e-5)
    cell = {name: x for name, x in grads.items() if "['cell']" in name}
    assert float(metrics.means["layer0/cell_grad_norm"]) == pytest.approx(norm(cell), rel=1e-5)


# Values that are not finite.


def poisoned(how, tools):
    state, one = tools.state, batch(10, [OLD])
    if how == "weight":
        one.weights_KBT[0, 1, 3] = np.inf
    elif how == "cache":
        (cache,) = state.caches
        (states,) = cache.memories
        spoilt = states._replace(states_BSD=states.states_BSD.at[1, 2, 3].set(jnp.nan))
        state = state._replace(caches=(cache._replace(memories=(spoilt,)),))
    else:
        params = jax.tree.map(lambda x: x, state.params)
        params["layers"][0]["queries_DA"] = params["layers"][0]["queries_DA"].at[0, 0].set(jnp.nan)
        state = state._replace(params=params)
    return state, one


@pytest.mark.parametrize("how", ["weight", "cache", "parameter"])
def test_a_step_that_is_not_finite_says_so(tools, how):
    _, metrics = steps(tools.bind)(*poisoned(how, tools))
    assert not metrics.finite
    assert steps(tools.bind)(tools.state, batch(10, [OLD]))[1].finite


@pytest.mark.parametrize("how", ["weight", "cache", "parameter"])
def test_a_skipped_step_keeps_parameters_bit_for_bit(tools, how):
    before, one = poisoned(how, tools)
    ones = jax.tree.map(lambda x: jnp.full_like(x, 0.25), tools.state.optimizer)
    after, metrics = steps(tools.bind, skip_nonfinite=True)(before._replace(optimizer=ones), one)
    assert not metrics.finite
    assert not differing(after.params, before.params)
    assert not differing(after.optimizer, ones)
    assert int(after.step) == int(before.step) + 1
    assert [float(x) for x in metrics[:3]] == [0.0, 0.0, 0.0]
    assert all(np.isfinite(x).all() for x in leaves(after.caches).values())
    if how != "parameter":  # the run goes on soundly
        _, metrics = steps(tools.bind, skip_nonfinite=True)(after, batch(11, [OLD]))
        assert metrics.finite and float(metrics.weight) == B * T
        assert all(np.isfinite(value) for value in metrics.means.values())


def test_skipping_changes_nothing_where_all_is_finite(tools):
    one = batch(12, [[True, False]])
    first = steps(tools.bind)(tools.state, one)
    second = steps(tools.bind, skip_nonfinite=True)(tools.state, one)
    close(first, second, 1e-6)


def test_a_model_without_caches_may_skip_steps(tools):
    def bind(params):
        model = tools.bind(params)
        return SimpleNamespace(
            embed=model.embed,
            stack=lambda x, caches, key: (model.stack(x, model.init_caches(B))[0], caches, {}),
            weighted_losses=model.weighted_losses,
            gradient_metrics=model.gradient_metrics,
            init_caches=lambda rows: (),
        )

    state, one = tools.state._replace(caches=()), batch(14, [NEW])
    expected, _ = steps(tools.bind)(tools.state, one)
    after, metrics = steps(bind, skip_nonfinite=True)(state, one)
    assert metrics.finite and after.caches == ()
    close(after.optimizer, expected.optimizer, 1e-6)


# Dropout.


def test_dropout_depends_on_seed_and_step_and_on_nothing_else(tools):
    one = batch(13, [OLD])

    @jax.jit
    def nats(state, seed):
        step = make_train_step(tools.bind, KEEP, lambda step: 0.1, seed=seed, dropout=True)
        return step(state, one)[1].nats  # so the gradient is not computed

    first = nats(tools.state, 0)
    # As after a restart: the same values in new arrays, another optimizer state.
    again = jax.tree.map(lambda x: jnp.asarray(np.array(x)), tools.state)
    again = again._replace(optimizer=jax.tree.map(jnp.ones_like, again.optimizer))
    assert nats(again, 0) == first
    assert nats(tools.state._replace(step=jnp.int32(6)), 0) != first
    assert nats(tools.state, 1) != first
    assert steps(tools.bind)(tools.state, one)[1].nats != first


def test_each_segment_of_a_step_drops_something_else(tools):
    one = batch(14, [NEW])
    twice = Batch(*(np.concatenate([x, x]) for x in one))
    caches = tools.state.caches

    def nats(key, k):
        weights = np.zeros((2, B, T), np.float32)
        weights[k] = 1
        both = twice._replace(weights_KBT=weights)
        return float(losses(tools.bind)(tools.state.params, caches, both, key)[0])

    assert nats(None, 0) == pytest.approx(nats(None, 1), rel=1e-6)
    key = jax.random.key(0)
    assert nats(key, 0) == nats(key, 0)
    assert abs(nats(key, 0) - nats(key, 1)) > 1e-3


# Clearing the state.


def test_clearing_resets_the_states_and_keeps_the_windows(tools):
    one, params = batch(15, [OLD]), tools.state.params
    empty = tools.bind(params).init_caches(B)
    (cache,) = tools.state.caches
    reset = (cache._replace(memories=empty[0].memories),)
    cleared = losses(tools.bind, clear=True)(params, tools.state.caches, one, None)
    expected = losses(tools.bind)(params, reset, one, None)
    close(cleared, expected, 1e-6)
    kept = losses(tools.bind)(params, tools.state.caches, one, None)
    fresh = losses(tools.bind)(params, empty, one, None)
    for other in (kept, fresh):
        assert abs(float(other[0]) - float(cleared[0])) > 1e-4


def test_clearing_happens_at_every_segment_of_a_step(tools):
    both, params = batch(16, [[True, False], OLD]), tools.state.params
    value, (caches, sums, _) = losses(tools.bind, clear=True)(
        params, tools.state.caches, both, None
    )
    carried, nats = tools.state.caches, 0.0
    for k in range(2):
        _, (carried, (part_nats, *_), _) = losses(tools.bind, clear=True)(
            params, carried, part(both, k), None
        )
        nats += float(part_nats)
    close(caches, carried, 1e-5)
    assert float(sums[0]) == pytest.approx(nats, rel=1e-5)
    assert float(value) == pytest.approx(nats / (2 * B * T), rel=1e-5)
