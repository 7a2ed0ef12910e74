"""LSTM and QRNN against plain loops over their papers' equations, and what only they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, TOKEN_MEMORIES, VOCABULARY, WINDOW, abstract, random_model
from flax import nnx
from jax.extend.core import jaxprs_in_params
from ragged import ragged_segments
from tiny_models import parameters, quick_jit, read_segment

from brt.data.vocabularies.base import BEGIN
from brt.models.recurrent_networks import LSTM, QRNN, LSTMLayer, pooled

both = pytest.mark.parametrize("name", ["lstm", "qrnn"])


@pytest.fixture
def wide_types():
    with jax.enable_x64(True):
        yield


in_float64 = pytest.mark.usefixtures("wide_types")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_token(layer, x_I, state):
    """One token of one row: Gers et al. 2000, with c and h of `state`."""
    h_U, c_U = state
    a_Z = layer["inputs_IZ"].T @ x_I + layer["hidden_UZ"].T @ h_U + layer["bias_Z"]
    U = len(c_U)
    i, f, o = (sigmoid(a_Z[n * U : (n + 1) * U]) for n in range(3))
    c_U = f * c_U + i * np.tanh(a_Z[3 * U :])
    h_U = o * np.tanh(c_U)
    return h_U, (h_U, c_U)


def qrnn_token(layer, x_I, state):
    """One token of one row: Bradbury et al. 2017, equations 1 (k = 2) and 4 (fo-pooling)."""
    last_I, c_U = state
    a_Z = layer["earlier_IZ"].T @ last_I + layer["inputs_IZ"].T @ x_I + layer["bias_Z"]
    U = len(c_U)
    z, f, o = np.tanh(a_Z[:U]), sigmoid(a_Z[U : 2 * U]), sigmoid(a_Z[2 * U :])
    c_U = f * c_U + (1 - f) * z
    return o * c_U, (x_I, c_U)


def by_hand(name, params, tokens):
    """Logits (T, V) of one document, and each layer's state after it."""
    layers = [params["layers"][i] for i in range(len(params["layers"]))]
    token = {"lstm": lstm_token, "qrnn": qrnn_token}[name]
    states = []
    for layer in layers:
        gates = {"lstm": 4, "qrnn": 3}[name]
        U = len(layer["bias_Z"]) // gates
        first = U if name == "lstm" else len(layer["inputs_IZ"])
        states.append((np.zeros(first), np.zeros(U)))
    logits = []
    for t in tokens:
        x = params["begin_D"] if t == BEGIN else params["embedding_VD"][t]
        for i, layer in enumerate(layers):
            x, states[i] = token(layer, x, states[i])
        logits.append(params["embedding_VD"] @ x + params["bias_V"])
    return np.array(logits), states


@in_float64
@both
def test_every_logit_and_cache_is_what_a_loop_over_the_equations_gives(name):
    model = random_model(name, dtype="float64")
    params = jax.tree.map(np.asarray, parameters(model))
    corpus = ragged_segments(WINDOW, SEGMENT, VOCABULARY, rows=3, seed=2)
    caches, rows = model.init_caches(3), [[] for _ in range(3)]
    for tokens_BT, starts_B in zip(corpus.tokens, corpus.starts, strict=True):
        logits_BTV, caches = read_segment(model, tokens_BT, starts_B, caches)
        for row in range(3):
            rows[row] = [] if starts_B[row] else rows[row]
            rows[row] += tokens_BT[row].tolist()
            expected, states = by_hand(name, params, rows[row])
            np.testing.assert_allclose(logits_BTV[row], expected[-SEGMENT:], rtol=0, atol=1e-9)
            for cache, state in zip(caches, states, strict=True):
                np.testing.assert_allclose(cache[0][row], state[0], rtol=0, atol=1e-9)
                np.testing.assert_allclose(cache.cell_BU[row], state[1], rtol=0, atol=1e-9)


@in_float64
@both
def test_a_document_may_be_cut_anywhere(name):
    model = random_model(name, dtype="float64")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 13)).astype(np.int32)
    read = quick_jit(lambda tokens_BT, caches: model(tokens_BT, caches))
    whole, last = read(tokens, model.init_caches(2))
    caches, parts = model.init_caches(2), []
    for begin, end in ((0, 1), (1, 6), (6, 8), (8, 13)):
        logits_BTV, caches = read(tokens[:, begin:end], caches)
        parts.append(logits_BTV)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-9)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), caches, last)


