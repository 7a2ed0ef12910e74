"""The Pallas kernels of the delta rule, in interpret mode, against the plain form.

test_gated_delta.py and test_kimi_delta.py compare the plain form with recurrences.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from forms import of_two_segments, on_mesh, outputs_and_gradients, relative_errors
from marking import slow
from test_gpu_kernels import BF16, F32, GPU
from tiny_models import leaves_close, quick_jit

from brt.models import axis_rules, ops
from brt.models.block_recurrent import gated_delta
from brt.models.fast import kernel_forms, table
from brt.models.fast.kernels import delta, delta_tiles, gpu_delta, gpu_launch
from brt.models.fast.kernels.delta_tiles import Exact, inverse_of_unit_lower
from brt.models.fast.kernels.parts import Heads
from brt.models.sizes import Sizes

KERNELS = {"gpu": gpu_delta, "tpu": delta}
NAMES = "matrix", "read", *(f"gradient of {x}" for x in ("matrix", *"qkv", "decays", "steps"))
STRONG = 200.0
"""exp(-STRONG) is 0 in float32."""


def arguments(sizes, of_channels, strongest=1.0):
    """A matrix and inputs; half of the last batch element's tokens are padding."""
    (B, T, H, K), rng = sizes, np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, *sizes))
    decays = -strongest * rng.uniform(size=sizes if of_channels else sizes[:3]) ** 3
    steps = rng.uniform(size=sizes[:3])
    decays[-1, T // 2 :], steps[-1, T // 2 :] = 0, 0
    matrix = rng.standard_normal((B, H, K, K))
    q, k, *others = (jnp.asarray(x, F32) for x in (q, k, v, decays, steps))
    return jnp.asarray(matrix, F32), ops.unit_heads(q), ops.unit_heads(k), *others


def errors(target, args, dtype=F32):
    """Of results and gradients, each relative to its largest entry."""

    def plain(matrix, *inputs):
        return gated_delta.delta_rule(matrix, inputs)

    heads = Heads(*args[1].shape[2:], interpret="races" if target == "tpu" else True)

    def kernels(matrix, *inputs):
        return KERNELS[target].delta_rule(heads, dtype, matrix, table.by_channel(inputs))

    matrix, q, k, v, *decay_step = args
    args = matrix, *(x.astype(dtype).astype(F32) for x in (q, k, v)), *decay_step
    computed, expected = (outputs_and_gradients(form, *args) for form in (kernels, plain))
    assert [x.dtype for x in computed] == [x.dtype for x in expected]
    return dict(zip(NAMES, relative_errors(computed, expected), strict=True))


def largest(found):
    return np.max(list(found.values()))  # NaN if any is


CASES = {
    "decays of heads": ((2, 70, 2, 16), False),
    "whole blocks": ((1, 64, 1, 64), True),
    "large heads": ((1, 40, 1, 128), True),
    "parts of the values": ((2, 33, 1, 32), True),
    "decays of channels": ((2, 70, 2, 16), True),
}
"""Batch elements, tokens, heads and their size; whether each channel has a decay."""
COVERED = "whole blocks", "parts of the values"
"""Cases of features that others combine: checked with the slow tests."""


def of_case(target, name):
    """Arguments; twice the tokens for TPUs, whose blocks have 128."""
    (B, T, H, K), of_channels = CASES[name]
    return arguments((B, T * (1 + (target == "tpu")), H, K), of_channels)


@pytest.mark.parametrize("target", KERNELS)
@pytest.mark.parametrize("name", [slow(x, when=x in COVERED) for x in CASES])
def test_results_and_all_gradients_equal_the_plain_form(target, name, capfd):
    found = errors(target, of_case(target, name))
    assert largest(found) < 5e-6, found
    assert "race" not in "".join(capfd.readouterr()).lower()


@pytest.mark.parametrize("target", KERNELS)
def test_bfloat16_differs_by_no_more_than_its_rounding(target):
    found = errors(target, of_case(target, "decays of channels"), BF16)
    assert largest(found) < 0.03, found


@pytest.mark.parametrize("target", KERNELS)
def test_decays_beyond_float32_equal_the_plain_form(target):
    found = errors(target, arguments((1, 40, 1, 16), True, STRONG))
    assert largest(found) < 5e-6, found


@pytest.mark.parametrize("target", KERNELS)
def test_several_matrices_at_once_equal_the_plain_form(target):
    """As the scan over devices runs the rule."""
    matrix, *inputs = arguments((2, 40, 2, 16), True)
    heads = Heads(2, 16, interpret=True)

    def computed(rule):
        def weighted(matrices, *inputs):
            found = jax.vmap(lambda matrix: rule(matrix, inputs))(matrices)
            return sum(jnp.sum(jnp.sin(x)) for x in found)

        both = jnp.stack([jnp.zeros_like(matrix), matrix])
        run = quick_jit(jax.value_and_grad(weighted, argnums=range(6)))
        return jax.tree.leaves(run(both, *inputs))

    kernels = functools.partial(KERNELS[target].delta_rule, heads, F32)
    with jax.default_matmul_precision("highest"):
        for a, b in zip(computed(kernels), computed(gated_delta.delta_rule), strict=True):
            assert jnp.max(jnp.abs(a - b)) < 2e-5 * jnp.max(jnp.abs(b))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("size", [16, 64, 128])
def test_the_inverse_of_a_block_is_that_of_numpy(size, split):
    """Also where all keys are alike, and each step is 1."""
    exact, at = Exact(split, on_tpu=size == delta.W), delta_tiles.positions(size)
    drawn = np.random.default_rng(size).uniform(-0.5, 0.5, (size, size))
    for x in drawn, np.ones((size, size)):
        # Not compiled: XLA takes a number for its two parts of bfloat16.
        with jax.default_matmul_precision("highest"):
            found = inverse_of_unit_lower(at, exact, jnp.asarray(x, F32))
        expected = np.linalg.inv(np.tril(x, -1) + np.eye(size))
        error = 2e-4 if split else 1e-5
        np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("head_size", gpu_launch.SIZES)
def test_all_kernels_share_the_tokens_of_a_block(head_size, dtype):
    found = gpu_delta.launches(head_size, dtype)
    W = found.blocks.queries
    assert {launch.queries for launch in found} == {W}
    assert W >= gpu_launch.FEWEST and not W & (W - 1)


def chosen_as_on(target, monkeypatch):
    """Models choose forms as on a GPU or TPU; kernels are interpreted all the same."""
    monkeypatch.setattr(table, f"on_{target}", lambda: True)
    table._say_once.cache_clear()


@pytest.mark.parametrize(
    ("target", "name", "mesh_shape"),
    [
        ("tpu", "gated_delta", (2, 2)),
        slow("gpu", "gated_delta", (2, 2)),
        slow("gpu", "kimi_delta", (4, 1)),
        slow("gpu", "gated_delta_layer", None),
        slow("gpu", "kimi_delta_layer", (1, 2)),
        slow("tpu", "kimi_delta", (4, 1)),
        slow("tpu", "kimi_delta_layer", (1, 2)),
    ],
)
def test_a_model_on_a_mesh_or_without_equals_its_plain_form(target, name, mesh_shape, monkeypatch):
    chosen_as_on(target, monkeypatch)
    model = random_model(name, window=16, attention_form="kernel")
    computed, params = of_two_segments(model, 32)
    used = []

    def plain(heads, dtype, matrix, inputs):
        used.append(heads)
        return gated_delta.delta_rule(matrix, inputs)

    of_kernels = on_mesh(mesh_shape, computed, params)
    monkeypatch.setattr(KERNELS[target], "delta_rule", plain)
    leaves_close(of_kernels, computed(params), 5e-5)
    assert used


def chosen(form, tokens=64, head_size=32):
    """Whether the kernels run where a model is traced for a GPU."""
    sizes = Sizes(1, 2, head_size, 1, attention_form=form)
    args = arguments((1, tokens, 2, head_size), False)
    run = gated_delta.rule_of(sizes, F32)
    return "pallas_call" in str(jax.make_jaxpr(run)(args[0], args[1:]))


@pytest.mark.parametrize(
    ("target", "forms"), [("gpu", {"kernel"}), ("tpu", {"kernel", "auto"}), (None, set())]
)
def test_kernels_are_the_default_on_tpus_alone(target, forms, monkeypatch):
    if target:
        chosen_as_on(target, monkeypatch)
    assert {form for form in ("kernel", "auto", "plain") if chosen(form)} == forms


@pytest.mark.parametrize(
    ("target", "form", "head_size"), [("gpu", "kernel", 48), ("tpu", "auto", 64)]
)
def test_a_misfit_is_logged_and_plain(target, form, head_size, monkeypatch, capsys):
    chosen_as_on(target, monkeypatch)
    if target == "gpu":
        monkeypatch.setattr(axis_rules, "device", GPU)
        monkeypatch.setattr(gpu_launch, "device", GPU)
    else:
        monkeypatch.setattr(kernel_forms, "on_tpu", lambda: True)
    assert not chosen(form, tokens=1)
    assert not chosen(form, head_size=head_size)
    lines = capsys.readouterr().err.splitlines()
    assert ["1 tokens" in lines[0], f"head_size = {head_size}" in lines[1]] == [True, True]


def test_kernels_of_both_passes_lower_for_tpus():
    args = arguments((1, 200, 2, 128), True)

    def step(matrix, *inputs):
        rule = functools.partial(delta.delta_rule, Heads(2, 128), BF16)
        found, backward = jax.vjp(rule, matrix, inputs)
        return backward(found)

    lowered = jax.jit(step).trace(*args).lower(lowering_platforms=("tpu",))
    kernels = set(re.findall(r'kernel_name = "(\w+)"', lowered.as_text()))
    assert kernels == {"delta_forward", "delta_backward"}


def modified_inverse(at, exact, x_WW):
    """With the parts of a block apart from each other."""
    halved = jnp.where(at.across(x_WW.shape[0] // 2), 0.0, x_WW)
    return inverse_of_unit_lower(at, exact, halved)


@pytest.mark.parametrize("target", KERNELS)
def test_a_wrong_inverse_is_noticed(target, monkeypatch):
    monkeypatch.setattr(delta_tiles, "inverse_of_unit_lower", modified_inverse)
    assert largest(errors(target, of_case(target, "decays of channels"))) > 0.01
