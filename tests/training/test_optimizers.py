"""Optimizers, against the published updates written out in NumPy, float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brt.training.optimization.optimizers import adafactor, adamw, frozen, muon

SHAPES = {"large_VD": (256, 256), "long_DF": (512, 16), "small_DF": (5, 7), "bias_D": (9,)}
"""Only the first has both sides of 128 or more, and so a factored second moment."""


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def draw(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {name: scale * rng.normal(size=shape) for name, shape in SHAPES.items()}


class PaperAdafactor:
    """Algorithms 4 and 5 of the Adafactor paper, relative steps, with momentum."""

    def __init__(self, params, rate, momentum=0.9, decay_rate=0.8, clip_update=1.0):
        self.params, self.rate, self.momentum = params, rate, momentum
        self.power, self.clip = decay_rate, clip_update
        self.rows, self.columns, self.squares, self.moving = (
            dict.fromkeys(params, 0.0) for _ in range(4)
        )
        self.t = 0

    def step(self, gradients):
        self.t += 1
        keep = 1 - self.t**-self.power
        for name, g in gradients.items():
            square = g**2 + 1e-30
            if g.ndim == 2 and min(g.shape) >= 128:
                self.rows[name] = keep * self.rows[name] + (1 - keep) * square.sum(1)
                self.columns[name] = keep * self.columns[name] + (1 - keep) * square.sum(0)
                outer = np.outer(self.rows[name], self.columns[name])
                v = outer / self.rows[name].sum()
            else:
                v = self.squares[name] = keep * self.squares[name] + (1 - keep) * square
            update = g / np.sqrt(v)
            update /= max(1.0, rms(update) / self.clip)
            update *= max(1e-3, rms(self.params[name])) * self.rate(self.t - 1)
            self.moving[name] = self.momentum * self.moving[name] + (1 - self.momentum) * update
            self.params[name] = self.params[name] - self.moving[name]


class PaperAdam:
    """Adam with decoupled weight decay, and the two clips that may come before it."""

    def __init__(self, params, rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0, **clips):
        self.params, self.rate, self.b1, self.b2, self.eps = params, rate, b1, b2, eps
        self.decay = weight_decay
        self.norm, self.value = clips.get("clip_norm"), clips.get("clip_value")
        self.m, self.v = dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
        self.t = 0

    def step(self, gradients):
        rate = self.rate(self.t)
        self.t += 1
        if self.value is not None:
            gradients = {name: np.clip(g, -self.value, self.value) for name, g in gradients.items()}
        if self.norm is not None:
            norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {name: g * min(1.0, self.norm / norm) for name, g in gradients.items()}
        for name, g in gradients.items():
            self.m[name] = self.b1 * self.m[name] + (1 - self.b1) * g
            self.v[name] = self.b2 * self.v[name] + (1 - self.b2) * g**2
            m, v = self.m[name] / (1 - self.b1**self.t), self.v[name] / (1 - self.b2**self.t)
            update = m / (np.sqrt(v) + self.eps) + self.decay * self.params[name]
            self.params[name] = self.params[name] - rate * update


def rate(step):
    return 0.01 * (step + 1)


def fold(optimizer, params, gradients):
    """Parameters after each of a list of gradients, in float32, compiled."""
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state, trail = optimizer.init(params), []
    for gradient in gradients:
        gradient = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), gradient)
        params, state = step(params, state, gradient)
        trail.append(jax.tree.map(np.asarray, params))
    return trail


def assert_same_trail(found, reference, gradients, params):
    """The moves since the first parameters agree, after every step and in every array."""
    for step, gradient in enumerate(gradients):
        reference.step(gradient)
        for name, start in params.items():
            moved = reference.params[name] - start
            np.testing.assert_allclose(
                (found[step][name] - np.float32(start)) / rms(moved),
                moved / rms(moved),
                atol=1e-3,
                err_msg=f"{name} after step {step + 1}",
            )


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.5}, {"decay_rate": 0.5}, {"clip_update": 0.25}], ids=str
)
def test_adafactor_is_the_published_update(settings):
    params = draw(0) | {"bias_D": np.zeros(9)}
    # Gradients of very different sizes, so that the clip of later updates does bind.
    gradients = [draw(seed, 10.0 ** (seed % 3)) for seed in range(1, 6)]
    found = fold(adafactor(rate, **settings), params, gradients)
    assert_same_trail(found, PaperAdafactor(dict(params), rate, **settings), gradients, params)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.1},
        {"b1": 0.5, "b2": 0.9, "eps": 1e-2},
        {"clip_norm": 3.0, "eps": 1e-2},
        {"clip_value": 0.5, "eps": 1e-2},
        {"clip_value": 0.5, "clip_norm": 3.0, "eps": 1e-2},
    ],
    ids=str,
)
def test_adamw_is_the_published_update(settings):
    params = draw(0)
    gradients = [draw(seed, 10.0 ** (seed % 3 - 2)) for seed in range(1, 6)]
    found = fold(adamw(rate, **settings), params, gradients)
    assert_same_trail(found, PaperAdam(dict(params), rate, **settings), gradients, params)


def orthogonalized(matrix):
    """Five steps of Newton and Schulz, with Jordan's coefficients."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_orthogonalizes_weights_and_leaves_the_rest_to_adam():
    params = draw(0)
    gradients = [draw(seed, 10.0 ** (seed % 3 - 2)) for seed in range(1, 5)]
    found = fold(muon(rate, weight_decay=0.1), params, gradients)
    adam = PaperAdam({n: params[n] for n in ("large_VD", "bias_D")}, rate, b2=0.95)
    weights = {name: params[name] for name in ("long_DF", "small_DF")}
    moments = dict.fromkeys(weights, 0.0)
    for t, (gradient, after) in enumerate(zip(gradients, found, strict=True), 1):
        adam.step({name: gradient[name] for name in adam.params})
        for name, weight in weights.items():
            moments[name] = 0.95 * moments[name] + 0.05 * gradient[name]
            ahead = 0.95 * moments[name] / (1 - 0.95 ** (t + 1))
            update = orthogonalized(ahead + 0.05 * gradient[name] / (1 - 0.95**t))
            update *= 0.2 * max(weight.shape) ** 0.5
            weights[name] = weight - rate(t - 1) * (update + 0.1 * weight)
        for name, value in (adam.params | weights).items():
            np.testing.assert_allclose(after[name], value, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("optimizer", [adafactor, adamw, muon])
def test_the_learning_rate_is_that_of_the_step_counted_from_zero(optimizer):
    params, gradient = draw(0), draw(1)
    still = fold(optimizer(lambda step: jnp.where(step == 0, 0.0, 0.1)), params, [gradient] * 2)
    for name in SHAPES:
        np.testing.assert_array_equal(still[0][name], np.float32(params[name]))
        assert rms(still[1][name] - still[0][name]) > 0


def test_a_frozen_backbone_stays_and_its_memory_is_trained():
    start = {"body": draw(0), "memories": {"0": draw(1)}}
    gradients = [{"body": draw(seed), "memories": {"0": draw(seed + 9)}} for seed in (2, 3)]
    optimizer = frozen(rate, optimizer=lambda rate: adamw(rate, clip_norm=3.0, eps=1e-2))
    found = fold(optimizer, start, gradients)
    for each in found:
        for name, values in start["body"].items():
            np.testing.assert_array_equal(each["body"][name], np.float32(values))
    reference = PaperAdam(dict(start["memories"]["0"]), rate, clip_norm=3.0, eps=1e-2)
    found, gradients = ([x["memories"]["0"] for x in trees] for trees in (found, gradients))
    assert_same_trail(found, reference, gradients, start["memories"]["0"])


def test_frozen_parameters_have_no_moments():
    params = jax.tree.map(jnp.float32, {"body": draw(0), "cell": {"gate": draw(1)}})
    moments = [x for x in jax.tree.leaves(frozen(rate).init(params)) if x.size > 1]
    assert sum(x.size for x in moments) == 2 * sum(x.size for x in params["cell"]["gate"].values())


def test_freezing_everything_names_what_the_model_has():
    with pytest.raises(ValueError, match=r"frozen\.trained.*body.*large_VD"):
        frozen(rate).init({"body": draw(0)})
