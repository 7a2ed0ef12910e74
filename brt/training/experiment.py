"""The part of an experiment that training works with; `brt.experiment.Experiment` has it."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch
from brt.models.model import Model
from brt.training.settings import Trainer
from brt.training.train_step import TrainState


class EvaluationStopped(Exception):
    """An evaluation was left before its end because the run was asked to stop."""


class LoopEvaluator(Protocol):
    """Evaluates parameters in the loop of a run; `brt.evaluation.evaluator.Evaluator` does.

    Attributes:
        store: what is read.
    """

    store: TokenStore | MixedStore

    def run(
        self,
        params: Any,
        progress_label: str | None = None,
        max_steps: int | None = None,
        stops: Callable[[], bool] | None = None,
    ) -> dict[str, float]:
        """Returns scalars by name, `loss` among them, in nats.

        stops: is asked after each step, and ends the evaluation with `EvaluationStopped`.
        """


class LoopEvaluation(Protocol):
    """Settings of the evaluation in the loop; `brt.evaluation.settings.Evaluation` has them.

    Attributes:
        max_steps: segments of each row that are read; None for all.
    """

    max_steps: int | None


class TrainedExperiment(Protocol):
    """A model, an optimizer and settings, built as far as shapes.

    Attributes:
        trainer: settings of the run.
        model: with shapes instead of arrays.
        bindings: every binding that was read to build it, as text.
    """

    trainer: Trainer
    model: Model
    bindings: dict[str, str]

    @property
    def evaluation(self) -> LoopEvaluation:
        """Settings of the evaluation in the loop."""

    def evaluator(self, mesh: jax.sharding.Mesh) -> LoopEvaluator | None:
        """Returns the evaluator of the loop; None if `Trainer.eval_every` is 0."""

    def open_store(self, split: str) -> TokenStore | MixedStore:
        """Opens the token store of a split."""

    def check_mesh(self, mesh: jax.sharding.Mesh) -> None:
        """Refuses a mesh the model or the batch cannot be divided over."""

    def abstract_state(self, mesh: jax.sharding.Mesh | None = None) -> TrainState:
        """Returns shapes of the train state, with shardings if there is a mesh."""

    def abstract_batch(self) -> Batch:
        """Returns shapes of a batch."""

    def jit_init(self, mesh: jax.sharding.Mesh) -> Callable[..., TrainState]:
        """Returns the function, compiled, that makes the train state of step 0."""

    def jit_step(self, mesh: jax.sharding.Mesh) -> Any:
        """Returns the training step, compiled by `jax.jit`."""
