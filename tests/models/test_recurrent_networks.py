"""LSTM and QRNN: what only they promise. Their equations: tests/laws/test_references.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, random_model
from jax.extend.core import jaxprs_in_params
from tiny_models import quick_jit, wide_types  # noqa: F401

from brt.models.recurrent_networks import pooled


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


def test_loops_contain_only_products_with_the_last_output():
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
        x_BTD = jnp.zeros((2, SEGMENT, 12), jnp.float32)
        jaxpr = jax.make_jaxpr(lambda x, m=model: m.stack(x, m.init_caches(2))[0])(x_BTD)
        assert inside(jaxpr.jaxpr, False) == expected


def test_a_mesh_must_divide_every_bin_or_is_refused():
    model = random_model("qrnn", cutoffs=(5, 11))
    names = ["QRNN.cutoffs[0]", "QRNN.cutoffs[1] - QRNN.cutoffs[0]"]
    assert [*model.divided_sizes()] == [*names, "QRNN.vocabulary_size - QRNN.cutoffs[1]"]
    assert [*model.divided_sizes().values()] == [5, 6, 6]
    with pytest.raises(ValueError, match=r"LSTM.cutoffs = \(5, 99\) .* LSTM.vocabulary_size = 17"):
        random_model("lstm", cutoffs=(5, 99))
    with pytest.raises(ValueError, match=r"QRNN.div_val = 0"):
        random_model("qrnn", cutoffs=(5, 11), div_val=0)
