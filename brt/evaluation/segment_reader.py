"""Runs a model over documents by segments, optionally with another state."""

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from brt.data.streams.base import EvaluationPass, with_empty_rows
from brt.data.streams.batch import Segment
from brt.data.token_scores import TokenScores
from brt.evaluation.diagonal import Together, diagonal_step
from brt.experiment import Experiment
from brt.host.progress import Progress
from brt.models.caches import clear_state, select_rows, with_state
from brt.models.mesh_axes import spec
from brt.models.model import Model
from brt.models.reader import Reader
from brt.training.prefetch import Prefetch
from brt.training.sharding import divisible_rows, shardings, to_host
from brt.training.train_step import enter_segment

STATE_ABLATIONS = ("kept", "cleared", "zeroed", "swapped")
"""Replacements of the state before a segment: by the learned initial state (cleared), by zeros
(zeroed), or by the state of the next batch element, which is of another document (swapped); its own
state is updated but not read.
"""


def read_segment(
    model: Model, segment: Segment, caches: tuple
) -> tuple[tuple, Any, dict[str, jax.Array]]:
    """Runs a model on one segment without dropout.

    Returns the caches after the segment; features (B, T, D) for `model.logits`; scalar metrics.
    """
    x_BTD, caches, metrics = model.stack(*enter_segment(model, segment, caches))
    return caches, x_BTD, metrics


@functools.lru_cache(maxsize=4)  # so that it is traced once
def reading_step(
    experiment: Experiment,
    rows: int,
    segment_length: int,
    entropy: bool,
    answers: bool,
    together: int,
) -> tuple[Callable[[Any], tuple], Callable[..., tuple[tuple, dict[str, jax.Array]]]]:
    """Returns `init(params)`, the empty caches, and `step`, which runs K segments.

    step(params, caches, batch, replaced, reading_B, neighbours_B, state) returns the caches after
    the segments and scores by the names of `TokenScores`, (K, B, T); `state` is one of
    `STATE_ABLATIONS`. Arguments are those of `SegmentReader`.
    """

    bind = functools.partial(experiment.bind_evaluated, segment_length=segment_length)

    def init(params):
        return bind(params).init_caches(rows)

    def step(params, caches, batch, replaced, reading_B, neighbours_B, state):
        model = bind(params)
        segment = batch.segment(0)
        changed = _with_state_replaced(state, caches, init(params), replaced, neighbours_B)
        after, x_BTD, _ = read_segment(model, segment, changed)
        if state == "swapped":
            after, _, _ = read_segment(model, segment, caches)
            # Without further documents an element keeps its state for its neighbour.
            after = select_rows(reading_B, after, caches)
        nats_BT, correct_BT = model.token_losses(x_BTD, segment.targets_BT)
        scores = {"nats_BT": nats_BT, "correct_BT": correct_BT}
        if entropy:
            scores["entropy_BT"] = _entropy(model.logits(x_BTD))
        if answers:
            scores["answers_BN"] = cast(Reader, model).answers(x_BTD)
        return after, {name: x[None] for name, x in scores.items()}

    return init, step if together == 1 else diagonal_step(bind)


class SegmentReader:
    """A model compiled for segments of one shape.

    Empty batch elements are added until the mesh divides them.

    Args:
        rows, segment_length: B and T.
        entropy: also compute the entropy of the predictions.
        answers: whether the model, a `Reader`, answers after each segment.
        together: K, segments that run at once (`brt/evaluation/diagonal.py`).

    Attributes:
        has_state: whether the model carries anything besides windows.
    """

    def __init__(
        self,
        experiment: Experiment,
        mesh: jax.sharding.Mesh,
        rows: int,
        segment_length: int,
        entropy: bool = False,
        answers: bool = False,
        together: int = 1,
    ):
        self.mesh = mesh
        self.rows = rows
        self.segment_length = segment_length
        self._together = together
        self._all_rows = divisible_rows(mesh, rows)
        options = entropy, answers, together
        init, step = reading_step(experiment, self._all_rows, segment_length, *options)
        abstract = jax.eval_shape(init, experiment.abstract_params)
        layout = shardings(abstract, mesh)
        self.empty = jax.jit(init, out_shardings=layout)  # from params; added rows included
        self._step = jax.jit(
            step,
            static_argnames="state",
            donate_argnames="caches",
            out_shardings=(layout, NamedSharding(mesh, spec("KBT"))),
        )
        self.has_state = bool(with_state(abstract))

    def read(
        self,
        params: Any,
        stream: EvaluationPass,
        state: str = "kept",
        replaced: Callable[[int], bool] | None = None,
        max_steps: int | None = None,
        label: str | None = None,
    ) -> Iterator[TokenScores]:
        """Yields the scores of one pass over a stream, step by step.

        Args:
            state: one of `STATE_ABLATIONS`.
            replaced: whether the state is replaced before a step; None for all steps.
        """
        caches = self.empty(params)
        padded = with_empty_rows(stream, self._all_rows)
        K, steps = self._together, min(stream.num_steps, max_steps or stream.num_steps)
        neighbours_B = _neighbours(padded.positions(0)[0] >= 0)
        prefetch = Prefetch(Together(padded, K), self.mesh, 0, -(-steps // K))
        progress = Progress(label, steps)
        pending: list = []
        with closing(prefetch), closing(progress):
            for first in range(0, steps, K):
                batch = prefetch.next()
                reading_B = padded.positions(first)[0] >= 0
                arguments = batch, replaced is None or replaced(first), reading_B, neighbours_B
                caches, scores = self._step(params, caches, *arguments, state=state)
                yield from pending  # fetched while the devices run the next segments
                segments = range(first, min(first + K, steps))
                pending = _fetched(padded, slice(stream.rows), segments, batch, scores)
                progress.update(segments.stop)
            yield from pending


def _with_state_replaced(state, caches, empty, replaced, neighbours_B):
    if state == "kept":
        return caches
    others = {
        "cleared": lambda: empty,
        "zeroed": lambda: jax.tree.map(jnp.zeros_like, caches),
        "swapped": lambda: jax.tree.map(lambda x: x[neighbours_B], caches),
    }
    # Windows are not replaced.
    changed = clear_state(caches, others[state]())
    return jax.tree.map(lambda new, old: jnp.where(replaced, new, old), changed, caches)


def _neighbours(reading_B):
    """Returns the next batch element, cyclically, among those with a document; int (B,)."""
    neighbours_B = np.arange(len(reading_B))
    reading = np.flatnonzero(reading_B)
    neighbours_B[reading] = np.roll(reading, -1)
    return neighbours_B


def _entropy(logits_BTV):
    mean_BT = jnp.sum(jax.nn.softmax(logits_BTV, axis=-1) * logits_BTV, axis=-1)
    return jax.nn.logsumexp(logits_BTV, axis=-1) - mean_BT


def _fetched(stream, rows, steps, batch, scores):
    scores = {name: to_host(x_KB) for name, x_KB in scores.items()}
    targets = [to_host(x_KBT) for x_KBT in (batch.targets_KBT, batch.weights_KBT)]
    for k, step in enumerate(steps):
        of_segment = {name: x_KB[k] for name, x_KB in scores.items()}
        parts = *stream.positions(step), *(x_KBT[k] for x_KBT in targets)
        yield TokenScores(*parts, **of_segment).rows(rows)
