"""Optimizers, as factories: from a learning rate (a function of the step) to optax."""

import gin
import optax


@gin.configurable(denylist=["learning_rate"])
def adafactor(
    learning_rate,
    momentum=0.9,
    decay_rate=0.8,
    clip_update=1.0,
    min_factored=128,
):
    """Adafactor as the paper used it: steps in units of each parameter's own scale.

    Args:
        learning_rate: from step to learning rate.
        momentum: of the update, without bias correction.
        decay_rate: second-moment decay 1 - t^(-decay_rate), t from 1.
        clip_update: greatest root mean square of an update before scaling.
        min_factored: matrices with both sides at least this long are factored.

    Source: Shazeer and Stern 2018, arXiv:1804.04235; Block-Recurrent, appendices B and C.
    """
    return optax.adafactor(
        learning_rate,
        min_dim_size_to_factor=min_factored,
        decay_rate=decay_rate,
        clipping_threshold=clip_update,
        momentum=momentum,
        multiply_by_parameter_scale=True,
    )


@gin.configurable(denylist=["learning_rate"])
def adamw(
    learning_rate,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    clip_norm=None,
    clip_value=None,
):
    """Adam, with decoupled weight decay if `weight_decay` is not 0.

    Args:
        learning_rate: from step to learning rate.
        clip_norm: greatest norm of the whole gradient, or None.
        clip_value: greatest absolute value of any entry of the gradient, or None.

    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    clips = []
    if clip_value is not None:
        clips.append(optax.clip(clip_value))
    if clip_norm is not None:
        clips.append(optax.clip_by_global_norm(clip_norm))
    return optax.chain(*clips, optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay))
