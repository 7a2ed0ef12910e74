"""Speed of decoding, one token of every batch element at a time."""

import time
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.benchmarks.timing.random_inputs import random_state
from brt.experiment import Experiment
from brt.models.model import LanguageModel


class Decoding(NamedTuple):
    """Seconds per token (of all batch elements), median."""

    rows: int
    seconds: float
    compile_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.rows / self.seconds


def time_decoding(experiment: Experiment, rows: int, tokens: int, rounds: int = 3) -> Decoding:
    """Times greedy decoding of `tokens` in a row on the first device."""
    device = jax.devices()[0]
    params = jax.device_put(random_state(experiment).params, device)
    graph, state = nnx.split(cast(LanguageModel, experiment.bind(params)))

    def write(state, tokens_B, caches):
        model = nnx.merge(graph, state)

        def token(carry, _):
            tokens_B, caches = carry
            logits_BV, caches = model.decode(tokens_B, caches)
            return (jnp.argmax(logits_BV, axis=-1).astype(jnp.int32), caches), None

        return jax.lax.scan(token, (tokens_B, caches), None, length=tokens)[0]

    def begin(state):
        model = nnx.merge(graph, state)
        return model.begin_decoding(model.init_caches(rows))

    caches = jax.jit(begin)(state)
    tokens_B = jnp.zeros(rows, jnp.int32)
    begun = time.perf_counter()
    compiled = jax.jit(write, donate_argnums=2).lower(state, tokens_B, caches).compile()
    compile_seconds = time.perf_counter() - begun
    times = []
    for number in range(-1, rounds):
        begun = time.perf_counter()
        tokens_B, caches = jax.block_until_ready(compiled(state, tokens_B, caches))
        if number >= 0:
            times.append((time.perf_counter() - begun) / tokens)
    return Decoding(rows, float(np.median(times)), compile_seconds)
