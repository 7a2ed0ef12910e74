"""Names say shapes, and shapes say shardings, of every architecture."""

import jax
import jax.numpy as jnp
import pytest
from architectures import ARCHITECTURES, VARIANTS, abstract
from flax import nnx
from jax.sharding import PartitionSpec
from tiny_models import parameters
from tiny_run import mesh_of

from brt.models.axis_rules import constrain
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.mesh_axes import spec

FIXED = dict(B=5, D=12, H=2, K=4, A=8, C=16, F=10, W=4)
"""Sizes of the axis names that mean the same in every model. The sizes are distinct, except that A
equals J = 2W in the stacks of blocks."""

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


def axes_of(name: str) -> str:
    """The shape suffix of a parameter's or a field's name."""
    return name.rsplit("_", 1)[1]


def assert_consistent(name, named_shapes):
    """Checks that every axis name has one size, and those in `FIXED` their fixed size.

    `RULES` splits arrays by their axis names, so a name with a second size would split, or copy, an
    array wrongly.
    """
    sizes = dict(FIXED)
    for where, axes, shape in named_shapes:
        assert len(axes) == len(shape), where
        for letter, size in zip(axes, shape):
            if letter in ARCHITECTURES[name].various:
                continue
            assert sizes.setdefault(letter, size) == size, (where, letter)
            if isinstance(abstract(name), BlockRecurrentTransformer):
                # Heads are split over devices: no other axis name may have their size.
                assert size != FIXED["H"] or letter == "H", (where, letter)


@every_architecture
def test_every_parameter_says_its_shape_in_its_name(name):
    leaves = jax.tree_util.tree_flatten_with_path(parameters(abstract(name)))[0]
    named = [(path, axes_of(path[-1].key), leaf.shape) for path, leaf in leaves]
    assert_consistent(name, named)
    assert all(leaf.dtype == jnp.float32 for _, leaf in leaves)


@every_architecture
def test_every_cache_says_its_shape_in_its_name(name):
    graph, params = nnx.split(abstract(name))

    def both(params):
        model = nnx.merge(graph, params)
        return model.init_caches(5), model.begin_decoding(model.init_caches(5))

    leaves = jax.tree_util.tree_flatten_with_path(jax.eval_shape(both, params))[0]
    assert leaves
    named = [(path, axes_of(path[-1].name), leaf.shape) for path, leaf in leaves]
    assert all(axes[0] == "B" for _, axes, _ in named), "rows come first"
    assert_consistent(name, named)


def names_of(name):
    """Types of the caches of an architecture, memories' too, and its parameters without indices."""
    graph, params = nnx.split(abstract(name))
    caches = jax.eval_shape(lambda params: nnx.merge(graph, params).init_caches(5), params)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(parameters(abstract(name)))]
    steps = ([str(step.key) for step in path] for path in paths)
    found = {".".join(step for step in path if not step.isdigit()) for path in steps}

    def add_types(part):
        if isinstance(part, tuple):
            found.update({type(part)} if hasattr(part, "_fields") else ())
            for each in part:
                add_types(each)

    add_types(caches)
    return found


def test_variants_have_no_cache_and_no_parameter_of_their_own():
    others = set().union(*(names_of(name) for name in ARCHITECTURES if name not in VARIANTS))
    for name in VARIANTS:
        assert not names_of(name) - others, name


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("BTD", (("data", "fsdp"), None, None)),  # rows are split, so the width is not
        ("DA", ("fsdp", "model")),
        ("AD", ("model", "fsdp")),
        ("VD", ("model", "fsdp")),
        ("D", ("fsdp",)),
        ("HR", ("model", None)),
        ("SD", (None, "fsdp")),
        ("CF", (None, "model")),
        ("BWHK", (("data", "fsdp"), None, "model", None)),
        ("", ()),
    ],
)
def test_rows_go_over_data_and_fsdp_heads_over_model(axes, expected):
    assert spec(axes) == PartitionSpec(*expected)


@every_architecture
def test_no_parameter_is_split_twice_over_one_axis_of_the_mesh(name):
    model = abstract(name)
    for path, leaf in jax.tree_util.tree_flatten_with_path(parameters(model))[0]:
        axes = [axis for axis in spec(axes_of(path[-1].key)) if axis]
        assert len(axes) == len(set(axes)) and set(axes) <= {"fsdp", "model"}
        assert axes or leaf.ndim < 2  # no matrix is copied whole to every device


def test_outside_a_mesh_nothing_is_pinned_and_inside_it_is():
    x_BTD = jnp.ones((2, 3, 4))
    assert constrain(x_BTD, "BTD") is x_BTD
    assert "sharding" not in str(jax.make_jaxpr(lambda x: constrain(x, "BTD"))(x_BTD))
    with jax.set_mesh(mesh_of(1, 1)):
        trace = str(jax.make_jaxpr(lambda x: constrain(x, "BTD"))(x_BTD))
    assert "sharding_constraint" in trace and "'data'" in trace
