"""Accuracy on samples, with the model's own predictions as its inputs, and of whole answers.

Source: Bulatov et al. 2022, arXiv:2207.06881, section 4 and Table 1, and the published code.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from brt.checks import Count, CountFrom0, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.streams.samples import read_samples, sample_length
from brt.data.token_scores import Score, Store, Sums, TokenScores
from brt.evaluation.scores import add_share
from brt.experiment import Experiment
from brt.host.progress import Progress
from brt.models.mesh_axes import spec
from brt.models.model import LanguageModel
from brt.training.sharding import divisible_rows, put_rows, to_host


@configurable
@dataclass(eq=False)
class FreeRunning(Score):
    """Metrics of samples beyond `accuracy`, which is teacher-forced.

    free_running_accuracy: share of correct scored tokens when each prediction is the next input.
    free_running_exact: share of samples whose scored tokens are all correct that way.
    answer_accuracy: the same of the last `answer` tokens.
    task_accuracy: free-running if at least one segment is scored, else teacher-forced.
    accuracy_end: teacher-forced, of the last `end` tokens.
    ..._written: of tokens that are not `blank`, as the published code counts equations.

    Args:
        answer, end: numbers of last scored tokens; None for no such metric.
        blank: id that pads the scored part, if any.
    """

    streams = ("samples",)

    answer: Count | None = None
    end: Count | None = None
    blank: CountFrom0 | None = None

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        segment = segment.rows(segment.documents_B >= 0)
        if not len(segment.documents_B):
            return
        first, scored = scored_part(store)
        positions_T = segment.offsets_B[0] + np.arange(segment.correct_BT.shape[1])
        tokens_BT = read_samples(store, segment.documents_B)[0][:, positions_T]
        for name, length in (("accuracy", scored), ("accuracy_end", min(self.end or 0, scored))):
            stop = first + scored
            part_T = (positions_T >= stop - length) & (positions_T < stop)
            self._count(sums, name, segment.correct_BT[:, part_T], tokens_BT[:, part_T])

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        # Every evaluation reports `accuracy` already.
        return {name: share for name, share in _shares(sums).items() if name != "accuracy"}

    def run(
        self,
        decoder: "SampleDecoder",
        params: Any,
        accuracy: float,
        max_samples: int | None = None,
        label: str | None = None,
        after_batch: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """Returns the free-running metrics.

        Args:
            decoder: generates the samples' scored part.
            after_batch: called after each batch of samples; its exceptions end the evaluation.
        """
        sums: Sums = {}
        for targets_BS, predicted_BS in decoder.read(params, max_samples, label):
            correct_BS = targets_BS == predicted_BS
            self._count(sums, "free_running_accuracy", correct_BS, targets_BS)
            add_share(sums, "free_running_exact", correct_BS.all(axis=1))
            if self.answer:
                add_share(sums, "answer_accuracy", correct_BS[:, -self.answer :].all(axis=1))
            if after_batch:
                after_batch()
        figures = _shares(sums)
        free = decoder.scored >= decoder.segment_length
        figures["task_accuracy"] = figures["free_running_accuracy"] if free else accuracy
        return figures | {"free_running_samples": sums["free_running_exact"][1]}

    def _count(self, sums, name, correct, tokens):
        add_share(sums, name, correct)
        if self.blank is not None:
            add_share(sums, f"{name}_written", correct[tokens != self.blank])


def _shares(sums):
    pairs = ((name, pair) for name, pair in sums.items() if isinstance(pair, tuple))
    return {name: right / of for name, (right, of) in pairs if of}


class SampleDecoder:
    """A compiled model that reads the unscored beginning of samples and writes the rest.

    Args:
        rows: B; raised to the next number that the mesh divides.
        segment_length: T in tokens, at whose ends memory moves, also while the model writes.
    """

    def __init__(
        self,
        experiment: Experiment,
        mesh: jax.sharding.Mesh,
        store: TokenStore,
        rows: int,
        segment_length: int,
    ):
        self.mesh = mesh
        self.store = store
        self.rows = divisible_rows(mesh, rows)
        self.segment_length = segment_length
        self.first, self.scored = scored_part(store)

        def decode(params, tokens_BL):
            model = cast(LanguageModel, experiment.bind_evaluated(params, segment_length))
            return write(model, tokens_BL, self.first, self.scored, segment_length)

        self._decode = jax.jit(decode, out_shardings=NamedSharding(mesh, spec("BT")))

    def read(
        self, params: Any, max_samples: int | None = None, label: str | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields targets and predictions, int32 (samples, S) each."""
        count = min(self.store.num_documents, max_samples or self.store.num_documents)
        with closing(Progress(label, count)) as progress:
            for start in range(0, count, self.rows):
                documents_B = np.arange(start, start + self.rows)
                # Elements without a sample repeat the last one.
                tokens_BL, _ = read_samples(self.store, np.minimum(documents_B, count - 1))

                def part(first, count, tokens_BL=tokens_BL):
                    return tokens_BL[first : first + count]

                on_devices = put_rows(self.mesh, tokens_BL.shape, np.int32, "BT", part)
                predicted_BS = to_host(self._decode(params, on_devices))
                here = min(self.rows, count - start)
                yield tokens_BL[:here, self.first : self.first + self.scored], predicted_BS[:here]
                progress.update(start + here)


