"""The training loop: restore, step, report, evaluate, save, stop."""

import signal
import time

import gin
import jax
from jax.experimental import multihost_utils

from brt import config
from brt.checks import check_choice
from brt.data.corpus import Corpus
from brt.data.streams.ids import check_store
from brt.data.streams.ledger import MODULUS
from brt.data.streams.samples import check_cut
from brt.data.streams.select import check_stream, training_stream
from brt.evaluation.evaluator import Evaluation, Evaluator
from brt.models.block_recurrent import BlockRecurrentTransformer
from brt.progress import Progress
from brt.training.checkpoint import CheckpointPolicy, Checkpoints
from brt.training.losses import LOSSES
from brt.training.metrics import Interval, device_peak, peak_bytes
from brt.training.prefetch import Prefetch
from brt.training.run_folder import RunFolder
from brt.training.sharding import sum_over_processes
from brt.training.unroll import check_depth
from brt.training.weight_average import evaluated_params

STOPS = signal.SIGTERM, signal.SIGINT
"""Signals that save and stop."""

FREE_TO_CHANGE = (
    *("Trainer.steps:", "Trainer.log_every:", "Trainer.eval_every:", "Trainer.mesh:"),
    *("Trainer.evaluation:", "Trainer.checkpoints:"),
    *("Evaluation.", "RecallScore.", "FreeRunning.", "CheckpointPolicy.", "Corpus.store:"),
)
"""Bindings that may differ when a run is resumed; all others decide what is computed."""


class NonFiniteLoss(ArithmeticError):
    """A loss, gradient or update was not finite; the message says where and what is safe."""


class ChangedConfig(ValueError):
    """The run folder belongs to another configuration; the message lists what differs."""


@gin.configurable
class Trainer:
    """Settings of a run.

    Args:
        corpus: what is read, a `Corpus` or a `Mixture` of several.
        optimizer, schedule: by reference, `@adafactor` and `@rsqrt`.
        model: a `Model`, by reference.
        steps: updates in all.
        segment_length: N in tokens, a multiple of the model's window.
        tokens_per_step: rows x segments_per_step x segment_length, over all devices.
        segments_per_step: consecutive segments of a document that gradients may cross.
        bptt_depth: memories that the gradient of a segment's loss crosses, fewer than
            segments_per_step; None for all.
        remat_segments: recompute each segment in the backward pass, so that a step needs the
            memory of one segment's activations instead of all.
        loss: positions of a segment that are trained on: "full", all; "half", the most recent
            half (Transformer-XL, Table 5). Evaluation scores all.
        seed: of parameters, dropout and the order of documents.
        stream: "documents", each read by one row from start to end; "contiguous", the corpus cut
            into rows; "shuffled", the same with its documents in a new order every epoch; or
            "samples" of one length, which the segments of a step make up. Evaluation follows.
        mesh: (data, model) devices; -1 takes what the other leaves.
        plateau: lowers the rate when the evaluation loss stops falling, `@ReduceOnPlateau()`.
        average: evaluates an average of the weights, `@WeightAverage()`; not with a plateau.
        clear_state: train with the state cleared at every segment.
        skip_nonfinite: skip updates that are not finite instead of stopping.
        log_every, eval_every: in steps; eval_every 0 evaluates never.
        evaluation: what in-loop evaluation and `brt.evaluate` do.
        checkpoints: when checkpoints are written and kept.
    """

    def __init__(
        self,
        corpus: Corpus = gin.REQUIRED,
        optimizer=gin.REQUIRED,
        schedule=gin.REQUIRED,
        steps: int = gin.REQUIRED,
        segment_length: int = gin.REQUIRED,
        tokens_per_step: int = gin.REQUIRED,
        segments_per_step: int = 1,
        bptt_depth: int | None = None,
        remat_segments: bool = False,
        loss: str = "full",
        seed: int = 0,
        stream: str = "documents",
        mesh: tuple[int, int] = (-1, 1),
        plateau=None,
        average=None,
        clear_state: bool = False,
        skip_nonfinite: bool = False,
        log_every: int = 100,
        eval_every: int = 1000,
        evaluation=None,
        checkpoints=None,
        model=BlockRecurrentTransformer,
    ):
        per_row = segment_length * segments_per_step
        if min(segment_length, segments_per_step) < 1 or tokens_per_step % per_row:
            raise ValueError(
                f"Trainer.tokens_per_step = {tokens_per_step} is not a whole number of rows of "
                f"{segments_per_step} x {segment_length} tokens (Trainer.segments_per_step x "
                "Trainer.segment_length)."
            )
        if min(steps, tokens_per_step, log_every) < 1:
            raise ValueError("Trainer.steps, tokens_per_step and log_every must be at least 1.")
        check_depth(bptt_depth, segments_per_step)
        check_choice("Trainer.loss", loss, LOSSES)
        self.loss = loss
        check_stream(stream)
        source = getattr(corpus, "source", None)
        if stream == "samples" and (length := getattr(source, "input_length", None)):
            check_cut(length, segment_length, segments_per_step)
        self.bptt_depth, self.remat_segments = bptt_depth, remat_segments
        self.stream = stream
        if plateau and not eval_every:
            raise ValueError(
                "Trainer.plateau looks at evaluations: bind Trainer.eval_every to 1 or more."
            )
        if plateau and average:
            raise ValueError(
                "Trainer.plateau and Trainer.average are both bound: the rule would look at the "
                "average, which improves long after the weights have stopped. Bind one of them."
            )
        self.plateau, self.average = plateau, average
        self.corpus, self.optimizer, self.schedule, self.steps = corpus, optimizer, schedule, steps
        self.segment_length, self.tokens_per_step = segment_length, tokens_per_step
        self.segments_per_step, self.rows = segments_per_step, tokens_per_step // per_row
        self.seed, self.mesh, self.clear_state = seed, mesh, clear_state
        self.skip_nonfinite, self.log_every, self.eval_every = skip_nonfinite, log_every, eval_every
        self.model, self.evaluation = model, evaluation or Evaluation()
        self.checkpoints = checkpoints or CheckpointPolicy()

    @property
    def loss_settings(self) -> dict:
        """Arguments of `brt.training.train_step.make_loss`, besides the model."""
        return {
            "clear": self.clear_state,
            "bptt_depth": self.bptt_depth,
            "remat_segments": self.remat_segments,
            "scores": self.loss,
        }


