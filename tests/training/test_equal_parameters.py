"""Equal parameters are updated together, as if each were updated by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import quick_jit

from brt.models.fast.layer_scan import FEWEST
from brt.training.optimization.equal_parameters import equal_parameters_together, norm_of_all
from brt.training.optimization.optimizers import adafactor, adamw


def rate(step):
    return 0.1 / (1.0 + step)


OPTIMIZERS = {
    "adafactor": lambda: optax.adafactor(rate, momentum=0.9, min_dim_size_to_factor=4),
    "adamw": lambda: optax.adamw(rate, weight_decay=0.1),
    "sgd": lambda: optax.sgd(rate),
}


def layers(sizes, seed=0):
    """Parameters of layers with matrices of these sizes, a vector and a table beside them."""
    rng = np.random.default_rng(seed)

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape))

    return {
        "table_VD": array(7, 5),
        "layers": {
            i: {
                "keys_DA": array(5, size),
                "values_DA": array(5, size),
                "norm": {"scale_D": array(5)},
            }
            for i, size in enumerate(sizes)
        },
        "others": [array(5, 5), array(5, 5)],
    }


def moved(optimizer, sizes):
    """Parameters and optimizer state after three steps."""
    update = quick_jit(optimizer.update)
    params = layers(sizes)
    state = jax.jit(optimizer.init)(params)
    for step in range(3):
        updates, state = update(layers(sizes, seed=1 + step), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(), (3, 6, 3, 3)], ids=str)
def test_every_parameter_moves_as_by_itself(name, sizes):
    with jax.enable_x64(True):
        alone = OPTIMIZERS[name]()
        alone, together = (
            moved(each, sizes) for each in (alone, equal_parameters_together(alone, fewest=2))
        )
        assert jax.tree.structure(alone) == jax.tree.structure(together)

        def same(a, b):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

        jax.tree.map(same, together, alone)


MOVING = {"broadcast_in_dim", "concatenate", "dynamic_slice", "reshape", "slice", "squeeze"}


def computing(jaxpr):
    """The equations of a program that compute something, those of its functions too."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [x.jaxpr for x in equation.params.values() if hasattr(x, "jaxpr")]
        own = not inner and equation.primitive.name not in MOVING
        total += own + sum(map(computing, inner))
    return total


def program_of(optimizer, sizes):
    params = layers(sizes)
    state = optimizer.init(params)
    return computing(jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr)


@pytest.mark.parametrize("make", [adafactor, adamw], ids=lambda make: make.__name__)
def test_more_layers_make_the_program_of_an_optimizer_no_longer(make):
    alone = OPTIMIZERS[make.__name__]()
    sizes = [3] * FEWEST
    assert program_of(alone, [*sizes, 3]) > program_of(alone, sizes)
    assert program_of(make(rate), [*sizes, 3]) == program_of(make(rate), sizes)


@settings(deadline=None, max_examples=6)
@given(sizes=st.lists(st.sampled_from([3, 6]), max_size=5))
def test_the_norm_of_all_entries_counts_each_of_them_once(sizes):
    with jax.enable_x64(True):
        tree = layers(sizes)
        squares = sum(np.sum(np.asarray(leaf) ** 2) for leaf in jax.tree.leaves(tree))
        np.testing.assert_allclose(norm_of_all(tree, fewest=2), np.sqrt(squares), rtol=1e-14)


def test_equal_gradients_are_summed_by_one_reduction():
    tree = layers([3] * FEWEST)
    kinds = [str(each.primitive) for each in jax.make_jaxpr(norm_of_all)(tree).eqns]
    # The table, two others, and keys, values and scales of all layers.
    assert kinds.count("reduce_sum") == 3 + 3