@in_float64
def test_pooling_is_the_elementwise_recurrence_and_its_gradient():
    keep, add = np.random.default_rng(1).uniform(-1, 1, (2, 2, 9, 3))
    first = np.random.default_rng(2).normal(size=(2, 3))

    def loop(keep, add, first):
        found = []
        for t in range(9):
            first = keep[:, t] * first + add[:, t]
            found.append(first)
        return jnp.stack(found, axis=1)

    def slopes(of):
        return quick_jit(jax.grad(lambda *x: (of(*x) ** 2).sum(), (0, 1, 2)))(keep, add, first)

    pairs = [(pooled(keep, add, first), loop(keep, add, first)), *zip(slopes(pooled), slopes(loop))]
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_only_the_products_with_the_last_output_are_inside_the_lstm_loop_and_none_in_the_qrnns():
    """Matrix products that are repeated for every token, of a jaxpr."""

    def inside(jaxpr, looped):
        count = 0
        for eqn in jaxpr.eqns:
            count += looped and eqn.primitive.name == "dot_general"
            for sub in jaxprs_in_params(eqn.params):
                count += inside(sub, looped or eqn.primitive.name in ("scan", "while"))
        return count

    for name, expected in (("lstm", 3), ("qrnn", 0)):
        model = random_model(name)
        x_BTD = jnp.zeros((2, SEGMENT, 12))
        jaxpr = jax.make_jaxpr(lambda x, m=model: m.stack(x, m.init_caches(2))[0])(x_BTD)
        assert inside(jaxpr.jaxpr, False) == expected


@both
def test_layers_between_have_the_hidden_size_and_the_ends_the_width(name):
    kernels = [layer["inputs_IZ"].shape for layer in parameters(abstract(name))["layers"].values()]
    gates = {"lstm": 4, "qrnn": 3}[name]
    assert kernels == [(12, 10 * gates), (10, 10 * gates), (10, 12 * gates)]
    model = abstract(name)
    weights = 12 * 10 + 10 * 10 + 10 * 12
    outputs = 10 * 10 + 10 * 10 + 12 * 12 if name == "lstm" else weights
    expected = 2 * (gates * (weights + outputs) + VOCABULARY * 12)
    assert model.flops_per_token() == expected


def test_a_forget_gate_begins_by_keeping():
    layer = LSTMLayer(nnx.Rngs(0), 3, 2)
    np.testing.assert_array_equal(layer.bias_Z[...], [0, 0, 1, 1, 0, 0, 0, 0])


@both
def test_states_are_float32_where_activations_are_bfloat16(name):
    model = random_model(name, activation_dtype="bfloat16")
    tokens = jnp.zeros((2, 5), jnp.int32)
    logits_BTV, caches = jax.eval_shape(model, tokens, model.init_caches(2))
    assert logits_BTV.dtype == jnp.float32
    for cache, fresh in zip(caches, model.init_caches(2)):
        assert cache[0].dtype == fresh[0].dtype == jnp.bfloat16
        assert cache.cell_BU.dtype == fresh.cell_BU.dtype == jnp.float32


@both
def test_dropout_takes_a_key_and_leaves_evaluation_alone(name):
    model = random_model(name, dropout=0.5)
    tokens = jnp.zeros((2, 5), jnp.int32)
    read = quick_jit(lambda key: model(tokens, model.init_caches(2), key)[0])
    one, other = (read(jax.random.key(n)) for n in range(2))
    assert not np.array_equal(one, other)
    plain, undropped = (
        quick_jit(lambda m=m: m(tokens, m.init_caches(2))[0])() for m in (model, random_model(name))
    )
    np.testing.assert_array_equal(plain, undropped)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(num_layers=0), "num_layers = 0"),
        (dict(hidden_size=0), "hidden_size = 0"),
        (dict(dropout=1.0), "dropout = 1.0"),
        (dict(activation_dtype="float16"), "activation_dtype = 'float16'"),
    ],
)
@pytest.mark.parametrize("model", [LSTM, QRNN])
def test_bad_settings_are_named(model, settings, sentence):
    with pytest.raises(ValueError, match=f"{model.__name__}.*{sentence}"):
        model(None, **TOKEN_MEMORIES["lstm"][1] | settings)
