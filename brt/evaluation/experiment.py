"""The part of an experiment that evaluation works with; `brt.experiment.Experiment` has it."""

from typing import Any, Protocol

from brt.evaluation.settings import Evaluation
from brt.models.model import Model
from brt.training.settings import Trainer
from brt.training.train_step import TrainState


class EvaluatedExperiment(Protocol):
    """A model as it is evaluated, and the settings and stores it is evaluated with.

    Attributes:
        trainer, evaluation: settings.
        model: as it is trained, with shapes instead of arrays.
        abstract_params: its parameters, a nested dictionary of shapes.
        bindings: every binding that was read to build it, as text.
    """

    trainer: Trainer
    evaluation: Evaluation
    model: Model
    abstract_params: Any
    bindings: dict[str, str]

    def evaluated_model(self, segment_length: int | None = None) -> Model:
        """The abstract model, for segments of so many tokens; None takes the evaluation's."""

    def bind_evaluated(self, params: Any, segment_length: int | None = None) -> Model:
        """`evaluated_model` with these parameters."""

    def bind(self, params: Any) -> Model:
        """The model as it is trained, with these parameters."""

    def init_params(self, seed: int | None = None) -> Any:
        """Fresh parameters."""

    def abstract_state(self, mesh: Any = None) -> TrainState:
        """Shapes of the train state, with shardings if there is a mesh."""

    def open_store(self, split: str) -> Any:
        """The token store of a split, or a mixture of several."""
