"""The training loop: restore, step, report, evaluate, save, stop."""

import os
import signal
import struct
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from brt import compilation_cache, config
from brt.data.streams.ids import check_store
from brt.data.streams.ledger import MODULUS
from brt.data.streams.select import training_stream
from brt.processes import ends_asked_for
from brt.progress import Progress
from brt.training.checkpoints.checkpoint import CheckpointError, Checkpoints
from brt.training.checkpoints.policy import BEST_STEP, STOPPED_EARLY, Best, stopped_early
from brt.training.experiment import EvaluationStopped, TrainedExperiment
from brt.training.optimization.weight_average import evaluated_params
from brt.training.prefetch import Prefetch
from brt.training.profiling import ProfiledSteps, Profiler
from brt.training.records.alerts import Alerts, StallWatch
from brt.training.records.metric_writers import USUAL
from brt.training.records.metrics import Interval, device_peak, peak_bytes
from brt.training.records.run_folder import RunFolder, read_metrics
from brt.training.settings import FREE_TO_CHANGE
from brt.training.sharding import sum_over_processes

SHOWN = (
    "bits_per_token",
    "cleared_bits_per_token",
    "bits_per_byte",
    "recall_accuracy",
    "task_accuracy",
    "f1",
    "macro_f1",
    "answer_f1",
)
"""Figures of an evaluation in the loop that the terminal shows."""


class NonFiniteLoss(ArithmeticError):
    """A loss, gradient or update was not finite; the message says where and what is safe."""


class ChangedConfig(ValueError):
    """The run folder belongs to another configuration; the message lists what differs."""


def _decides(difference, free):
    """Tells if the binding decides what is computed, whatever its scope (`books/Corpus.store`)."""
    name = difference.partition(":")[0].rpartition("/")[2]
    return not f"{name}:".startswith(free)


