"""Evaluations in the loop of a training run."""

from brt.evaluation.evaluator import Evaluator
from brt.experiment import Experiment
from brt.host.progress import Progress
from brt.training.checkpoints.policy import BEST_STEP, STOPPED_EARLY
from brt.training.optimization.weight_average import evaluated_params
from brt.training.records.goodput import spent
from brt.training.records.run_folder import RunFolder
from brt.training.resume import best_evaluation, recorded_loss
from brt.training.stopping import StopRequest
from brt.training.train_step import TrainState

SHOWN = (
    *("bits_per_token", "cleared_bits_per_token", "bits_per_byte", "recall_accuracy"),
    *("answer_accuracy", "task_accuracy", "f1", "macro_f1", "answer_f1"),
)
"""Scalars that the terminal shows."""


class _Stopped(Exception):
    """The run was asked to stop during an evaluation."""


class LoopEvaluation:
    """Evaluates in the loop of a run.

    Args:
        pending: the evaluation at this step was not finished when the checkpoint was written.

    Attributes: every, steps between evaluations, 0 for none; best evaluation so far; scalars
    `eval/*` of the last one of this process.
    """

    def __init__(
        self,
        evaluator: Evaluator | None,
        experiment: Experiment,
        folder: RunFolder,
        stop: StopRequest,
        step: int,
        pending: bool,
    ):
        self.evaluator = evaluator
        self.every = experiment.trainer.eval_every if evaluator else 0
        self.pending = pending and evaluator is not None
        self.scalars: dict[str, float] = {}
        self._trainer = experiment.trainer
        self._policy = experiment.trainer.policy
        self._max_steps = experiment.evaluation.max_steps
        self._folder = folder
        self._stop = stop
        self._start = step
        self.best, self.end_is_recorded = best_evaluation(folder.path, step, self._trainer)

    def resumed(self, state: TrainState) -> TrainState:
        """Returns the state after a pending evaluation that was recorded before a kill, if any."""
        if self.pending and (loss := recorded_loss(self._folder.path, self._start)) is not None:
            self.pending = False
            return self._with_plateau(state, loss)
        return state

    def run(self, state: TrainState, step: int, progress: Progress) -> TrainState | None:
        """Evaluates; returns the state, with the plateau rule updated, or None if asked to stop."""
        assert self.evaluator is not None
        self.pending = True
        label = f"evaluating step {step:,}, segments" if progress.label else None
        try:
            with spent("evaluation"):
                scalars = self.evaluator.run(
                    evaluated_params(state), label, self._max_steps, self._raise_if_stopped
                )
        except _Stopped:
            return None
        self.scalars = {f"eval/{name}": value for name, value in scalars.items()}
        self._folder.record(step, self.scalars | self._compare(step, scalars))
        self.pending = False
        shown = "  ".join(f"{name} {scalars[name]:.4f}" for name in SHOWN if name in scalars)
        progress.note(f"eval at step {step:,}: {shown}")
        return self._with_plateau(state, scalars["loss"])

    def _raise_if_stopped(self):
        if self._stop.is_set():
            raise _Stopped

    def _with_plateau(self, state, loss):
        if plateau := self._trainer.plateau:
            return state._replace(optimizer=plateau.after_evaluation(state.optimizer, loss))
        return state

    def _compare(self, step, scalars):
        if not self._policy.keep_best:
            return {}
        metric = self._policy.metric_of(scalars, self._trainer.stream == "labelled")
        self.best = self._policy.after(self.best, step, metric, scalars[metric])
        if self.best.step is None:
            return {}
        return {BEST_STEP: self.best.step, f"best/{metric}": self.best.value}

    def stops_early(self, step: int) -> bool:
        return step < self._trainer.steps and self._policy.stops(self.best)

    def record_end(self, step: int, progress: Progress) -> None:
        self._folder.record(step, {STOPPED_EARLY: 1})
        progress.note(f"Stopped early at step {step:,}: {self._policy.reason(self.best)}.")
