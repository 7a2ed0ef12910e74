"""The step: a pure function of the train state and a batch.

state, metrics = train_step(state, batch)
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from brt.data.streams.batch import Batch
from brt.models.caches import clear_state, reset_rows
from brt.models.model import Model, check_scalars
from brt.training.losses import trained_weights
from brt.training.optimization.equal_parameters import norm_of_all
from brt.training.unroll import reread, unroll

SegmentArrays = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""A `Batch` of one segment, without a K axis."""


class TrainState(NamedTuple):
    """Everything a run carries from step to step.

    step: () int32, updates done.
    params: nested dictionary of float32 arrays.
    optimizer: optax state.
    caches: the model's caches in segment form, what each row remembers of its document before the
        first segment of the next step.
    """

    step: jax.Array
    params: Any
    optimizer: Any
    caches: Any


class StepMetrics(NamedTuple):
    """The report of one step, all scalars on the device.

    nats, weight: sums over the scored tokens; their ratio is the loss.
    correct: weighted sum of targets that had the highest logit.
    finite: false if loss, gradient or update is not.
    means: a dictionary of what is averaged over steps (rates, norms, monitors).
    """

    nats: jax.Array
    weight: jax.Array
    correct: jax.Array
    finite: jax.Array
    means: dict[str, jax.Array]


def segment_sums(
    model: Model,
    batch: SegmentArrays,
    caches: tuple,
    key: jax.Array | None = None,
    clear: bool = False,
) -> tuple[tuple, jax.Array, jax.Array, dict[str, jax.Array]]:
    """Reads one segment and scores it.

    Args:
        model: any `Model`.
        batch: inputs (B, T), targets (B, T), weights (B, T), starts (B,), without a K axis.
        caches: segment form.
        key: dropout key or None.
        clear: forget the long-term state before the segment, whatever the document.

    Returns:
        The caches after the segment; nats (B, T); correct (B, T) bool; monitors.
    """
    caches, x_BTD, monitors = read_segment(model, batch, caches, key, clear)
    with jax.named_scope("vocabulary"):
        return caches, *model.token_losses(x_BTD, batch[1]), monitors


def read_segment(
    model: Model,
    batch: SegmentArrays,
    caches: tuple,
    key: jax.Array | None = None,
    clear: bool = False,
) -> tuple[tuple, jax.Array, dict[str, jax.Array]]:
    """Reads one segment; arguments as `segment_sums`.

    Returns:
        The caches after the segment; what `model.logits` and `model.token_losses` take, (B, T, D);
        monitors.
    """
    inputs_BT, _, _, starts_B = batch
    with jax.named_scope("memory"):
        empty = model.init_caches(inputs_BT.shape[0])
        if clear:
            caches = clear_state(caches, empty)
        caches = reset_rows(caches, empty, starts_B)
    with jax.named_scope("embedding"):
        x_BTD = model.embed(inputs_BT)
    x_BTD, caches, monitors = model.stack(x_BTD, caches, key)
    check_scalars(monitors, type(model).__name__)
    return caches, x_BTD, monitors


