"""Reads every document of a split once, from its start, with caches of its own.

The devices return each token's loss; sums are kept in float64 on the host, so the result
does not depend on how documents were batched.
"""

import math

import gin
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from brt.data.mixture import MixedStore
from brt.data.streams import evaluation_pass
from brt.models.caches import clear_state
from brt.models.shape_letters import spec
from brt.progress import Progress
from brt.training.prefetch import Prefetch
from brt.training.sharding import check_divisible, shardings
from brt.training.train_step import segment_sums


@gin.configurable
class Evaluation:
    """What is evaluated, in the loop of a training run and by `brt.evaluate`.

    Args:
        split: of the corpus.
        tokens_per_step: rows times segment length; None takes the trainer's.
        segment_length: None takes the trainer's.
        max_steps: read only so many segments of each row, in the loop of a training run.
        cleared: evaluate a second time with the state cleared at every segment, if the
            model has a state.
        score: a further score, such as `@RecallScore()`, or None.
        meliad_scoring: leave out what google-research/meliad does not score: the first token of
            each segment, and id 0, which is padding there and the unknown token of its PG19
            vocabularies. For comparison with its figures; `scored_tokens` tells how many are
            left, and there are no bits per byte.
    """

    def __init__(
        self,
        split: str = "validation",
        tokens_per_step: int | None = None,
        segment_length: int | None = None,
        max_steps: int | None = None,
        cleared: bool = True,
        score=None,
        meliad_scoring: bool = False,
    ):
        self.split, self.max_steps, self.cleared, self.score = split, max_steps, cleared, score
        self.meliad_scoring = meliad_scoring
        self.tokens_per_step, self.segment_length = tokens_per_step, segment_length


class TokenSums:
    """The score every evaluation has: sums over scored tokens."""

    def add(self, sums, store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT):
        scored_BT = weights_BT > 0
        weights_BT = weights_BT.astype(np.float64)
        # Masked first: what a model says about padding need not even be finite.
        nats_BT = np.where(scored_BT, nats_BT, 0.0).astype(np.float64)
        for name, value in (
            ("nats", (nats_BT * weights_BT).sum()),
            ("weight", weights_BT.sum()),
            ("correct", (correct_BT * weights_BT).sum()),
            ("tokens", float(scored_BT.sum())),
        ):
            sums[name] = sums.get(name, 0.0) + float(value)

    def scalars(self, sums, store, whole):
        loss = sums["nats"] / max(sums["weight"], 1e-6)
        scalars = {
            "loss": loss,
            "bits_per_token": loss / math.log(2),
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": sums["correct"] / max(sums["weight"], 1e-6),
            "scored_tokens": sums["tokens"],
        }
        if whole and not store.has_weights:
            scalars["bits_per_byte"] = sums["nats"] / math.log(2) / store.manifest["bytes"]
        return scalars


class StoreSums(TokenSums):
    """`TokenSums` of each store of a mixture, as `loss/NAME` and so on."""

    def add(self, sums, store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT):
        stores_B = store.stores_of(documents_B)
        for number, (name, part) in enumerate(zip(store.names, store.stores)):
            rows = stores_B == number
            tokens = nats_BT[rows], correct_BT[rows], weights_BT[rows]
            own = sums.setdefault(name, {})
            super().add(own, part, documents_B[rows], offsets_B[rows], *tokens)

    def scalars(self, sums, store, whole):
        scalars = {}
        for name, part in zip(store.names, store.stores):
            if sums[name]["tokens"]:
                found = super().scalars(sums[name], part, whole)
                scalars |= {f"{key}/{name}": value for key, value in found.items()}
        return scalars


