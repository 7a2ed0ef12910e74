"""Compares a device with the CPU, and cuts and decoding with whole segments, in float32."""

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from accelerator.systems import System
from flax import nnx

from brt.benchmarks.timing.random_inputs import random_batch, random_state
from brt.experiment import Experiment
from brt.models.model import LanguageModel
from brt.training.train_step import make_loss

SEGMENTS = 2

LIMITS = {"loss": 1e-5, "gradient": 1e-3, "memory": 1e-3, "cut": 1e-4, "decoding": 1e-4}
"""Limits of float32 rounding, relative to the largest number."""


def compare(system: System, *bindings: str) -> dict[str, Any]:
    """Compares a small system on the first device with the CPU.

    Returns:
        Differences by name (see LIMITS; None where a system cannot be cut), and `agrees`.
    """
    experiment = system.experiment(*bindings)
    with jax.default_matmul_precision("highest"):
        here, there = (
            _losses(experiment, device) for device in (jax.devices()[0], jax.devices("cpu")[0])
        )
        found = {
            "loss": _apart(here["loss"], there["loss"]),
            "gradient": _farthest(here["gradient"], there["gradient"]),
            "memory": _farthest(here["memory"], there["memory"]),
            **_laws(experiment, jax.devices()[0]),
        }
    agrees = all(
        math.isfinite(value) and value <= LIMITS[name]
        for name, value in found.items()
        if value is not None
    )
    return {**found, "agrees": agrees}


def _apart(found, expected, least=0.0):
    """Returns the greatest difference relative to the largest number, at least `least`."""
    found, expected = np.float64(found), np.float64(expected)
    largest = max(np.abs(expected).max(initial=0), least)
    return float(np.abs(found - expected).max(initial=0) / (largest or 1))


def _farthest(found, expected):
    """Returns the greatest difference of two trees; tiny arrays count relative to the largest."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    least = 1e-4 * max((float(np.abs(x).max(initial=0)) for _, x in pairs), default=0.0)
    return max((_apart(*pair, least) for pair in pairs), default=0.0)


def _losses(experiment, device):
    state = jax.device_put(random_state(experiment), device)
    loss = make_loss(experiment.bind, **experiment.trainer.loss_settings)
    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    caches = state.caches
    losses, sums = [], None
    for number in range(SEGMENTS):
        batch = jax.device_put(random_batch(experiment, number), device)
        (value, (caches, *_)), found = gradient(state.params, caches, batch, None)
        losses.append(float(value))
        found = jax.device_get(found)
        sums = found if sums is None else jax.tree.map(np.add, sums, found)
    return {"loss": losses, "gradient": sums, "memory": jax.device_get(caches)}


def _laws(experiment: Experiment, device) -> dict[str, float | None]:
    params = jax.device_put(random_state(experiment).params, device)
    tokens_BT = jax.device_put(random_batch(experiment).segment(0).inputs_BT, device)
    model = cast(LanguageModel, experiment.bind(params))
    graph, state = nnx.split(model)
    period = getattr(model, "period", 0)
    B, T = tokens_BT.shape

    @functools.partial(jax.jit, static_argnums=2)
    def read(state, tokens_BT, parts):
        model = nnx.merge(graph, state)
        caches = model.init_caches(B)
        logits = []
        for part_BT in jnp.split(tokens_BT, parts, axis=1):
            logits_BTV, caches = model(part_BT, caches)
            logits.append(logits_BTV)
        return jnp.concatenate(logits, axis=1)

    @jax.jit
    def decode(state, tokens_TB):
        model = nnx.merge(graph, state)

        def token(caches, tokens_B):
            logits_BV, caches = model.decode(tokens_B, caches)
            return caches, logits_BV

        return jax.lax.scan(token, model.begin_decoding(model.init_caches(B)), tokens_TB)[1]

    whole_BTV = np.asarray(read(state, tokens_BT, 1))
    cuttable = period and T % (2 * period) == 0
    decoded_TBV = np.asarray(decode(state, tokens_BT.T))
    return {
        "cut": _apart(read(state, tokens_BT, 2), whole_BTV) if cuttable else None,
        "decoding": _apart(decoded_TBV.swapaxes(0, 1), whole_BTV),
    }
