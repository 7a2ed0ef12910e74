"""Lowers the learning rate when the validation loss has stopped falling."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from brt.checks import CountFrom0, Factor, NotNegative, configurable
from brt.training.optimization.schedules import Schedule


class PlateauState(NamedTuple):
    """The optimizer state of a run with a plateau rule.

    plateau: best loss, evaluations since, and the scale of the learning rate.
    step: () int32, updates done.
    """

    optimizer: Any
    plateau: Any
    step: jax.Array


@configurable
class ReduceOnPlateau:
    """Lowers the learning rate when the evaluation loss stops falling.

    It is multiplied by `factor` after `patience` + 1 evaluations in a row that did not lower the
    best loss by a share of 1e-4.

    Args:
        floor: lower bound of the rate, unless the schedule is lower.

    Source: Recurrent Memory Transformer, appendix A.1; PyTorch's rule of the same name.
    """

    def __init__(self, factor: Factor = 0.5, patience: CountFrom0 = 10, floor: NotNegative = 1e-6):
        self.floor = floor
        self._rule = optax.contrib.reduce_on_plateau(factor, patience + 1, rtol=1e-4)

    def wrap(
        self, optimizer: optax.GradientTransformation, schedule: Schedule
    ) -> optax.GradientTransformation:
        """Returns `optimizer`, whose updates are proportional to `schedule`, with this rule."""

        def init(params):
            rule = self._rule.init(jnp.float32(0))
            return PlateauState(optimizer.init(params), rule, jnp.int32(0))

        def update(updates, state, params=None):
            updates, inner = optimizer.update(updates, state.optimizer, params)
            scale = self._scale(schedule(state.step), state)
            updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
            return updates, PlateauState(inner, state.plateau, state.step + 1)

        return optax.GradientTransformation(init, update)

    def _scale(self, rate, state):
        lowest = self.floor / jnp.maximum(rate, 1e-30)
        return jnp.minimum(jnp.maximum(state.plateau.scale, lowest), 1.0)

    def rate(self, rate: jax.Array, state: PlateauState) -> jax.Array:
        return rate * self._scale(rate, state)

    @functools.partial(jax.jit, static_argnums=0)
    def _counted(self, plateau, loss):
        return self._rule.update({}, plateau, value=loss)[1]

    def after_evaluation(self, state: PlateauState, loss: float) -> PlateauState:
        plateau = self._counted(state.plateau, np.float32(loss))
        where = jax.tree.map(lambda x: x.sharding, state.plateau)
        return state._replace(plateau=jax.device_put(plateau, where))
