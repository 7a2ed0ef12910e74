"""Names say shapes, and shapes say shardings."""

import jax
import jax.numpy as jnp
import pytest
from architectures import ARCHITECTURES, abstract, parameters
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from brt.models.shape_letters import RULES, constrain, spec

# A = H * K and C = 2 * A; every letter has a size of its own, so none can stand for another.
SIZES = dict(V=17, D=12, H=2, A=8, C=16, F=10, S=3, R=32, B=5, W=4, K=4, J=8)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_says_its_shape_in_its_name(name):
    model = abstract(name)
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters(model))[0]:
        letters = path[-1].key.rsplit("_", 1)[1]
        assert leaf.shape == tuple(SIZES[letter] for letter in letters), path
        assert leaf.dtype == jnp.float32


@pytest.mark.parametrize("name", ["slide", "rec_fixed_skip", "feedback_two_cells"])
def test_every_cache_says_its_shape_in_its_name(name):
    model = abstract(name)
    graph, params = nnx.split(model)

    def both(params):
        model = nnx.merge(graph, params)
        return model.init_caches(5), model.begin_decoding(model.init_caches(5))

    leaves = jax.tree_util.tree_flatten_with_path(jax.eval_shape(both, params))[0]
    assert leaves
    for path, leaf in leaves:
        letters = path[-1].name.rsplit("_", 1)[1]
        assert leaf.shape == tuple(SIZES[letter] for letter in letters), path


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("BTD", ("data", None, None)),  # rows are split, so the width is not
        ("DA", ("data", "model")),
        ("AD", ("model", "data")),
        ("VD", ("model", "data")),
        ("D", ("data",)),
        ("HR", ("model", None)),
        ("SD", (None, "data")),
        ("CF", (None, "model")),
        ("BWHK", ("data", None, "model", None)),
        ("", ()),
    ],
)
def test_rows_and_widths_go_over_data_and_heads_and_vocabulary_over_model(letters, expected):
    assert spec(letters) == PartitionSpec(*expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_parameter_is_split_twice_over_one_axis_of_the_mesh(name):
    model = abstract(name)
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters(model))[0]:
        axes = [axis for axis in spec(path[-1].key.rsplit("_", 1)[1]) if axis]
        assert len(axes) == len(set(axes)) and set(axes) <= set(RULES.values())
        assert axes or leaf.ndim < 2  # no matrix is copied whole to every device


def test_outside_a_mesh_nothing_is_pinned_and_inside_it_is():
    x_BTD = jnp.ones((2, 3, 4))
    assert constrain(x_BTD, "BTD") is x_BTD
    assert "sharding" not in str(jax.make_jaxpr(lambda x: constrain(x, "BTD"))(x_BTD))
    mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        trace = str(jax.make_jaxpr(lambda x: constrain(x, "BTD"))(x_BTD))
    assert "sharding_constraint" in trace and "'data'" in trace
