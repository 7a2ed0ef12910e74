"""The one attention against one query, one head and one key at a time, and against the plain form
in outputs and gradients, alone and in all models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, random_model, segment_length
from flax import nnx
from marking import slow
from tiny_models import leaves_close, quick_jit

from brt.models import ops
from brt.models.block_recurrent import external_memory, feedback
from brt.models.fast import table
from brt.models.fast.attention import attend, product
from brt.models.melodi import layer as melodi_layer
from brt.models.ops import HIDDEN
from brt.models.relative_attention import plain_attend_by_distance
from brt.models.transformer_xl import layer as transformer_xl_layer
from brt.pretrained import backbone_layer as pretrained_layer
from brt.pretrained.memories import backbone_memory


def draw(lead, Q, J, H, K):
    rng = np.random.default_rng(0)
    shapes = [(*lead, Q, H, K), (*lead, J, H, K), (*lead, J, H, K), (H,), (H, Q, J), (H, Q, J)]
    q, k, v, scale_H, table_HQJ, keep_HQJ = (rng.normal(size=shape) for shape in shapes)
    keep_HQJ = (keep_HQJ > 0) * 2.0
    return q, k, v, 3 * scale_H, table_HQJ, keep_HQJ


@pytest.mark.parametrize("equation", ["HQK,HJK->HQJ", "HQJ,HJK->HQK", "HQK,HQJ->HKJ"])
@pytest.mark.parametrize("leading", [((3, 2), (3, 1)), ((3, 1), (3, 2)), ((3, 2), (1, 2))], ids=str)
def test_bfloat16_products_are_exact_for_repeated_factors(equation, leading):
    sizes = {"H": 2, "Q": 4, "J": 6, "K": 8}
    rng = np.random.default_rng(0)
    factors = [
        jnp.asarray(rng.integers(-9, 10, (*lead, *map(sizes.get, part))), jnp.bfloat16)
        for lead, part in zip(leading, equation.partition("->")[0].split(","))
    ]
    spread = "..." + equation.replace(",", ",...").replace("->", "->...")
    expected = np.einsum(spread, *(np.asarray(x, np.float64) for x in factors))
    for multiplied in (product, jax.jit(product, static_argnums=0)):
        found = multiplied(equation, *factors)
        assert found.dtype == jnp.float32 and np.array_equal(found, expected)


def test_a_hidden_key_has_no_part_at_all():
    q, k, v, scale_H, table_HQJ, _ = map(np.float32, draw((2,), 3, 5, 2, 4))
    table_HQJ[..., 2] = HIDDEN
    found = attend(q, k, v, scale_H, table_HQJ)
    k[:, 2], v[:, 2] = 1e4, -1e30
    np.testing.assert_array_equal(attend(q, k, v, scale_H, table_HQJ), found)


LEADING = [  # axes of the queries, of keys and values, of the table
    ((), (), ()),
    ((2, 3), (2, 3), ()),
    ((2, 3), (2, 1), (2, 1)),
    ((2, 3), (2, 3), (2, 3)),
    ((5,), (5,), (1,)),
]


@pytest.mark.parametrize("table_shape", [None, (2, 4, 6), (2, 1, 6), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("dropped", [False, True])
def test_outputs_and_gradients_are_those_of_the_plain_form(table_shape, dropped):
    Q, J, H, K = 4, 6, 2, 5
    rng = np.random.default_rng(4)
    keep_HQJ = (rng.random((H, Q, J)) > 0.3) * 2.0 if dropped else None
    cases = []
    for of_queries, of_keys, of_table in LEADING:
        inputs = [
            rng.normal(size=(*of_queries, Q, H, K)),
            rng.normal(size=(*of_keys, J, H, K)),
            rng.normal(size=(*of_keys, J, H, K)),
            np.array([-1.3, 2.0]),
        ]
        if table_shape is not None:
            inputs.append(rng.normal(size=(*of_table, *table_shape)))
        cases.append((inputs, rng.normal(size=inputs[0].shape)))

    @quick_jit
    def values(cases):  # of both forms, compiled together
        def total(inputs, weights, form):
            table = inputs[4] if table_shape is not None else None
            read = form(*inputs[:4], table, keep_HQJ)
            return jnp.sum(weights * read), read

        of = jax.value_and_grad(total, has_aux=True)
        return [[of(*case, form) for case in cases] for form in (attend, ops.attention)]

    with jax.enable_x64(True):
        found, expected = values(cases)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_weights_are_not_kept_for_the_backward_pass():
    q, k, v, scale_H, table_HQJ, keep_HQJ = map(np.float32, draw((2, 3), 4, 8, 1, 3))

    def kept(attend):
        _, back = jax.vjp(lambda *inputs: attend(*inputs, keep_HQJ), q, k, v, scale_H, table_HQJ)
        return [leaf.shape for leaf in jax.tree.leaves(back) if hasattr(leaf, "shape")]

    weights = (2, 3, 1, 4, 8)
    assert weights in kept(ops.attention)
    assert weights not in kept(attend)


EVERY_KIND = {
    "rec_memorizing": dict(num_layers=2, memorizing_layers=(1,)),
    "txl_shaw": dict(num_layers=2),
}
"""Compared with every run of the tests, with fewer layers; the others, of the same parts, with the
slow ones."""
ATTENDING = [
    slow(name, when=name not in EVERY_KIND)
    for name in ARCHITECTURES
    # Without attention there are no weights; kernels have tests of their own.
    if not (name.startswith(("lstm", "qrnn")) or name.endswith("_kernel"))
]


ATTEND = (external_memory, melodi_layer, pretrained_layer, backbone_memory)
"""Modules that call `attend` without the table of fast forms."""


def plain_layer_ops(*_):
    plain = (getattr(ops, name) for name in ops.LayerOps._fields)
    return ops.LayerOps(*plain)


def plain_cell_ops(*_):
    return ops.CellOps(ops.attention_by_head, ops.scan_blocks)


@pytest.mark.parametrize("name", ATTENDING)
def test_every_model_has_the_gradients_of_the_plain_form(name, monkeypatch):
    assert all(module.attend is attend for module in ATTEND)
    assert transformer_xl_layer.form_by_distance is table.form_by_distance
    with jax.enable_x64(True):
        model = random_model(name, dtype="float64", dropout=0.3, **EVERY_KIND.get(name, {}))
        graph, params = nnx.split(model)
        T = segment_length(name)
        tokens = np.random.default_rng(5).integers(0, model.vocabulary_size, (2, 2, T + 1))

        def total(params):
            model = nnx.merge(graph, params)
            caches = model.init_caches(2)

            def segment(caches, drawn):
                tokens_BT, key = drawn
                x_BTD, caches, _ = model.stack(model.embed(tokens_BT[:, :-1]), caches, key)
                return caches, model.token_losses(x_BTD, tokens_BT[:, 1:])[0].mean()

            keys = jax.random.split(jax.random.key(0), len(tokens))
            return jax.lax.scan(segment, caches, (tokens, keys))[1].sum()

        def values():
            # Another function each time: it is traced again.
            return quick_jit(lambda params: jax.value_and_grad(total)(params))(params)

        found = values()
        for module in ATTEND:
            monkeypatch.setattr(module, "attend", ops.attention)
        monkeypatch.setattr(table, "layer_ops", plain_layer_ops)
        monkeypatch.setattr(table, "cell_ops", plain_cell_ops)
        monkeypatch.setattr(feedback, "stack_scan", lambda _: ops.scan_blocks)
        module = table.relative_attention
        monkeypatch.setattr(module, "attend_by_distance", plain_attend_by_distance)
        expected = values()
    leaves_close(found, expected, 1e-12)


def test_scores_and_softmax_are_float32_under_bfloat16():
    """300 equal keys: bfloat16 cannot even count them."""
    q, k = jnp.ones((1, 1, 8), jnp.bfloat16), jnp.ones((300, 1, 8), jnp.bfloat16)
    v = jnp.full((300, 1, 8), 3, jnp.bfloat16)
    found = attend(q, k, v, jnp.ones(1))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(found), 3, rtol=0.01)
    text = str(jax.make_jaxpr(attend)(q, k, v, jnp.ones(1)))
    exponents = [line for line in text.splitlines() if " = exp " in line]
    assert exponents and all("f32" in line for line in exponents)
