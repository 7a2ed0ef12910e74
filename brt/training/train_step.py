"""The step: a pure function of the train state and a batch.

state, metrics = train_step(state, batch)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from brt.data.streams.batch import Batch, Segment
from brt.models.caches import clear_state, select_rows
from brt.models.contract import check_scalars
from brt.models.layers.losses import scored_positions
from brt.models.mesh_axes import OVER_TIME
from brt.models.model import Model
from brt.training.accumulation import in_microbatches
from brt.training.optimization.plateau import ReduceOnPlateau
from brt.training.optimization.schedules import Schedule
from brt.training.unroll import reread, unroll

LOSSES = ("full", "half")


class TrainState(NamedTuple):
    """Everything that a run carries from step to step.

    step: () int32, updates done. params: nested dictionary of float32 arrays.
    caches: of the model, before the next segment.
    """

    step: jax.Array
    params: Any
    optimizer: Any
    caches: Any


class StepMetrics(NamedTuple):
    """Scalars of one step, on the device.

    nats, weight: sums over the scored tokens; their ratio is the loss.
    correct: weighted number of targets that had the highest logit.
    finite: false if loss, gradient or update is not.
    means: averaged over steps: rates, norms and metrics of the model.
    """

    nats: jax.Array
    weight: jax.Array
    correct: jax.Array
    finite: jax.Array
    means: dict[str, jax.Array]


def bind(graph: nnx.GraphDef, params: Any) -> Model:
    """Returns the model of a graph with these parameters, a nested dictionary of arrays."""
    return nnx.merge(graph, nnx.State(params))


def enter_segment(
    model: Model, segment: Segment, caches: tuple, clear: bool = False
) -> tuple[jax.Array, tuple]:
    """Returns the arguments of `Model.stack`: embedded tokens (B, T, D), and caches.

    Batch elements that start a document get empty caches, which may hold learned values. clear:
    clear the state of all others.
    """
    with jax.named_scope("memory"):
        empty = model.init_caches(len(segment.starts_B))
        caches = clear_state(caches, empty) if clear else caches
        caches = select_rows(segment.starts_B, empty, caches)
    with jax.named_scope("embedding"):
        return model.embed(segment.inputs_BT), caches


def make_loss(
    bind: Callable[[Any], Model],
    clear: bool = False,
    bptt_depth: int | None = None,
    reread_segments: int = 0,
    remat_segments: bool = False,
    scores: str = "full",
    most_scored: int | None = None,
) -> Callable:
    """Returns the loss of one step: nats per scored token, plus `added_nats`.

    Args:
        bind: from parameters to a model; the function `bind`, of a graph.
        clear: clear the state before every segment (Block-Recurrent, appendix G.1).
        bptt_depth, reread_segments: of `unroll` and `reread`.
        remat_segments: recompute each segment in the backward pass, but not its loss.
        scores: one of `LOSSES`.
        most_scored: of `scored_positions`, or None.

    Returns:
        loss(params, caches, batch, key, whole_KBT) -> (loss, (caches, (nats, weight, correct),
        metrics)); whole_KBT: weights of the step of which the batch is a part, or None.
    """

    def loss(params, caches, batch, key, whole_KBT=None):
        targets_KBT = batch.targets_KBT[reread_segments:]
        weights_KBT = trained_weights(batch.weights_KBT[reread_segments:], scores)
        whole_KBT = batch.weights_KBT if whole_KBT is None else whole_KBT
        share = batch.weights_KBT.shape[1] / whole_KBT.shape[1]
        total = share * trained_weights(whole_KBT[reread_segments:], scores).sum()
        if jax.sharding.get_abstract_mesh().shape.get(OVER_TIME, 1) > 1:
            from brt.training.over_time.loss import loss_over_time

            return loss_over_time(bind, params, caches, batch, weights_KBT, total)
        model = bind(params)
        K = batch.inputs_KBT.shape[0]
        keys = None if key is None else _fold_in(key, jnp.arange(K))

        def read(caches, inputs):
            arrays, key = inputs
            x_BTD, caches = enter_segment(model, Segment(*arrays), caches, clear)
            x_BTD, caches, metrics = model.stack(x_BTD, caches, key)
            check_scalars(metrics, type(model).__name__)
            return caches, (x_BTD, metrics)

        read = jax.checkpoint(read) if remat_segments else read
        segments = tuple(batch), keys
        if K == 1:  # no loop to trace, differentiate and compile
            caches, outputs = read(caches, jax.tree.map(lambda x: x[0], segments))
            outputs = jax.tree.map(lambda x: x[None], outputs)
        elif reread_segments:
            caches, outputs = reread(read, caches, segments)
        else:
            caches, outputs = unroll(read, caches, segments, bptt_depth)
        x_KBTD, metrics = outputs
        with jax.named_scope("vocabulary"):
            # Divided first, so that no later pass over the embedding's gradient is needed.
            scored = x_KBTD, targets_KBT, weights_KBT / jnp.maximum(total, 1e-6)
            scored = scored_positions(*scored, most_scored) if most_scored else scored
            loss, correct = model.weighted_losses(*scored)
        metrics = jax.tree.map(jnp.mean, metrics)
        sums = total * loss, weights_KBT.sum(), total * correct
        return loss + metrics.get("added_nats", 0.0), (caches, sums, metrics)

    return loss


_fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))


def trained_weights(weights_BT: jax.Array, scores: str = "full") -> jax.Array:
    """Returns the weights of the loss; "half": the first T // 2 positions count nothing.

    Source: Transformer-XL, section 4.2 (Table 5, after Al-Rfou et al. 2018, who score all).
    """
    T = weights_BT.shape[-1]
    return weights_BT if scores == "full" else weights_BT * (jnp.arange(T) >= T // 2)


def make_train_step(
    bind: Callable[[Any], Model],
    optimizer: optax.GradientTransformation,
    learning_rate: Schedule,
    plateau: ReduceOnPlateau | None = None,
    seed: int = 0,
    dropout: bool = False,
    skip_nonfinite: bool = False,
    accumulation: int = 1,
    **loss_settings: Any,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]:
    """Returns the training step, for `jax.jit`, which should donate the state.

    Args:
        bind: from parameters to a model; the function `bind`, of a graph.
        learning_rate, plateau: of the optimizer, for the report.
        seed: with the step number, decides every dropout mask.
        skip_nonfinite: keep parameters and optimizer when loss, gradient or update is not finite,
            and reset caches that are not.
        accumulation: of `in_microbatches`.
        loss_settings: further arguments of `make_loss`.
    """
    grad = jax.value_and_grad(make_loss(bind, **loss_settings), has_aux=True)
    if accumulation > 1:
        grad = in_microbatches(grad, accumulation)

    def train_step(state: TrainState, batch):
        key = jax.random.fold_in(jax.random.key(seed), state.step) if dropout else None
        (value, (caches, sums, metrics)), grads = grad(state.params, state.caches, batch, key)
        with jax.named_scope("optimizer"):
            updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            grad_norm, update_norm = optax.tree.norm(grads), optax.tree.norm(updates)
        finite = jnp.isfinite(value) & jnp.isfinite(grad_norm) & jnp.isfinite(update_norm)
        if skip_nonfinite:
            params = optax.tree.where(finite, params, state.params)
            optimizer_state = optax.tree.where(finite, optimizer_state, state.optimizer)
            fresh = bind(params).init_caches(batch.inputs_KBT.shape[1])
            caches = optax.tree.where(_all_finite(caches), caches, fresh)
            # A skipped step scores nothing: one bad value would hide the mean of all others.
            sums = tuple(jnp.where(finite, s, 0.0) for s in sums)
        rate = learning_rate(state.step)
        rate = plateau.rate(rate, state.optimizer) if plateau else rate
        means = metrics | dict(learning_rate=rate, grad_norm=grad_norm, update_norm=update_norm)
        with jax.named_scope("optimizer"):
            means |= bind(params).gradient_metrics(grads)
        nats, weight, correct = sums
        report = StepMetrics(nats, weight, correct, finite, means)
        return TrainState(state.step + 1, params, optimizer_state, caches), report

    return train_step


def _all_finite(tree):
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))
