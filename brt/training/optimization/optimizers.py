"""Optimizers, as factories: from a learning rate (a function of the step) to optax."""

from collections.abc import Callable

import jax
import optax
import optax.contrib

from brt.checks import CountFrom0, Name, NotNegative, Positive, Share, configurable
from brt.training.optimization.schedules import Schedule


@configurable(denylist=["learning_rate"])
def adafactor(
    learning_rate: Schedule,
    momentum: Share | None = 0.9,
    decay_rate: Positive = 0.8,
    clip_update: Positive | None = 1.0,
    min_factored: CountFrom0 = 128,
) -> optax.GradientTransformation:
    """Adafactor as the paper used it: steps in units of each parameter's own scale.

    Args:
        momentum: of the update, without bias correction; None for no momentum.
        decay_rate: second-moment decay 1 - t^(-decay_rate), t from 1.
        clip_update: greatest root mean square of an update before scaling; None for no limit.
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


@configurable(denylist=["learning_rate"])
def adamw(
    learning_rate: Schedule,
    b1: Share = 0.9,
    b2: Share = 0.999,
    eps: Positive = 1e-8,
    weight_decay: NotNegative = 0.0,
    clip_norm: Positive | None = None,
    clip_value: Positive | None = None,
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay.

    Args:
        b1, b2, eps: decays of the two moments; added to the root of the second.
        clip_norm: greatest norm of the whole gradient; None for no limit.
        clip_value: greatest absolute value of an entry of the gradient; None for no limit.

    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    clips = []
    if clip_value is not None:
        clips.append(optax.clip(clip_value))
    if clip_norm is not None:
        clips.append(optax.clip_by_global_norm(clip_norm))
    adam = optax.adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay)
    return optax.chain(*clips, adam)


@configurable(denylist=["learning_rate"])
def muon(
    learning_rate: Schedule,
    momentum: Share = 0.95,
    weight_decay: NotNegative = 0.0,
    rms: Positive = 0.2,
    b1: Share = 0.9,
    b2: Share = 0.95,
) -> optax.GradientTransformation:
    """Muon for the weights of layers, Adam for all other parameters.

    Args:
        learning_rate: one of Adam's size, because of `rms`.
        rms: root mean square of an update of a weight, in units of the learning rate.
        b1, b2: decay of Adam's first and second moment.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025,
    arXiv:2502.16982.
    """

    def scaled(updates, params=None):
        # An orthogonal matrix of R rows and C columns has root mean square max(R, C) ** -0.5.
        return jax.tree.map(lambda update: rms * max(update.shape) ** 0.5 * update, updates)

    def matrices(updates):
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), updates)

    weights = optax.chain(
        optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=matrices),
        optax.stateless(scaled),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )
    others = optax.adam(learning_rate, b1, b2)
    return optax.partition({"weights": weights, "others": others}, _kinds)


def _kinds(params):
    indices = set("VSRHN")  # vocabulary, states, relative distances, heads, positions

    def kind(path, parameter):
        axes = str(path[-1].key).rpartition("_")[2]
        return "weights" if parameter.ndim == 2 and not indices & set(axes) else "others"

    return jax.tree_util.tree_map_with_path(kind, params)


@configurable(denylist=["learning_rate"])
def frozen(
    learning_rate: Schedule,
    optimizer: Callable[..., optax.GradientTransformation] = adamw,
    trained: tuple[Name, ...] = ("memories", "cell"),
) -> optax.GradientTransformation:
    """Trains the memories alone: all other parameters stay as they are and have no moments.

    Args:
        optimizer: of the trained parameters, by reference.
        trained: attributes of modules; all parameters below them are trained.

    Raises a `ValueError` if the model has no such parameters.
    """

    def kinds(params):
        def kind(path, _):
            return "trained" if {str(key.key) for key in path} & {*trained} else "frozen"

        found = jax.tree_util.tree_map_with_path(kind, params)
        if "trained" not in jax.tree.leaves(found):
            paths = jax.tree_util.tree_flatten_with_path(params)[0]
            names = sorted({str(key.key) for path, _ in paths for key in path})
            raise ValueError(
                f"frozen.trained = {trained}: the model has no parameters below such attributes. "
                f"It has {', '.join(name for name in names if not name.isdigit())}."
            )
        return found

    of_trained = optimizer(learning_rate)
    return optax.partition({"trained": of_trained, "frozen": optax.set_to_zero()}, kinds)