def _decides(difference, free):
    """Whether the binding decides what is computed, whatever its scope (`books/Corpus.store`)."""
    name = difference.partition(":")[0].rpartition("/")[2]
    return not f"{name}:".startswith(free)


class TrainingRun:
    """One run in one folder: begins it, or goes on where it stopped.

    Args:
        experiment: what to train.
        mesh: the device mesh.
        workdir: the run folder.
        params: parameters to begin with, or None for fresh ones.
        allow_changes: resume although bindings that decide what is computed have changed.

    Raises:
        ChangedConfig: the folder's checkpoints belong to another configuration.
        ValueError: the store that is evaluated on has ids beyond its vocabulary.
    """

    def __init__(self, experiment, mesh, workdir, params=None, allow_changes=False):
        self.experiment, self.mesh, self.trainer = experiment, mesh, experiment.trainer
        trainer = self.trainer
        self.store = experiment.open_store("train")
        self.stream = training_stream(
            trainer.stream,
            self.store,
            trainer.rows,
            trainer.segment_length,
            trainer.segments_per_step,
            trainer.seed,
        )
        self.evaluator = None
        if trainer.eval_every:
            held_out = experiment.open_store(trainer.evaluation.split)
            check_store(held_out)  # now, and not after hours; of the training store each batch is
            self.evaluator = Evaluator(experiment, held_out, mesh)
        self.folder = RunFolder(workdir, writes=jax.process_index() == 0)
        self.checkpoints = Checkpoints(self.folder.file("checkpoints"), trainer.checkpoints)
        self._refuse_changes(allow_changes)
        abstract = experiment.abstract_state(mesh)
        restored = self.checkpoints.restore_latest(abstract)
        if restored:
            self.state, record = restored
            self.checkpoints.put_aside(int(self.state.step))
            self.interval = Interval(record["interval"])
            self._read_before = int(record.get("ledger", "0"), 16)
        else:
            self.state, self.interval = experiment.jit_init(mesh)(params), Interval()
            self._read_before = 0
        self._read = 0
        self.start = int(self.state.step)
        self.resumed = restored is not None
        self.step_function = experiment.jit_step(mesh)
        self.stopped_by = None

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

    def request_stop(self, number=signal.SIGTERM, _=None):
        """Asks the loop to save and return after the step in progress; Ctrl-C again aborts."""
        if number == self.stopped_by == signal.SIGINT:
            raise KeyboardInterrupt
        self.stopped_by = number

    def run(self) -> dict[str, float]:
        """Trains to the last step, or until asked to stop.

        Returns:
            The scalars of the last evaluation of this call, if any.

        Raises:
            NonFiniteLoss: with the step and the checkpoint that is safe.
            ValueError: a batch has ids beyond the vocabulary of its store.
        """
        trainer = self.trainer
        aside = self.folder.open_metrics(self.start)
        progress = Progress("step", trainer.steps, self.start, quiet=jax.process_index() > 0)
        if aside:
            progress.note(f"No checkpoint to go on from: begun anew; earlier records in {aside}.")
        previous = [signal.signal(number, self.request_stop) for number in STOPS]
        if self.start < trainer.steps:
            progress.note("Compiling the step ...")
        prefetch = Prefetch(self.stream, self.mesh, self.start, trainer.steps, keeps_ledger=True)
        self._clock, self._timed, last_evaluation, pending = time.perf_counter(), 0, {}, None
        self._peak = None
        try:
            for step in range(self.start + 1, trainer.steps + 1):
                batch = prefetch.next()
                self.state, metrics = self.step_function(self.state, batch)
                if step % trainer.log_every == 0 or step == trainer.steps:
                    self._peak = peak_bytes(self.step_function, self.state, batch)
                if pending:
                    self._consume(*pending, prefetch, progress)
                pending = step, metrics, prefetch.ledger
                evaluates = self.evaluator and (
                    step % trainer.eval_every == 0 or step == trainer.steps
                )
                stops = self._should_stop(step)
                saves = stops or step % trainer.checkpoints.every == 0 or step == trainer.steps
                if evaluates or saves:
                    # What is saved or evaluated must be known to be finite.
                    self._consume(*pending, prefetch, progress)
                    pending, paused = None, time.perf_counter()
                    if evaluates:
                        last_evaluation = self._evaluate(step, progress)
                    if saves:
                        self._save()
                    self._clock += time.perf_counter() - paused
                if stops:
                    progress.note(f"Asked to stop: saved step {step}, run again to go on.")
                    break
        finally:
            prefetch.close()
            progress.close()
            self.folder.close()
            for number, handler in zip(STOPS, previous, strict=True):
                signal.signal(number, handler)
        self.checkpoints.wait()
        return last_evaluation

    def _should_stop(self, step):
        if jax.process_count() > 1:  # all processes must stop at the same step
            return multihost_utils.reached_preemption_sync_point(step)
        return self.stopped_by is not None

    def _consume(self, step, metrics, read, prefetch, progress):
        """Takes in the metrics of a step, which later steps are already running behind."""
        self._read = read
        metrics = jax.device_get(metrics)
        if not metrics.finite and not self.trainer.skip_nonfinite:
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
        seconds = (now - self._clock) / self._timed
        scalars = self.interval.report()
        tokens_per_second = self.trainer.tokens_per_step / seconds
        scalars |= {
            "perf/tokens_per_second": tokens_per_second,
            "perf/step_seconds": seconds,
            "perf/data_wait": prefetch.waited / (now - self._clock),
            "data/ledger": self._ledger(),
        }
        if self._peak is not None:
            scalars["perf/peak_bytes"] = self._peak
        if peak := device_peak():
            flops = 3 * self.experiment.model.flops_per_token() * tokens_per_second
            scalars["perf/mfu"] = flops / (peak * jax.device_count())
        self.folder.record(step, scalars)
        progress.update(
            step,
            f"loss {scalars['train/loss']:.4f}  bits/token {scalars['train/bits_per_token']:.4f}  "
            f"lr {scalars['train/learning_rate']:.2e}  {tokens_per_second:,.0f} tokens/s",
        )
        self._clock, self._timed, prefetch.waited = now, 0, 0.0

    def _ledger(self):
        """The ledger of all batches up to the last step consumed, of all hosts: 16 hex digits."""
        return f"{(self._read_before + sum_over_processes(self._read)) % MODULUS:016x}"

    def _evaluate(self, step, progress):
        params = evaluated_params(self.state)
        found = self.evaluator.run(params, max_steps=self.trainer.evaluation.max_steps)
        scalars = {f"eval/{name}": value for name, value in found.items()}
        self.folder.record(step, scalars)
        if plateau := self.trainer.plateau:
            slowed = plateau.after_evaluation(self.state.optimizer, found["loss"])
            self.state = self.state._replace(optimizer=slowed)
        shown = (
            *("bits_per_token", "cleared_bits_per_token", "bits_per_byte"),
            *("recall_accuracy", "task_accuracy"),
        )
        progress.note(
            f"eval at step {step:,}: "
            + "  ".join(f"{name} {found[name]:.4f}" for name in shown if name in found)
        )
        return scalars

    def _save(self):
        self.folder.sync()
        record = {
            "interval": self.interval.sums,
            "bindings": self.experiment.bindings,
            "ledger": self._ledger(),
            "vocabulary": self.store.manifest["vocabulary"],
        }
        self.checkpoints.save(self.state, record)

    def close(self):
        self.checkpoints.close()
