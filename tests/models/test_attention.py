"""The one attention against one query, one head and one key at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import quick_jit

from brt.models.layers.attention import attend
from brt.models.layers.positions_t5 import HIDDEN

SHAPES = [  # leading axes, Q, J, H, K
    ((), 1, 1, 1, 1),
    ((2,), 3, 5, 2, 4),
    ((2, 3), 4, 8, 1, 3),
]


def draw(lead, Q, J, H, K, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(*lead, Q, H, K), (*lead, J, H, K), (*lead, J, H, K), (H,), (H, Q, J), (H, Q, J)]
    q, k, v, scale_H, table_HQJ, keep_HQJ = (rng.normal(size=shape) for shape in shapes)
    keep_HQJ = (keep_HQJ > 0) * 2.0
    return q, k, v, 3 * scale_H, table_HQJ, keep_HQJ


def plain(q, k, v, scale_H, table_HQJ=None, keep_HQJ=None):
    *lead, Q, H, K = q.shape
    J = k.shape[-3]
    found = np.zeros(q.shape)
    for *b, i, h in np.ndindex(*lead, Q, H):
        b = tuple(b)
        scores = []
        for j in range(J):
            dot = sum(q[(*b, i, h, x)] * k[(*b, j, h, x)] for x in range(K))
            scores.append(dot * abs(scale_H[h]) + (0 if table_HQJ is None else table_HQJ[h, i, j]))
        weights = np.exp(np.array(scores) - max(scores))
        weights /= weights.sum()
        if keep_HQJ is not None:
            weights = weights * keep_HQJ[h, i]
        found[(*b, i, h)] = sum(weights[j] * v[(*b, j, h)] for j in range(J))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("used", [4, 5, 6], ids=["bare", "with a table", "with dropout"])
def test_attention_is_a_weighted_mean_of_values(shape, used):
    inputs = draw(*shape)[:used]
    with jax.enable_x64(True):
        found = quick_jit(attend)(*inputs)
    np.testing.assert_allclose(found, plain(*inputs), rtol=1e-9, atol=1e-12)


def test_the_sign_of_a_scale_does_not_matter():
    q, k, v, scale_H, table_HQJ, _ = map(np.float32, draw(*SHAPES[1]))
    found = attend(q, k, v, scale_H, table_HQJ)
    np.testing.assert_array_equal(attend(q, k, v, -scale_H, table_HQJ), found)
    assert (attend(q, k, v, 2 * scale_H, table_HQJ) != found).any()


def test_a_hidden_key_has_no_part_at_all():
    q, k, v, scale_H, table_HQJ, _ = map(np.float32, draw(*SHAPES[1]))
    table_HQJ[..., 2] = HIDDEN
    found = attend(q, k, v, scale_H, table_HQJ)
    k[:, 2], v[:, 2] = 1e4, -1e30
    np.testing.assert_array_equal(attend(q, k, v, scale_H, table_HQJ), found)


def test_gradients_are_those_of_finite_differences():
    with jax.enable_x64(True):
        *inputs, keep_HQJ = draw((2,), 2, 3, 2, 2)
        weights = np.random.default_rng(9).normal(size=inputs[0].shape)
        loss = quick_jit(lambda inputs: jnp.sum(weights * attend(*inputs, keep_HQJ)))
        gradients = quick_jit(
            jax.grad(lambda inputs: jnp.sum(weights * attend(*inputs, keep_HQJ)))
        )(inputs)
        for n, x in enumerate(inputs):
            for place in np.ndindex(x.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = [np.array(y) for y in inputs]
                    moved[n][place] += step
                    ends.append(float(loss(moved)))
                slope = (ends[0] - ends[1]) / 2e-5
                np.testing.assert_allclose(gradients[n][place], slope, rtol=1e-5, atol=1e-8)


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
