"""What tests do with tiny models: random parameters, other types, quick compilation."""

import functools

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from brt.models.caches import select_rows


@pytest.fixture(autouse=True)
def wide_types():
    """64-bit numbers in the tests of a module that imports this."""
    with jax.enable_x64(True):
        yield


class OneKey:
    """Replaces `nnx.Rngs`, whose counters are slow to trace, where no draw matters."""

    def params(self):
        return jax.random.key(0)


def drawn(make):
    """`make()`, a module, its random draws compiled together."""
    graph, _ = nnx.split(nnx.eval_shape(make))
    return nnx.merge(graph, quick_jit(lambda: nnx.split(make())[1])())


def parameters(model) -> dict:
    """The parameter arrays as a nested plain dict."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def known(settings_type, given):
    """The settings of a transcription, which has fewer than a model."""
    names = settings_type.__dataclass_fields__
    return settings_type(**{name: given[name] for name in names if name in given})


def plain(tree):
    """Nested dictionaries of NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


def largest(x):
    return np.abs(x).max(initial=0.0)


def leaves_close(found, expected, tolerance):
    """Asserts that trees are equal up to `tolerance` of the largest entry of each leaf, or of 1."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, largest(b)))


def equations_of(jaxpr):
    """Those of a program, and of all programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations_of(inner)


def randomised(model, seed):
    """A copy with every parameter random: no scale is 1 or positive on purpose, no bias small."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = str(getattr(path[-2], "key", path[-2]))  # the last entry is the Param's value
        size = 3.0 if name.endswith("scale_H") else 1.0 if leaf.ndim == 1 else 0.5
        values = size * rng.normal(size=leaf.shape)
        if name.endswith("scale_H"):
            values = (0.5 + np.abs(values)) * np.where(np.arange(values.size) % 2, 1.0, -1.0)
        if name == "decay_rate_H":  # of the first tokens more than a rounding is left in the end
            values -= 3.0
        return jnp.asarray(values.astype(leaf.dtype))  # on the host: JAX compiles a conversion

    graph, params = nnx.split(model)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, params))


def cast(model, dtype):
    """A copy with all parameters and activations of `dtype`; float64 inside jax.enable_x64."""
    graph, params = nnx.split(model)
    model = nnx.merge(
        graph, jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, dtype)), params)
    )
    model.dtype = jnp.dtype(dtype)
    return model


QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Compiler options for tests, which compile longer than they run; they save three quarters."""
if jaxlib.version.__version_info__ < (0, 11):  # newer ones end the process at an unknown flag
    QUICK["xla_cpu_use_fusion_emitters"] = False  # half the time

quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


@functools.partial(quick_jit, static_argnums=0)
def _read(graph, params, tokens_BT, starts_B, caches):
    model = nnx.merge(graph, params)
    return model(tokens_BT, select_rows(starts_B, model.init_caches(len(starts_B)), caches))


def read_segment(model, tokens_BT, starts_B, caches):
    """Logits and caches after one segment, rows that start a document reset, as in training.

    Compiled once for all models of equal settings and types, whatever their parameters.
    """
    return _read(*nnx.split(model), tokens_BT, starts_B, caches)