def make_loss(
    bind: Callable[[Any], Model],
    clear: bool = False,
    bptt_depth: int | None = None,
    reread_segments: int = 0,
    remat_segments: bool = False,
    scores: str = "full",
) -> Callable:
    """Returns the loss of one step: a mean over its scored tokens in nats, and what a model adds.

    Args:
        bind: from parameters to a model.
        clear: clear the state at every segment (Block-Recurrent, appendix G.1).
        bptt_depth: memories between the K segments of the batch that the gradient of a
            segment's loss crosses; None: all of them. See `brt.training.unroll`.
        reread_segments: how many of the batch's segments, all but the last, were read before: they
            are read without a loss, and the caches that come back are those after the first.
        remat_segments: recompute each segment in the backward pass (RMT, section 3).
        scores: one of `brt.training.losses.LOSSES`.

    Returns:
        loss(params, caches, batch, key) -> (loss, (caches, sums and monitors)). No gradient
        crosses the border of a batch: the caches come in as data.
    """

    def loss(params, caches, batch, key):
        model = bind(params)

        def segment_key(index):
            return None if key is None else jax.random.fold_in(key, index)

        def advance(caches, inputs):
            segment_batch, index = inputs
            return read_segment(model, segment_batch, caches, segment_key(index), clear)[0]

        def segment(caches, inputs):
            segment_batch, index = inputs
            caches, nats_BT, correct_BT, monitors = segment_sums(
                model, segment_batch, caches, segment_key(index), clear
            )
            with jax.named_scope("vocabulary"):
                weights_BT = trained_weights(segment_batch.weights_KBT, scores)
                nats, correct = (nats_BT * weights_BT).sum(), (correct_BT * weights_BT).sum()
                sums = nats, weights_BT.sum(), correct
            return caches, (sums, monitors)

        read = jax.checkpoint(segment) if remat_segments else segment
        segments = batch, jnp.arange(batch.inputs_KBT.shape[0])
        if reread_segments:
            advance = jax.checkpoint(advance) if remat_segments else advance
            caches, (sums, monitors) = reread(advance, read, caches, segments)
        else:
            caches, (sums, monitors) = unroll(read, caches, segments, bptt_depth)
        nats, weight, correct = (s.sum() for s in sums)
        means = jax.tree.map(jnp.mean, monitors)
        value = nats / jnp.maximum(weight, 1e-6) + means.get("added_nats", 0.0)
        return value, (caches, (nats, weight, correct), means)

    return loss


def make_train_step(
    bind: Callable[[Any], Model],
    optimizer: optax.GradientTransformation,
    learning_rate: Callable[[TrainState], jax.Array],
    seed: int = 0,
    dropout: bool = False,
    skip_nonfinite: bool = False,
    **of_the_loss: Any,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """Builds the step for `jax.jit`, which should donate the state.

    Args:
        bind: from parameters to a model.
        optimizer: an optax transformation.
        learning_rate: from train state to learning rate, to report it.
        seed: with the step, decides every dropout mask.
        dropout: whether the model drops anything.
        skip_nonfinite: keep parameters and optimizer when loss, gradient or update is not
            finite, and begin the caches anew if they are not.
        of_the_loss: further arguments of `make_loss`.
    """
    loss = make_loss(bind, **of_the_loss)

    def train_step(state: TrainState, batch):
        key = jax.random.fold_in(jax.random.key(seed), state.step) if dropout else None
        (value, (caches, sums, monitors)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.params, state.caches, batch, key
        )
        with jax.named_scope("optimizer"):
            updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            grad_norm, update_norm = norm_of_all(grads), norm_of_all(updates)
        finite = jnp.isfinite(value) & jnp.isfinite(grad_norm) & jnp.isfinite(update_norm)
        if skip_nonfinite:
            keep = functools.partial(jax.tree.map, functools.partial(jnp.where, finite))
            params = keep(params, state.params)
            optimizer_state = keep(optimizer_state, state.optimizer)
            valid = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(caches)]))
            fresh = bind(params).init_caches(batch.inputs_KBT.shape[1])
            caches = jax.tree.map(functools.partial(jnp.where, valid), caches, fresh)
            # A skipped step scores nothing, or one bad value would hide all others' mean.
            sums = tuple(jnp.where(finite, s, 0.0) for s in sums)
        nats, weight, correct = sums
        with jax.named_scope("optimizer"):
            of_gradient = bind(params).gradient_monitors(grads)
        means = {
            "learning_rate": learning_rate(state),
            "grad_norm": grad_norm,
            "update_norm": update_norm,
            **monitors,
            **of_gradient,
        }
        metrics = StepMetrics(nats, weight, correct, finite, means)
        return TrainState(state.step + 1, params, optimizer_state, caches), metrics

    return train_step
