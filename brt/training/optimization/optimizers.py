"""Optimizers, as factories: from a learning rate (a function of the step) to optax."""

from collections.abc import Callable

import gin
import optax
from jax.typing import ArrayLike

from brt.checks import (
    CountFrom0,
    NotNegative,
    Positive,
    Share,
    check_not_negative,
    check_positive,
    check_share,
    check_whole,
)
from brt.training.optimization.equal_parameters import equal_parameters_together

Schedule = Callable[[ArrayLike], ArrayLike]
"""From a step, counted from 0, to the learning rate."""


@gin.configurable(denylist=["learning_rate"])
def adafactor(
    learning_rate: Schedule,
    momentum: Share | None = 0.9,
    decay_rate: NotNegative = 0.8,
    clip_update: Positive | None = 1.0,
    min_factored: CountFrom0 = 128,
) -> optax.GradientTransformation:
    """Adafactor as the paper used it: steps in units of each parameter's own scale.

    Args:
        learning_rate: from step to learning rate.
        momentum: of the update, without bias correction; 0 to below 1, or None for none.
        decay_rate: second-moment decay 1 - t^(-decay_rate), t from 1; above 0.
        clip_update: greatest root mean square of an update before scaling; above 0, or None.
        min_factored: matrices with both sides at least this long are factored.

    Raises:
        ValueError: a setting outside its range.

    Source: Shazeer and Stern 2018, arXiv:1804.04235; Block-Recurrent, appendices B and C.
    """
    if momentum is not None:
        check_share("adafactor.momentum", momentum)
    check_positive("adafactor.decay_rate", decay_rate)
    if clip_update is not None:
        check_positive("adafactor.clip_update", clip_update)
    check_whole("adafactor.min_factored", min_factored)
    return equal_parameters_together(
        optax.adafactor(
            learning_rate,
            min_dim_size_to_factor=min_factored,
            decay_rate=decay_rate,
            clipping_threshold=clip_update,
            momentum=momentum,
            multiply_by_parameter_scale=True,
        )
    )


@gin.configurable(denylist=["learning_rate"])
def adamw(
    learning_rate: Schedule,
    b1: Share = 0.9,
    b2: Share = 0.999,
    eps: Positive = 1e-8,
    weight_decay: NotNegative = 0.0,
    clip_norm: Positive | None = None,
    clip_value: Positive | None = None,
) -> optax.GradientTransformation:
    """Adam, with decoupled weight decay if `weight_decay` is not 0.

    Args:
        learning_rate: from step to learning rate.
        b1, b2: decay of the first and the second moment, 0 to below 1.
        eps: added to the root of the second moment, above 0.
        weight_decay: share of a parameter taken off it in a step, times the learning rate; 0 or
            above.
        clip_norm: greatest norm of the whole gradient, above 0, or None.
        clip_value: greatest absolute value of any entry of the gradient, above 0, or None.

    Raises:
        ValueError: a setting outside its range: with it the loss would rise, or nothing move.

    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    check_share("adamw.b1", b1)
    check_share("adamw.b2", b2)
    check_positive("adamw.eps", eps)
    check_not_negative("adamw.weight_decay", weight_decay)
    clips = []
    if clip_value is not None:
        check_positive("adamw.clip_value", clip_value)
        clips.append(optax.clip(clip_value))
    if clip_norm is not None:
        check_positive("adamw.clip_norm", clip_norm)
        clips.append(optax.clip_by_global_norm(clip_norm))
    adam = optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay)
    return optax.chain(*clips, equal_parameters_together(adam))
