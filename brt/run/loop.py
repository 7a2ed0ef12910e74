"""The training loop: restore, step, report, evaluate, save, stop."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from brt.data.streams.checksum import MODULUS
from brt.data.streams.select import training_stream
from brt.evaluation.evaluator import Evaluator
from brt.experiment import Experiment
from brt.host.progress import Progress
from brt.run.loop_evaluation import LoopEvaluation
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.checkpoints.policy import NoSuchMetric
from brt.training.prefetch import Prefetch
from brt.training.profiling import ProfiledSteps, Profiler
from brt.training.records.alerts import Alerts, StallWatch
from brt.training.records.goodput import Goodput, spent
from brt.training.records.metric_writers import USUAL
from brt.training.records.metrics import Interval, peak_bytes, shown, speed
from brt.training.records.run_folder import CHECKPOINTS, RunFolder
from brt.training.resume import check_bindings
from brt.training.sharding import sum_over_processes
from brt.training.stopping import StopRequest


class NonFiniteLoss(ValueError):
    """A loss, gradient or update was not finite; the message names the step and a checkpoint."""


class TrainingRun:
    """One run in one folder, new or resumed from its newest checkpoint.

    Args:
        params: returns the initial parameters of a new run; None for random ones.
        allow_changes: resume although bindings that change results differ.
        profile: steps to trace into the run folder.
        metrics: some of `brt.training.records.metric_writers.KINDS`.
        evaluator: evaluates every `Trainer.eval_every` steps; None for never.
    """

    def __init__(
        self,
        experiment: Experiment,
        mesh: jax.sharding.Mesh,
        workdir: str,
        params: Callable[[], Any] | None = None,
        allow_changes: bool = False,
        profile: ProfiledSteps | None = None,
        metrics: Sequence[str] = USUAL,
        evaluator: Evaluator | None = None,
    ):
        self.experiment, self.mesh = experiment, mesh
        self.trainer = trainer = experiment.trainer
        self.store = experiment.open_store("train")
        self.stream = training_stream(
            *(trainer.stream, self.store, trainer.rows, trainer.segment_length),
            *(trainer.segments_per_step, trainer.seed, trainer.reread_segments, trainer.labelled),
        )
        self.step_function = experiment.jit_step(mesh)
        self.stop = StopRequest()
        self._in_flight: tuple | None = None  # the last step, whose metrics are not fetched yet
        self._alerts = Alerts()
        self._watch = StallWatch()
        self._peak: int | None = None
        self._checksum = 0  # of this process since the start
        self.folder = RunFolder(workdir, jax.process_index() == 0, metrics)
        try:
            self.checkpoints = Checkpoints(self.folder.file(CHECKPOINTS), trainer.policy)
            if not allow_changes:
                check_bindings(self.checkpoints, experiment.bindings, trainer, self.store)
            self._restore(params, evaluator)
            self.profiler = Profiler(profile, self.folder.on_disk, self.start, trainer.steps)
        except BaseException:
            self.folder.close()
            raise

    def _restore(self, params, evaluator):
        record, folder = dict[str, Any](), self.folder.path
        restored = self.checkpoints.restore_latest(self.experiment.abstract_state(self.mesh))
        if restored:
            self.state, record = restored
            self.checkpoints.quarantine(int(self.state.step))
        else:
            self.state = self.experiment.jit_init(self.mesh)(params and params())
        self.resumed = restored is not None
        self.start = self.step = self._reported = int(self.state.step)
        self.interval, self.goodput = Interval(record.get("interval")), Goodput(record, folder)
        self._earlier_checksum = int(record.get("ledger", "0"), 16)
        self.evaluation = LoopEvaluation(
            *(evaluator, self.experiment, self.folder, self.stop, self.start),
            pending=not record.get("evaluated", True),
        )
        self.state = self.evaluation.resumed(self.state)

    @property
    def done(self) -> bool:
        if self.evaluation.pending:
            return False
        ended_early = self.evaluation.stops_early(self.start) and self.evaluation.end_is_recorded
        return ended_early or self.start >= self.trainer.steps

    @property
    def end(self) -> str:
        if not self.evaluation.stops_early(self.start):
            return f"{self.folder.path} is trained to its last step, {self.start:,}."
        reason = self.trainer.policy.reason(self.evaluation.best)
        return f"{self.folder.path} stopped early, at step {self.start:,}: {reason}."

    def run(self) -> dict[str, float]:
        """Trains to the last step or a request to stop; returns the last evaluation."""
        label = "step" if jax.process_index() == 0 else None
        self._progress = Progress(label, self.trainer.steps, self.start)
        moved = self.folder.open_metrics(self.start, self.experiment.bindings)
        if moved:
            self._progress.note(f"No checkpoint to resume: earlier records moved to {moved}.")
        if self.stream.note:
            self._progress.note(self.stream.note)
        if self.start < self.trainer.steps:
            self._progress.note("Compiling the step ...")
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.stop.signals_handled())
            stack.callback(self.folder.close_records)
            steps = self.start, self.trainer.steps
            prefetch = Prefetch(self.stream, self.mesh, *steps, keeps_checksum=True)
            for part in (self._progress, self.profiler, self._watch, prefetch):
                stack.callback(part.close)
            ends = self._resume_evaluation()
            self.goodput.lap()
            while not ends and self.step < self.trainer.steps:
                self._step(prefetch)
                ends = self._pause()
            self.checkpoints.wait()  # while signals are handled: a second one may not kill it
        self._progress.note(self.goodput.sentence())
        return self.evaluation.scalars

    def _step(self, prefetch):
        """Starts the next step; fetches the metrics of the one before while it runs."""
        step, batch = self.step + 1, prefetch.next()
        self.profiler.before(step, self.state)
        with jax.profiler.StepTraceAnnotation("train", step_num=step), self.goodput.step():
            self.state, metrics = self.step_function(self.state, batch)
        self._watch.step_done()
        if trace := self.profiler.after(step, self.step_function, self.state, batch):
            self.folder.publish_traces()
            self._progress.note(f"Trace of the steps up to {step:,}: {trace}")
        if self._is_due(step, self.trainer.log_every):
            self._peak = peak_bytes(self.step_function, self.state, batch)
        self._fetch_metrics()
        self.step = step
        self._in_flight = step, metrics, prefetch.checksum

    def _pause(self) -> bool:
        """Evaluates and saves if due; returns whether the loop ends."""
        stops, ends_early = self.stop.is_set(), False
        evaluates = self._is_due(self.step, self.evaluation.every)
        saves = stops or self._is_due(self.step, self.trainer.policy.every)
        if not (evaluates or saves):
            return False
        self._fetch_metrics()  # only finite parameters are saved and evaluated
        self._watch.pause()
        self.evaluation.pending = evaluates
        if evaluates and not stops:
            stops = not self._evaluate()
            ends_early = self.evaluation.stops_early(self.step)
            if ends_early:
                self.evaluation.record_end(self.step, self._progress)
        if saves or stops or ends_early or self.evaluation.best.step == self.step:
            with spent("saves"):
                self._save()
        if stops:
            self._progress.note(f"Asked to stop: saved step {self.step}, run again to resume.")
        return stops or ends_early

    def _is_due(self, step, every):
        return every > 0 and (step % every == 0 or step == self.trainer.steps)

    def _fetch_metrics(self):
        """Waits for the step in flight, if any, and reports it."""
        if self._in_flight is None:
            return
        step, metrics, self._checksum = self._in_flight
        self._in_flight = None
        metrics = jax.device_get(metrics)
        if not metrics.finite and not self.trainer.skip_nonfinite:
            self._refuse_step(step)
        self.interval.add(metrics)
        if self._is_due(step, self.trainer.log_every):
            self._report(step)
        else:
            self._progress.update(step)

    def _refuse_step(self, step):
        self.folder.record(step, {"alert/not_finite": 1.0})
        self.checkpoints.wait()
        safe = self.checkpoints.steps()
        most = self.trainer.most_scored
        too_many = f" Or more than Trainer.most_scored = {most} positions of a document are scored."
        raise NonFiniteLoss(
            f"Step {step}: loss, gradient or update is not finite. The last good checkpoint is "
            f"{f'step {safe[-1]}' if safe else 'none yet'} in {self.checkpoints.folder}. Lower the "
            "learning rate, or bind Trainer.skip_nonfinite = True to skip such updates."
            f"{too_many if most else ''}"
        )

    def _report(self, step):
        seconds, waited = self.goodput.lap()
        steps, self._reported = step - self._reported, step
        flops = self.experiment.model.flops_per_token()
        scalars = self.interval.report() | {
            **speed(self.trainer.tokens_per_step, seconds / steps, flops, self._peak),
            **self.goodput.scalars(),
            "perf/data_wait": waited / seconds,
            "data/ledger": self._whole_checksum(),
        }
        self.folder.record(step, scalars | self._alerts.look(step, scalars))
        self._progress.update(step, shown(scalars))

    def _whole_checksum(self):
        return f"{(self._earlier_checksum + sum_over_processes(self._checksum)) % MODULUS:016x}"

    def _resume_evaluation(self) -> bool:
        """Makes an evaluation that the stop interrupted; returns whether the run ends."""
        if self.evaluation.pending and not self._evaluate():
            self._progress.note("Asked to stop: the evaluation is not finished, run again.")
            return True
        # A patience that was bound since the stop may end the run, too.
        ends_early = self.evaluation.stops_early(self.start)
        if ends_early and not self.evaluation.end_is_recorded:
            self.evaluation.record_end(self.start, self._progress)
        return ends_early

    def _evaluate(self) -> bool:
        """Returns False if asked to stop."""
        try:
            state = self.evaluation.run(self.state, self.step, self._progress)
        except NoSuchMetric:
            self._save()  # the evaluation is made again after a restart
            self.checkpoints.wait()
            raise
        self.state = self.state if state is None else state
        return state is not None

    def _save(self):
        self.folder.sync()
        record: dict = {"goodput": self.goodput.totals()} | {
            "interval": self.interval.sums,
            "bindings": self.experiment.bindings,
            "ledger": self._whole_checksum(),
            **{name: self.store.manifest[name] for name in ("vocabulary", "content")},
            "evaluated": not self.evaluation.pending,
        }
        self.checkpoints.save(self.state, record, self.evaluation.best.step)

    def close(self) -> None:
        try:
            self.checkpoints.close()
        finally:
            self.folder.close()
