"""A model whose attention is kernels, interpreted, against its plain form."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from flax import nnx
from forms import (
    dropout_drawn_by_tpu,
    on_mesh,
    plain_attend_to_states,
    plain_attend_to_window,
    tables_drawn_by_tpu,
    two_segments,
)
from marking import slow
from tiny_models import leaves_close, quick_jit

from brt.models import axis_rules, ops
from brt.models.fast import cudnn_attention, kernel_forms, table
from brt.models.fast.attention import attend
from brt.models.ops import HIDDEN
from brt.models.sizes import Sizes

W = 4
BF16 = jnp.bfloat16
KERNEL, PLAIN = (Sizes(1, 8, 128, 1, attention_form=form) for form in ("kernel", "plain"))


SMALL = dict(num_layers=2, dropout=0.2)
"""A layer without states and a layer with states, as interpreted kernels compile slowly."""
FEEDBACK = dict(num_layers=3)
"""A layer above the states too, which with kernels runs outside the loop over blocks."""


@pytest.fixture
def drawn_by_kernels(monkeypatch):
    """Plain forms drop the weights that kernels drop."""
    monkeypatch.setattr(ops, "window_tables", tables_drawn_by_tpu)
    monkeypatch.setattr(ops, "states_dropout", dropout_drawn_by_tpu)
    compiled.clear_cache()
    yield
    compiled.clear_cache()


def run(name, form, mesh_shape=None, rows=4, **settings):
    model = random_model(name, attention_form=form, **{**SMALL, **settings})
    tokens_SBT = np.random.default_rng(0).integers(0, 17, (2, rows, 3 * W)).astype(np.int32)
    graph, params = nnx.split(model, nnx.Param)
    return on_mesh(mesh_shape, lambda params: compiled(graph, params, tokens_SBT), params)


compiled = quick_jit(two_segments, static_argnums=0)
assert_close = functools.partial(leaves_close, tolerance=5e-5)


@pytest.mark.usefixtures("drawn_by_kernels")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # Below: on a mesh, and with whole tiles.
        slow("rec_kernel", {}),
        slow("feedback_kernel", FEEDBACK),
        slow("rec_kernel", dict(qk_norm=False)),
        slow("txl_kernel", dict(encoding="absolute")),
        ("txl_kernel", dict(attention_dropout=0.2)),
    ],
)
def test_outputs_caches_and_gradients_equal_the_plain_form(name, settings):
    assert_close(run(name, "kernel", **settings), run(name, "plain", **settings))


@pytest.mark.usefixtures("drawn_by_kernels")
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("rec_kernel", 4),
        slow("feedback_kernel", 4),
        slow("rec_kernel", 3),
        slow("txl_kernel", 4),
        slow("txl_kernel", 3),
    ],
)
def test_a_mesh_changes_no_output_and_no_gradient(name, rows):
    settings = FEEDBACK if name == "feedback_kernel" else {}
    on_mesh = run(name, "kernel", (2, 2), rows, **settings)
    assert_close(on_mesh, run(name, "plain", None, rows, **settings))


@pytest.mark.parametrize(
    ("mesh_shape", "rows"), [((2, 2, 1), 3), slow((2, 2), 3), slow((2, 2), 4), slow((2, 2, 1), 4)]
)
def test_a_mesh_changes_nothing_of_the_plain_form(mesh_shape, rows):
    on_mesh = run("rec_kernel", "plain", mesh_shape, rows)
    assert_close(on_mesh, run("rec_kernel", "plain", None, rows))


def has_window_kernel(sizes, window=512):
    chosen = table.layer_ops(sizes, window, 0, BF16).window_attention
    return chosen.args == (kernel_forms.attend_to_window,)


def test_auto_is_plain_without_a_tpu():
    assert not has_window_kernel(Sizes(1, 8, 128, 1))
    assert has_window_kernel(KERNEL)
    assert not has_window_kernel(PLAIN)


@pytest.fixture
def on_tpu(monkeypatch):
    for module in (table, kernel_forms):
        monkeypatch.setattr(module, "on_tpu", lambda: True)
    table._say_once.cache_clear()


@pytest.mark.usefixtures("on_tpu")
def test_on_a_tpu_auto_takes_a_kernel_that_fits(capsys):
    for _ in range(2):
        assert has_window_kernel(Sizes(1, 8, 128, 1))
    chosen = table.layer_ops(Sizes(1, 8, 128, 1), 512, 100, BF16)
    assert chosen.attention_to_states.args == (kernel_forms.attend_to_states,)
    chosen = table.layer_ops(Sizes(1, 8, 96, 1), 512, 512, BF16)
    assert chosen.attention_to_states.func is not kernel_forms.attention_to_states
    window, states, *wide = capsys.readouterr().err.splitlines()
    assert "512" in window and "Pallas" in window and "interpreted" not in window
    assert "100 keys" in states and "Pallas" in states
    assert len(wide) == 2 and all("head_size = 96" in line for line in wide)


def test_a_kernel_that_is_interpreted_says_so(capsys):
    table._say_once.cache_clear()
    assert has_window_kernel(KERNEL, 384)
    assert "interpreted" in capsys.readouterr().err


@pytest.mark.usefixtures("on_tpu")
@pytest.mark.parametrize("form", ["auto", "kernel"])
def test_a_cell_that_stays_plain_says_why(form, capsys):
    """Where the binding insists on kernels too: its loop has none for every size."""
    sizes = Sizes(2048, 8, 128, 1, attention_form=form)
    for only_gate in (object(), None):
        chosen = table.cell_ops(sizes, 512, 128, BF16, only_gate)
        assert not isinstance(chosen.scan_blocks, functools.partial)
        assert chosen.attention_by_head is kernel_forms.attention_by_head
    lines = [line for line in capsys.readouterr().err.splitlines() if "cell" in line]
    assert len(lines) == 2 and "1024 features" in lines[0] and "gates" in lines[1]


def test_a_model_draws_the_dropout_of_whole_tiles_in_its_kernels(monkeypatch):
    """Compares several tiles with the plain forms, given the same dropout masks."""
    window, settings = (
        256,
        dict(num_layers=1, recurrent_layers=(0,), window=256, num_states=128, dropout=0.2),
    )
    graph, params = nnx.split(random_model("rec_kernel", **settings), nnx.Param)
    tokens_SBT = np.random.default_rng(0).integers(0, 17, (1, 1, 2 * window)).astype(np.int32)
    computed = compiled(graph, params, tokens_SBT)
    monkeypatch.setattr(kernel_forms, "attend_to_window", plain_attend_to_window)
    monkeypatch.setattr(kernel_forms, "attend_to_states", plain_attend_to_states)
    compiled.clear_cache()
    expected = compiled(graph, params, tokens_SBT)
    assert_close(computed, expected)


def test_a_required_kernel_that_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"BlockRecurrentTransformer\.attention_form.*window = 200"
    ):
        table.layer_ops(KERNEL, 200, 0, BF16)
    with pytest.raises(ValueError, match=r"TransformerXL\.attention_form.*2000 keys"):
        table.form_by_distance(KERNEL, 1, 512, 2000, None)


def test_a_gpu_has_no_kernel_of_attention_by_distance(monkeypatch):
    monkeypatch.setattr(table, "on_gpu", lambda: True)
    with pytest.raises(ValueError, match=r"TransformerXL\.attention_form.*GPU"):
        table.form_by_distance(KERNEL, 1, 512, 1024, None)


def trace(model, key=None, tokens=W):
    """Traces a segment of two batch elements."""
    x_BTD, caches = model.embed(np.zeros((2, tokens), np.int32)), model.init_caches(2)
    jax.eval_shape(lambda: model.stack(x_BTD, caches, key)[0])


def test_relative_attention_without_its_distances_is_refused():
    with pytest.raises(ValueError, match="published_artefacts"):
        trace(random_model("rmt_kernel", published_artefacts=True))


@pytest.fixture
def calls_of_cudnn(monkeypatch):
    """Arguments of each call of JAX's function, which XLA computes."""
    calls, function = [], jax.nn.dot_product_attention

    def record(*arrays, **options):
        calls.append(([x if x is None else x.shape for x in arrays], options))
        return function(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    monkeypatch.setattr(cudnn_attention, "IMPLEMENTATION", "xla")
    return calls


@pytest.mark.parametrize("bias_axis", [0, None])
def test_cudnn_of_layers_at_once_is_that_of_each(calls_of_cudnn, bias_axis):
    rng = np.random.default_rng(1)
    q, k, v = (
        jnp.asarray(rng.standard_normal((3, 2, 5, size, 4, 8)), jnp.bfloat16)
        for size in (W, 2 * W, 2 * W)
    )
    scale_LH = jnp.asarray(rng.standard_normal((3, 4)))
    bias = jnp.asarray(rng.standard_normal((3, 4, W, 2 * W)))
    bias = bias if bias_axis == 0 else bias[0]
    attend = cudnn_attention.cudnn_attention
    each = [
        attend(q[n], k[n], v[n], scale_LH[n], bias[n] if bias_axis == 0 else bias) for n in range(3)
    ]
    calls_of_cudnn.clear()
    with cudnn_attention.layers_at_once():
        found = jax.vmap(attend, (0, 0, 0, 0, bias_axis))(q, k, v, scale_LH, bias)
    np.testing.assert_array_equal(found, jnp.stack(each))
    assert calls_of_cudnn[-1][0][0] == (10, W, 12, 8)


def test_cudnn_equals_the_plain_form_with_the_window_in_the_bias(calls_of_cudnn):
    rng = np.random.default_rng(0)

    def normal(*sizes):
        return jnp.asarray(rng.standard_normal(sizes), jnp.bfloat16)

    q, k, v, dy = normal(2, 3, W, 2, 8), *normal(2, 2, 3, 2 * W, 2, 8), normal(2, 3, W, 2, 8)
    scale_H = jnp.asarray([1.5, -0.5])
    query, key = np.mgrid[:W, : 2 * W]
    hidden = (key <= query) | (key > query + W)
    bias_HWJ = jnp.where(hidden, HIDDEN, jnp.asarray(rng.standard_normal((2, W, 2 * W))))

    def computed(function):
        y, backward = jax.vjp(lambda *x: function(*x), q, k, v, scale_H, bias_HWJ)
        return y, *backward(dy)

    forms = computed(cudnn_attention.cudnn_attention), computed(attend)
    for a, b in zip(*forms, strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=0, atol=0.03 * np.abs(b).max())
    (shapes, options), *_ = calls_of_cudnn
    assert shapes == [(6, W, 2, 8), (6, 2 * W, 2, 8), (6, 2 * W, 2, 8), (1, 2, W, 2 * W)]
    assert options == {"scale": 1.0, "implementation": "xla"}


CUDNN = dict(attention_form="cudnn", activation_dtype="bfloat16", head_size=8)


def test_every_attention_of_a_model_is_cudnns_by_the_binding(calls_of_cudnn):
    trace(random_model("rec_fixed_skip", **CUDNN, dropout=0.0), tokens=2 * W)
    # Three windows; of the recurrent layer the states, and two in the cell's loop.
    assert len(calls_of_cudnn) >= 6


@pytest.mark.parametrize(
    ("dtype", "has_dropout", "part"),
    [("float32", False, "activation_dtype"), ("bfloat16", True, "dropout")],
)
def test_cudnn_refuses_what_it_cannot_compute(dtype, has_dropout, part):
    assert part in cudnn_attention.misfit(jnp.dtype(dtype), has_dropout)


@pytest.mark.parametrize(
    ("head_size", "window", "states", "part"),
    [(60, 512, 0, "head_size = 60"), (264, 512, 0, "264"), (64, 511, 0, "511"), (64, 512, 3, "3")],
)
def test_cudnn_refuses_sizes_of_heads_and_biases(head_size, window, states, part):
    assert part in cudnn_attention.size_misfit(head_size, window, states)
    assert not cudnn_attention.size_misfit(64, 512, 16)


def test_cudnn_refuses_dropout_in_training_alone(calls_of_cudnn):
    model = random_model("slide", **CUDNN, dropout=0.1)
    trace(model)
    with pytest.raises(ValueError, match="dropout must be 0"):
        trace(model, jax.random.key(0))


def test_cudnn_drops_keys(calls_of_cudnn):
    settings = dict(CUDNN, num_states=4, attention_dropout="keys", dropout=0.1)
    trace(random_model("rec_fixed_skip", **settings), jax.random.key(0))
    assert calls_of_cudnn


@pytest.mark.parametrize(
    ("kind", "dropout", "drops", "settings", "is_cudnns"),
    [
        ("NVIDIA H100 80GB HBM3", 0.0, "weights", {}, True),
        ("NVIDIA GH200 480GB", 0.1, "keys", {}, True),
        ("NVIDIA H200", 0.1, "weights", {}, False),
        ("NVIDIA H100 PCIe", 0.0, "weights", {"activation_dtype": "float32"}, False),
        ("NVIDIA H100 PCIe", 0.0, "weights", {"window": 256}, False),
        ("NVIDIA H100 PCIe", 0.0, "weights", {"head_size": 12}, False),
        ("NVIDIA H100 PCIe", 0.0, "weights", {"attention_form": "plain"}, False),
        ("NVIDIA A100-SXM4-80GB", 0.0, "weights", {}, False),
        ("NVIDIA GeForce RTX 4090", 0.0, "weights", {}, False),
        ("cpu", 0.0, "weights", {}, False),
    ],
)
def test_auto_is_cudnn_where_it_was_measured_to_be_faster(
    kind, dropout, drops, settings, is_cudnns, calls_of_cudnn, monkeypatch
):
    device = SimpleNamespace(device_kind=kind, platform="cpu" if kind == "cpu" else "gpu")
    for module in (axis_rules, cudnn_attention):
        monkeypatch.setattr(module, "device", lambda: device)
    chosen = dict(window=512, head_size=8, activation_dtype="bfloat16") | settings
    model = random_model("slide", dropout=dropout, attention_dropout=drops, **chosen)
    trace(model, jax.random.key(0), chosen["window"])
    assert bool(calls_of_cudnn) == is_cudnns


def test_cudnn_is_refused_where_there_is_no_gpu():
    with pytest.raises(ValueError, match="needs an NVIDIA GPU"):
        trace(random_model("rec_fixed_skip", **CUDNN, dropout=0.0))