class Evaluator:
    """Evaluates parameters on one split, as often as asked; of a mixture, each corpus as well.

    Args:
        experiment: the `Experiment`, whose evaluation settings say what to do.
        store: the split's token store.
        mesh: the device mesh.

    Raises:
        ValueError: rows that do not divide over the data axis, no whole number of rows, or a
            score that the stream cannot give.
    """

    def __init__(self, experiment, store, mesh):
        trainer, bind = experiment.trainer, experiment.bind
        self.evaluation = evaluation = trainer.evaluation
        self.store, self.mesh = store, mesh
        self.segment_length = evaluation.segment_length or trainer.segment_length
        tokens = evaluation.tokens_per_step or trainer.tokens_per_step
        rows, rest = divmod(tokens, self.segment_length)
        if rest or not rows:
            raise ValueError(
                f"Evaluation.tokens_per_step = {tokens} is not a whole number of segments of "
                f"{self.segment_length} tokens."
            )
        check_divisible(mesh, rows, {})
        if evaluation.score and trainer.stream != "documents":
            raise ValueError(
                f"Evaluation.score looks at whole documents, and Trainer.stream = "
                f"{trainer.stream!r} marks none: bind one of them otherwise."
            )
        self.stream = evaluation_pass(trainer.stream, store, rows, self.segment_length)
        self.scores = [TokenSums()] + ([evaluation.score] if evaluation.score else [])
        if isinstance(store, MixedStore):
            self.scores.append(StoreSums())

        def init(params):
            return bind(params).init_caches(rows)

        def step(params, caches, batch, clear):
            one = jax.tree.map(lambda x: x[0], batch)
            caches, nats_BT, correct_BT, _ = segment_sums(bind(params), one, caches, clear=clear)
            return caches, nats_BT, correct_BT

        abstract = jax.eval_shape(init, experiment.abstract_params)
        place, by_row = shardings(abstract, mesh), NamedSharding(mesh, spec("BT"))
        self._init = jax.jit(init, out_shardings=place)
        self._step = jax.jit(
            step,
            static_argnames="clear",
            donate_argnames="caches",
            out_shardings=(place, by_row, by_row),
        )
        # Clearing leaves a cache without a long-term state as it is.
        cleared = clear_state(abstract, abstract)
        self.has_state = any(x is not y for x, y in zip(cleared, abstract, strict=True))

    def run(self, params, progress_label=None, max_steps=None) -> dict[str, float]:
        """Scalars of the split; those with the state cleared have the prefix `cleared_`.

        Args:
            params: parameters on the mesh.
            progress_label: shows progress under this name, or None for silence.
            max_steps: stop after so many steps; scores that need whole documents are left out.
        """
        scalars = self._pass(params, False, progress_label, max_steps)
        if self.evaluation.cleared and self.has_state:
            label = progress_label and f"{progress_label}, state cleared"
            cleared = self._pass(params, True, label, max_steps)
            scalars |= {
                f"cleared_{name}": value
                for name, value in cleared.items()
                if not name.startswith("scored_tokens")
            }
        return scalars

    def _pass(self, params, clear, progress_label, max_steps):
        steps = min(self.stream.num_steps, max_steps or self.stream.num_steps)
        prefetch = Prefetch(self.stream, self.mesh, 0, steps)
        progress = Progress(progress_label or "", steps, quiet=not progress_label)
        sums, pending, caches = {}, None, self._init(params)
        try:
            for step in range(steps):
                batch = prefetch.next()
                caches, *tokens = self._step(params, caches, batch, clear=clear)
                if pending:
                    self._add(sums, *pending)
                pending = step, tokens
                progress.update(step + 1)
            self._add(sums, *pending)
        finally:
            prefetch.close()
            progress.close()
        scalars = {}
        whole = steps == self.stream.num_steps and not self.evaluation.meliad_scoring
        for score in self.scores:
            scalars |= score.scalars(sums, self.store, whole)
        return scalars

    def _add(self, sums, step, tokens):
        nats_BT, correct_BT = (_to_host(x) for x in tokens)
        documents_B, offsets_B = self.stream.places(step)
        batch = self.stream.batch(step)
        weights_BT = batch.weights_KBT[0]
        if self.evaluation.meliad_scoring:
            not_first_T = np.arange(self.segment_length) > 0
            weights_BT = weights_BT * not_first_T * (batch.targets_KBT[0] != 0)
        for score in self.scores:
            score.add(sums, self.store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT)


def _to_host(x):
    if jax.process_count() > 1:
        return multihost_utils.process_allgather(x, tiled=True)
    return np.asarray(x)
