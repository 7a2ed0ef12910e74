"""Activations of bfloat16: logits close to those of float32, and carried sums in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, abstract, random_model, segment_length
from flax import nnx
from marking import slow
from tiny_models import largest, read_segment

ROWS, SEGMENTS = 2, 3
SUMS = {
    "rec_lstm_dual": {"states_BSD"},
    "feedback_fixed_skip": {"states_BSD"},
    "memorizing_exact": set(),
    "associative_delta": {"matrix_BHKK", "sum_BHK"},
    "kimi_delta": {"matrix_BHKK"},
    "gated_delta_layer": {"matrix_BHKK"},
    "kimi_delta_layer": {"matrix_BHKK"},
    "linear_attention_layer": {"matrix_BHKK"},
    "txl_same_length": set(),
    "lstm": {"cell_BU"},
    "qrnn": {"cell_BU"},
    "gpt2_pooled": {"vectors_BMD"},
}
"""Carried arrays that are changed and not replaced; all others hold activations."""


def by_name(caches):
    found = jax.tree_util.tree_leaves_with_path(caches)
    return [(path[-1].name, x) for path, x in found if jnp.issubdtype(x.dtype, jnp.floating)]


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_float32_and_other_carried_arrays_bfloat16(name):
    graph, params = nnx.split(abstract(name, activation_dtype="bfloat16"), nnx.Param)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    def read(params, tokens_BT):
        model = nnx.merge(graph, params)
        return model.init_caches(ROWS), *model(tokens_BT, model.init_caches(ROWS))

    tokens_BT = jnp.zeros((ROWS, segment_length(name)), jnp.int32)
    before, logits_BTV, after = jax.eval_shape(read, params, tokens_BT)
    assert logits_BTV.dtype == "float32"
    for caches in (before, after):
        types = {(leaf, str(x.dtype)) for leaf, x in by_name(caches)}
        assert {leaf for leaf, dtype in types if dtype == "float32"} == SUMS[name]
        assert {dtype for leaf, dtype in types if leaf not in SUMS[name]} == {"bfloat16"}


def read(name, dtype):
    """Logits of two documents, and the caches after them."""
    model = random_model(name, activation_dtype=dtype)
    rng, length = np.random.default_rng(0), segment_length(name)
    caches, logits = model.init_caches(ROWS), []
    for tokens_BT in rng.integers(0, VOCABULARY, (SEGMENTS, ROWS, length)):
        logits_BTV, caches = read_segment(model, tokens_BT, np.zeros(ROWS, bool), caches)
        logits.append(np.asarray(logits_BTV))
    return np.stack(logits), by_name(caches)


@pytest.mark.parametrize(
    "name", [*("rec_lstm_dual", "feedback_fixed_skip", "txl_same_length"), slow("gpt2_pooled")]
)
def test_logits_and_sums_are_nearly_those_of_float32(name):
    (found, caches), (expected, exact) = (read(name, dtype) for dtype in ("bfloat16", "float32"))
    error = np.abs(found - expected)
    assert 0 < error.max() < 0.1 * largest(expected)
    assert np.sqrt((error**2).mean()) < 0.02 * expected.std()
    for (leaf, ours), (_, theirs) in zip(caches, exact, strict=True):
        if leaf in SUMS[name]:
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.05 * largest(theirs))