def write(
    model: LanguageModel, tokens_BL: jax.Array, first: int, scored: int, segment_length: int
) -> jax.Array:
    """Reads samples up to their scored part, and writes that token by token.

    Args:
        first, scored: position of the first scored token, 1 or more, and their number S.

    Returns:
        int32 (B, S), the most likely tokens.
    """
    rows = tokens_BL.shape[0]
    caches = model.init_caches(rows)
    P = model.period
    done = 0
    for length in (segment_length, P):
        count = (first - 1 - done) // length
        if count:
            part = tokens_BL[:, done : done + count * length].reshape(rows, count, length)

            def read(caches, tokens_BT):
                return model(tokens_BT, caches)[1], None

            caches, _ = jax.lax.scan(read, caches, jnp.moveaxis(part, 1, 0))
            done += count * length
    if left := first - 1 - done:
        part_BP = jnp.zeros((rows, P), jnp.int32).at[:, :left].set(tokens_BL[:, done : first - 1])
        _, caches = model.read_part(part_BP, caches, jnp.full(rows, left, jnp.int32))
    else:
        caches = model.begin_decoding(caches)

    return write_greedily(model, tokens_BL[:, first - 1], caches, scored)


def write_greedily(
    model: LanguageModel, token_B: jax.Array, caches: tuple, length: int
) -> jax.Array:
    """Returns the most likely tokens after `token_B`, int32 (B, length)."""

    def step(carry, _):
        token_B, caches = carry
        logits_BV, caches = model.decode(token_B, caches)
        token_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        return (token_B, caches), token_B

    _, written_LB = jax.lax.scan(step, (token_B, caches), length=length)
    return written_LB.T


@functools.lru_cache(maxsize=4)
def scored_part(store: TokenStore) -> tuple[int, int]:
    """Returns position of the first scored token of every sample, and number of scored tokens.

    The first token of a sample is never scored.
    """
    if not store.has_weights:
        return 1, sample_length(store)
    assert store.all_weights is not None
    scored_DL = store.all_weights[:].reshape(-1, 1 + sample_length(store))[:, 1:] > 0
    positions = np.flatnonzero(scored_DL[0]) + 1
    same = (scored_DL == scored_DL[0]).all()
    if not same or not len(positions) or len(positions) != np.ptp(positions) + 1:
        raise ValueError(
            f"The samples of {store.folder} are not scored on one and the same stretch of tokens, "
            "and free-running accuracy has nothing to begin with: bind Evaluation.score = None."
        )
    return int(positions[0]), len(positions)
