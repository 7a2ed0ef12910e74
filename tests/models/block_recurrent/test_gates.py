"""Gates: what they compute, how they begin, and how fast they learn to forget."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_models import quick_jit

from brt.models.block_recurrent.gates import BIASES, FORMS, KINDS, MLP, Gate

EVERY_GATE = [(kind, form, squash) for kind in KINDS for form in FORMS for squash in (False, True)]


def gate(kind, form="paper", squash=False, input_size=5, width=4, seed=0):
    return Gate(nnx.Rngs(seed), MLP, (input_size,), width, kind, form, squash)


def apply(module, states_BSD, h_BSF):
    return module(states_BSD, h_BSF, module.weights(h_BSF.dtype))


def fill(gate, seed):
    """Every parameter far from where it began."""
    rng = np.random.default_rng(seed)
    state = nnx.state(gate, nnx.Param)
    for _, leaf in nnx.to_flat_state(state):
        leaf[...] = jnp.asarray(rng.normal(size=leaf.shape), jnp.float32)
    nnx.update(gate, state)
    return {path[0]: np.asarray(leaf[...], np.float64) for path, leaf in nnx.to_flat_state(state)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(("kind", "form", "squash"), EVERY_GATE)
def test_a_gate_is_its_equations_number_by_number(kind, form, squash):
    B, S, C, D = 2, 3, 5, 4
    module = gate(kind, form, squash)
    p = fill(module, seed=1)
    rng = np.random.default_rng(2)
    c_BSD, h_BSC = rng.normal(size=(B, S, D)), rng.normal(size=(B, S, C))
    c_BSD[0] = 100  # states are neither bounded nor normalised
    expected = np.zeros((B, S, D))
    for b, s, d in np.ndindex(B, S, D):

        def dot(name, b=b, s=s, d=d):
            return sum(h_BSC[b, s, x] * p[name][x, d] for x in range(C))

        z = dot("candidate_FD")
        if form == "paper":
            z += p["candidate_bias_D"][d]
            z = np.tanh(z) if kind == "lstm" else z
        elif squash:
            z = np.tanh(z)
        if kind == "fixed":
            g = sigmoid(p["keep_bias_D"][d])
            expected[b, s, d] = c_BSD[b, s, d] * g + z * (1 - g)
        else:
            i = sigmoid(dot("input_FD") + p["input_bias_D"][d] - 1)
            f = sigmoid(dot("forget_FD") + p["forget_bias_D"][d] + 1)
            expected[b, s, d] = c_BSD[b, s, d] * f + z * i
    found, keep = quick_jit(partial(apply, module))(np.float32(c_BSD), np.float32(h_BSC))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.broadcast_shapes(keep.shape, found.shape) == found.shape


def spread(array, std):
    """A sample of 1e5 has this standard deviation, to 2 %, around zero."""
    array = np.asarray(array, np.float64)
    assert array.size >= 100_000
    assert abs(array.mean()) < 0.02 * std
    assert abs(array.std() / std - 1) < 0.02


@pytest.mark.parametrize("form", FORMS)
def test_gate_matrices_begin_small_for_their_input(form):
    """Truncated normal of standard deviation sqrt(0.1 / f_in), cut at two of the uncut one."""
    module = gate("lstm", form, input_size=400, width=250)
    small = np.sqrt(0.1 / 400)
    cut = 2 * small / 0.8796256610342398
    for name in ("input_FD", "forget_FD"):
        spread(getattr(module, name)[...], small)
        assert np.abs(getattr(module, name)[...]).max() < cut * 1.001
        assert np.abs(getattr(module, name)[...]).max() > cut * 0.99
    # The released code draws the candidate's matrix as any other.
    spread(module.candidate_FD[...], small if form == "paper" else np.sqrt(1 / 400))


@pytest.mark.parametrize(("kind", "form", "squash"), EVERY_GATE)
def test_a_gate_has_only_the_parameters_of_its_equations(kind, form, squash):
    shapes = {
        path[0]: leaf.shape
        for path, leaf in nnx.to_flat_state(nnx.state(gate(kind, form, squash), nnx.Param))
    }
    expected = {"candidate_FD": (5, 4)}
    if form == "paper":
        expected["candidate_bias_D"] = (4,)
    if kind == "fixed":
        expected["keep_bias_D"] = (4,)
    else:
        expected |= {"input_FD": (5, 4), "forget_FD": (5, 4)}
        expected |= {"input_bias_D": (4,), "forget_bias_D": (4,)}
    assert shapes == expected


def test_constants_outside_biases_keep_first_steps_small():
    """Adafactor steps in proportion to a parameter's own size: ten times further from 1."""
    bias = gate("lstm", input_size=1, width=1000).forget_bias_D[...]
    optimizer = optax.adafactor(0.01, multiply_by_parameter_scale=True)
    gradient = jnp.asarray(np.random.default_rng(6).normal(size=1000), jnp.float32)

    def step(parameter):
        updates, _ = optimizer.update(gradient, optimizer.init(parameter), parameter)
        return float(jnp.sqrt(jnp.mean(updates**2)))

    assert 8 < step(bias + 1.0) / step(bias) < 12


def test_states_stay_float32_when_activations_are_not():
    for kind in KINDS:
        module = gate(kind)
        h_BSC = jnp.ones((2, 3, 5), jnp.bfloat16)
        found, _ = apply(module, jnp.full((2, 3, 4), 1 + 2**-20, jnp.float32), h_BSC)
        assert found.dtype == jnp.float32
    module.forget_bias_D[...] = jnp.full(4, 40.0)  # keeps everything, to the last bit
    module.input_bias_D[...] = jnp.full(4, -200.0)
    found, _ = apply(module, jnp.full((2, 3, 4), 1 + 2**-20, jnp.float32), h_BSC)
    assert (found == 1 + 2**-20).all()


@pytest.mark.parametrize("kind", KINDS)
def test_other_initial_gates_are_the_gate_without_constants(kind):
    c_BSD, h_BSC = (np.ones((1, 2, size), np.float32) for size in (4, 5))
    kept = {}
    for biases in BIASES:
        module = Gate(nnx.Rngs(0), MLP, (5,), 4, kind, biases=biases)
        for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param)):
            if path[0].endswith("_FD"):
                leaf[...] = jnp.zeros_like(leaf[...])
            elif biases != "small":
                expected = float(biases == "one" and path[0] in ("keep_bias_D", "forget_bias_D"))
                np.testing.assert_array_equal(leaf[...], expected)
        kept[biases] = float(np.mean(apply(module, c_BSD, h_BSC)[1]))
    assert kept["zero"] == 0.5 and kept["one"] == pytest.approx(sigmoid(1))
    assert kept["small"] == pytest.approx(sigmoid(1 if kind == "lstm" else 0), abs=0.05)
