"""Gates: how they begin, and how fast they learn to forget."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from brt.models.block_recurrent.gates import BIASES, FORMS, KINDS, MLP, Gate


def gate(kind, form="paper", input_size=5, width=4):
    return Gate(nnx.Rngs(0), MLP, (input_size,), width, kind, form)


def apply(module, states_BSD, h_BSF):
    return module(states_BSD, h_BSF, module.weights(h_BSF.dtype))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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