class TrainingRun:
    """One run in one folder: begins it, or goes on where it stopped.

    Args:
        experiment: what to train, and the evaluator of its loop (`brt.experiment.Experiment`).
        mesh: the device mesh.
        workdir: the run folder.
        params: parameters to begin with, or None for fresh ones.
        allow_changes: resume although bindings that decide what is computed have changed.
        profile: steps to be traced into the run folder, or None.
        metrics: where numbers go, some of `brt.training.records.metric_writers.KINDS`.

    Raises:
        ChangedConfig: the folder's checkpoints belong to another configuration.
        brt.training.records.run_lock.FolderInUse: another process trains in the folder.
        ValueError: the store that is evaluated on has ids beyond its vocabulary; or the run does
            not take the steps to be traced.
    """

    def __init__(
        self,
        experiment: TrainedExperiment,
        mesh: jax.sharding.Mesh,
        workdir: str,
        params: Any = None,
        allow_changes: bool = False,
        profile: ProfiledSteps | None = None,
        metrics: Sequence[str] = USUAL,
    ):
        trainer = experiment.trainer
        self.experiment = experiment
        self.mesh = mesh
        self.trainer = trainer
        self.store = experiment.open_store("train")
        self.stream = training_stream(
            trainer.stream,
            self.store,
            rows=trainer.rows,
            segment_length=trainer.segment_length,
            segments_per_step=trainer.segments_per_step,
            seed=trainer.seed,
            reread_segments=trainer.reread_segments,
            labelled=trainer.labelled,
        )
        self.evaluator = experiment.evaluator(mesh)
        if self.evaluator:
            check_store(self.evaluator.store)  # now, not after hours; of training, each batch is
        self.folder = RunFolder(workdir, jax.process_index() == 0, metrics)
        try:
            self._restore(params, allow_changes, profile)
        except BaseException:
            self.folder.close()
            raise

    def _restore(self, params, allow_changes, profile):
        """Takes the state of the newest checkpoint, or a fresh one."""
        experiment, mesh, trainer = self.experiment, self.mesh, self.trainer
        self.checkpoints = Checkpoints(self.folder.file("checkpoints"), trainer.checkpoints)
        self._refuse_changes(allow_changes)
        abstract = experiment.abstract_state(mesh)
        restored = self.checkpoints.restore_latest(abstract)
        if restored:
            self.state, record = restored
            self.checkpoints.put_aside(int(self.state.step))
            for name in ("bindings", "interval"):
                if name not in record:
                    raise CheckpointError(
                        f"Checkpoint {int(self.state.step)} in {self.checkpoints.folder} has no "
                        f"{name!r} in its record: it is none of a training run. Use a new "
                        "--workdir, or move it elsewhere."
                    )
            self.interval = Interval(record["interval"])
            self._read_before = int(record.get("ledger", "0"), 16)
            # A run that was stopped during an evaluation owes it.
            self._owes_evaluation = not record.get("evaluated", True)
        else:
            self.state = experiment.jit_init(mesh)(params)
            self.interval = Interval()
            self._read_before = 0
            self._owes_evaluation = False
        self._read = 0
        self.start = int(self.state.step)
        self.resumed = restored is not None
        self.profiler = Profiler(profile, self.folder.on_disk, self.start, trainer.steps)
        self.step_function = experiment.jit_step(mesh)
        self.stopped_by: int | None = None
        self._asked = 0  # how often all processes agreed on whether to stop
        self._stops = False
        if self._owes_evaluation and self.evaluator:
            self._take_recorded_evaluation()
        self.best, self._end_is_recorded = self._recorded_best()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: neither a step nor the evaluation of the last one."""
        if self._owes_evaluation and self.evaluator:
            return False
        early = self._stops_early(self.start) and self._end_is_recorded
        return early or self.start >= self.trainer.steps

    @property
    def end(self) -> str:
        """A sentence on how a run that is done has ended."""
        if not self._stops_early(self.start):
            return f"{self.folder.path} is trained to its last step, {self.start:,}."
        return f"{self.folder.path} stopped early, at step {self.start:,}: {self._why()}."

    def _stops_early(self, step):
        return step < self.trainer.steps and self.trainer.checkpoints.stops(self.best)

    def _refuse_changes(self, allow_changes):
        steps = self.checkpoints.steps()
        if not steps:
            return
        for step in reversed(steps):
            try:
                old = self.checkpoints.record(step)["bindings"]
                break
            except Exception:  # damaged; restoring says so
                continue
        else:
            return
        new, free = self.experiment.bindings, FREE_TO_CHANGE
        if self.trainer.plateau:  # evaluations decide the learning rate
            free = tuple(n for n in free if not n.startswith(("Trainer.eval", "Evaluation.")))
        changed = [line for line in config.differences(old, new) if _decides(line, free)]
        if changed and not allow_changes:
            raise ChangedConfig(
                f"{self.folder.path} holds a run with other bindings:\n  "
                + "\n  ".join(changed)
                + "\nUse a new --workdir, restore the bindings, or pass --allow_changes to go on."
            )

    def request_stop(self, number: int = signal.SIGTERM, _: Any = None) -> None:
        """Asks the loop to save and return after the step in progress; Ctrl-C again aborts.

        An evaluation in progress is left, and made when the run goes on.
        """
        if number == self.stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopped_by = number
        if number != signal.SIGTERM and jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def run(self) -> dict[str, float]:
        """Trains to the last step, or until asked to stop.

        Returns:
            The scalars of the last evaluation of this call, if any.

        Raises:
            NonFiniteLoss: with the step and the checkpoint that is safe.
            ValueError: a batch has ids beyond the vocabulary of its store.
        """
        trainer = self.trainer
        aside = self.folder.open_metrics(self.start, self.experiment.bindings)
        progress = Progress("step", trainer.steps, self.start, quiet=jax.process_index() > 0)
        if aside:
            progress.note(f"No checkpoint to go on from: begun anew; earlier records in {aside}.")
        if self.stream.note:
            progress.note(self.stream.note)
        # With several processes SIGTERM is JAX's, which has all of them stop at the same step.
        handled = {signal.SIGINT, *ends_asked_for()}
        if jax.process_count() > 1:
            handled.remove(signal.SIGTERM)
        previous = [signal.signal(number, self.request_stop) for number in handled]
        if self.start < trainer.steps:
            progress.note("Compiling the step ...")
        prefetch = Prefetch(self.stream, self.mesh, self.start, trainer.steps, keeps_ledger=True)
        self._timing_since = time.perf_counter()
        self._timed = 0
        self._alerts = Alerts()
        watch = StallWatch()
        self._peak: int | None = None
        last_evaluation: dict[str, float] = {}
        pending = None  # a step whose metrics are not fetched yet
        steps = range(self.start + 1, trainer.steps + 1)
        try:
            if self._owes_evaluation and self.evaluator:
                last_evaluation, stops = self._evaluate(self.start, progress)
                if stops:
                    progress.note("Asked to stop: the evaluation is not finished, run again.")
                    steps = range(0)
            if self._stops_early(self.start):  # by that evaluation, or by a patience bound since
                if not self._end_is_recorded:
                    self._record_end(self.start, progress)
                steps = range(0)
            for step in steps:
                batch = prefetch.next()
                self.profiler.before(step, self.state)
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    self.state, metrics = self.step_function(self.state, batch)
                if step == self.start + 1:
                    compilation_cache.publish()
                watch.beat()
                if traced := self.profiler.after(step, self.step_function, self.state, batch):
                    self.folder.publish_traces()
                    progress.note(f"Trace of the steps up to {step:,}: {traced}")
                if step % trainer.log_every == 0 or step == trainer.steps:
                    self._peak = peak_bytes(self.step_function, self.state, batch)
                if pending:
                    self._consume(*pending, prefetch, progress)
                pending = step, metrics, prefetch.ledger
                evaluates = self.evaluator is not None and (
                    step % trainer.eval_every == 0 or step == trainer.steps
                )
                stops, ends = self._should_stop(), False
                saves = stops or step % trainer.checkpoints.every == 0 or step == trainer.steps
                if evaluates or saves:
                    # What is saved or evaluated must be known to be finite.
                    self._consume(*pending, prefetch, progress)
                    pending = None
                    paused = time.perf_counter()
                    watch.pause()
                    self._owes_evaluation = bool(evaluates and stops)
                    if evaluates and not stops:
                        last_evaluation, stops = self._evaluate(step, progress)
                        if ends := self._stops_early(step):
                            self._record_end(step, progress)
                    if saves or stops or ends or self.best.step == step:
                        self._save()
                    self._timing_since += time.perf_counter() - paused
                if stops:
                    progress.note(f"Asked to stop: saved step {step}, run again to go on.")
                if stops or ends:
                    break
        finally:
            prefetch.close()
            watch.close()
            self.profiler.close()
            progress.close()
            try:
                self.folder.close_records()
            finally:
                for number, handler in zip(handled, previous, strict=True):
                    signal.signal(number, handler)
        self.checkpoints.wait()
        return last_evaluation

    def _should_stop(self) -> bool:
        """Tells if the run was asked to stop; all processes ask together and are told the same."""
        if jax.process_count() == 1:
            return self.stopped_by is not None
        if not self._stops:
            self._asked += 1
            self._stops = multihost_utils.reached_preemption_sync_point(self._asked)
        return self._stops

    def _consume(self, step, metrics, read, prefetch, progress):
        """Takes in the metrics of a step, which later steps are already running behind."""
        self._read = read
        metrics = jax.device_get(metrics)
        if not metrics.finite and not self.trainer.skip_nonfinite:
            self.folder.record(step, {"alert/not_finite": 1.0})
            self.checkpoints.wait()
            safe = self.checkpoints.steps()
            raise NonFiniteLoss(
                f"Step {step}: loss, gradient or update is not finite. Nothing was overwritten; "
                f"the last good checkpoint is {f'step {safe[-1]}' if safe else 'none yet'} in "
                f"{self.checkpoints.folder}. Lower the learning rate, or bind "
                "Trainer.skip_nonfinite = True to skip such updates."
            )
        self.interval.add(metrics)
        self._timed += 1
        if step % self.trainer.log_every == 0 or step == self.trainer.steps:
            self._report(step, prefetch, progress)
        else:
            progress.update(step)

    def _report(self, step, prefetch, progress):
        now = time.perf_counter()
        seconds = (now - self._timing_since) / self._timed
        scalars = self.interval.report()
        tokens_per_second = self.trainer.tokens_per_step / seconds
        scalars |= {
            "perf/tokens_per_second": tokens_per_second,
            "perf/step_seconds": seconds,
            "perf/data_wait": prefetch.waited / (now - self._timing_since),
            "data/ledger": self._ledger(),
        }
        if self._peak is not None:
            scalars["perf/peak_bytes"] = self._peak
        if peak := device_peak():
            flops = 3 * self.experiment.model.flops_per_token() * tokens_per_second
            scalars["perf/mfu"] = flops / (peak * jax.device_count())
        self.folder.record(step, scalars | self._alerts.look(step, scalars))
        progress.update(
            step,
            f"loss {scalars['train/loss']:.4f}  bits/token {scalars['train/bits_per_token']:.4f}  "
            f"lr {scalars['train/learning_rate']:.2e}  {tokens_per_second:,.0f} tokens/s",
        )
        self._timing_since = now
        self._timed = 0
        prefetch.waited = 0.0

    def _ledger(self):
        """Returns the ledger of all hosts' batches up to the last step consumed: 16 hex digits."""
        return f"{(self._read_before + sum_over_processes(self._read)) % MODULUS:016x}"

    def _evaluate(self, step, progress):
        """Returns the scalars of an evaluation, and whether it was left unfinished instead."""
        self._owes_evaluation = True
        try:
            found = self.evaluator.run(
                evaluated_params(self.state),
                None if progress.quiet else f"evaluating step {step:,}, segments",
                max_steps=self.experiment.evaluation.max_steps,
                stops=self._should_stop,
            )
        except EvaluationStopped:
            return {}, True
        scalars = {f"eval/{name}": value for name, value in found.items()}
        self.folder.record(step, scalars | self._compare(step, found))
        self._owes_evaluation = False
        self._lower_rate(found["loss"])
        progress.note(
            f"eval at step {step:,}: "
            + "  ".join(f"{name} {found[name]:.4f}" for name in SHOWN if name in found)
        )
        return scalars, False

    def _compare(self, step, found):
        """Compares an evaluation with the best one; returns what its record says of that one."""
        policy = self.trainer.checkpoints
        if not policy.keep_best:
            return {}
        try:
            metric = policy.metric_of(found, self.trainer.stream == "labelled")
        except ValueError:
            self._save()  # no step is lost, and the evaluation is made again
            self.checkpoints.wait()
            raise
        self.best = policy.after(self.best, step, metric, found[metric])
        if self.best.step is None:
            return {}
        return {BEST_STEP: self.best.step, f"best/{metric}": self.best.value}

    def _recorded_best(self):
        """Returns the best evaluation by the records, and whether they say that the run ended."""
        if not self.trainer.checkpoints.keep_best:
            return Best(), False
        labelled = self.trainer.stream == "labelled"
        records = [r for r in read_metrics(self.folder.path) if r["step"] <= self.start]
        best = self.trainer.checkpoints.best_of(records, labelled)
        known = best.step is not None, best.step or 0, best.since, stopped_early(records)
        packed = np.frombuffer(struct.pack("<4qd", *known, best.value or 0.0), np.uint32)
        # Only the first process need see the folder's records.
        packed = np.asarray(multihost_utils.broadcast_one_to_all(packed), np.uint32)
        is_known, step, since, is_recorded, value = struct.unpack("<4qd", packed.tobytes())
        found = Best(step, value, since) if is_known else Best(since=since)
        return found, bool(is_recorded)

    def _record_end(self, step, progress):
        self.folder.record(step, {STOPPED_EARLY: 1})
        progress.note(f"Stopped early at step {step:,}: {self._why()}.")

    def _why(self):
        policy = self.trainer.checkpoints
        best = "none was finite" if self.best.step is None else f"best at step {self.best.step:,}"
        return (
            f"the last {self.best.since} evaluations were not better than the best one ({best}; "
            f"CheckpointPolicy.patience = {policy.patience})"
        )

    def _lower_rate(self, loss):
        """Tells the plateau rule, if there is one, of an evaluation's loss."""
        if plateau := self.trainer.plateau:
            slowed = plateau.after_evaluation(self.state.optimizer, loss)
            self.state = self.state._replace(optimizer=slowed)

    def _take_recorded_evaluation(self):
        """Takes an evaluation that this checkpoint lacks from the records, if it is there."""
        found = [
            record["eval/loss"]
            for record in read_metrics(self.folder.path)
            if record["step"] == self.start and "eval/loss" in record
        ]
        # Only the first process need see the folder's records.
        known = np.array([bool(found), found[-1] if found else 0.0], np.float32)
        is_recorded, loss = multihost_utils.broadcast_one_to_all(known)
        if is_recorded:
            self._owes_evaluation = False
            self._lower_rate(float(loss))

    def _save(self):
        self.folder.sync()
        record = {
            "interval": self.interval.sums,
            "bindings": self.experiment.bindings,
            "ledger": self._ledger(),
            "vocabulary": self.store.manifest["vocabulary"],
            "evaluated": not self._owes_evaluation,
        }
        self.checkpoints.save(self.state, record, self.best.step)

    def close(self) -> None:
        """Waits until everything is on disk, and gives the folder free for other processes."""
        try:
            self.checkpoints.close()
        finally:
            self.folder.close()
