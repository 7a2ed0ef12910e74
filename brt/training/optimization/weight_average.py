"""An average of the parameters for evaluation and generation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from brt.checks import Factor, configurable
from brt.training.train_step import TrainState


class AverageState(NamedTuple):
    """The optimizer state of a run that averages its weights.

    average: optax's state, which begins at zero.
    decay: () float32, for the correction of that bias.
    """

    optimizer: Any
    average: optax.EmaState
    decay: jax.Array


@configurable
class WeightAverage:
    """Averages the parameters after all updates, with exponentially decaying weights.

    Training continues with the last parameters. The average is in the optimizer's state.

    Args:
        decay: weight of an update against the one after it.

    Source: Polyak and Juditsky 1992; Transformer-XL, section 4.1.
    """

    def __init__(self, decay: Factor = 0.999):
        self.decay = np.float32(decay)
        # Round d only once, or the weights 1 - d do not sum to 1 - d^t.
        self._ema = optax.ema(self.decay)

    def wrap(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        def init(params):
            return AverageState(
                optimizer.init(params), self._ema.init(params), jnp.asarray(self.decay)
            )

        def update(updates, state, params=None):
            updates, inner = optimizer.update(updates, state.optimizer, params)
            moved = optax.apply_updates(params, updates)
            _, average = self._ema.update(moved, state.average)
            return updates, state._replace(optimizer=inner, average=average)

        return optax.GradientTransformation(init, update)


def evaluated_params(state: TrainState) -> Any:
    """Returns the parameters that evaluation reads: their average, if there is one."""
    if not isinstance(state.optimizer, AverageState):
        return state.params
    return _average(state.optimizer.average, state.optimizer.decay, state.params)


@jax.jit
def _average(sums, decay, params):
    # The sum of the weights, 1 - d^t, without the cancellation.
    total = -jnp.expm1(jnp.maximum(sums.count, 1) * jnp.log1p(decay - 1))
    return jax.tree.map(
        lambda x, last: jnp.where(sums.count > 0, x / total, last), sums.ema, params
    )
