"""A run folder with a checkpoint's parameters; makes recordings on demand."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from brt.bindings.registry import modules_by_name
from brt.data.splits import check_split
from brt.data.streams.base import EvaluationPass, with_empty_rows
from brt.data.streams.documents import DocumentPass
from brt.data.streams.select import evaluation_pass
from brt.data.vocabularies.base import Vocabulary
from brt.evaluation.recording import Recording
from brt.evaluation.recording_writer import record
from brt.evaluation.segment_reader import SegmentReader
from brt.experiment import Experiment
from brt.models.model import LanguageModel
from brt.training.checkpoints.parameters import check_vocabulary, load_params
from brt.training.sharding import divisible_rows

OTHERS = "brt.data.", "brt.evaluation.", "brt.studies.", "brt.training."
"""Modules whose settings change no loss of given tokens and parameters."""


class RecordedRun:
    """A run folder for `brt.evaluate --record` and the studies.

    Args:
        rebuild: from further bindings to the experiment of the run folder with them.
        any_stream: for studies that look at segments only.
        step: as of `load_params`.

    Attributes:
        params, step, best_by: of the checkpoint; best_by is the metric of a best one, else None.
        rows, segment_length, window: B, which the mesh divides, T, and the model's cache-update
            interval.
        reader: a `SegmentReader` of that shape.
    """

    def __init__(
        self,
        experiment: Experiment,
        mesh: jax.sharding.Mesh,
        workdir: str,
        rebuild: Callable[[Sequence[str]], Experiment] | None = None,
        any_stream: bool = False,
        step: int | str | None = None,
    ):
        trainer = experiment.trainer
        if trainer.stream == "labelled":
            raise ValueError(
                'Recordings and studies are of predicted tokens, and Trainer.stream = "labelled" '
                "has labels: evaluate without --record and --study."
            )
        if trainer.stream != "documents" and not any_stream:
            raise ValueError(
                f"Recordings and studies are of whole documents, and Trainer.stream = "
                f"{trainer.stream!r} marks none: add --gin.Trainer.stream='\"documents\"'."
            )
        if experiment.evaluation.stride is not None:
            raise ValueError(
                "Recordings and studies read segments one after another: add "
                "--gin.Evaluation.stride=None."
            )
        self.experiment = experiment
        self.mesh = mesh
        self.workdir = workdir
        self.quiet = jax.process_index() > 0
        self.rebuild = rebuild
        self.split = experiment.evaluation.split
        self.store: Any = experiment.open_store(self.split)
        self.vocabulary = cast(Vocabulary, trainer.corpus.vocabulary)
        rows, self.segment_length = experiment.evaluated_shape
        self.rows = divisible_rows(mesh, rows)
        self.window = self.model.period
        self.reader = SegmentReader(experiment, mesh, self.rows, self.segment_length, entropy=True)
        self.has_state = self.reader.has_state
        state, saved = load_params(workdir, experiment.abstract_state(mesh), step)
        check_vocabulary(saved, self.store.manifest["vocabulary"], self.store.folder)
        self.params = state.params
        self.step = int(state.step)
        self.best_by: str | None = saved.get("best_by")

    @property
    def model(self) -> LanguageModel:
        return cast(LanguageModel, self.experiment.evaluated_model(self.segment_length))

    def stream(self, documents: Sequence[int] | np.ndarray) -> EvaluationPass:
        """Returns one pass over the split, of `documents` where the stream marks any."""
        kind = self.experiment.trainer.stream
        if kind == "documents":
            return DocumentPass(self.store, self.rows, self.segment_length, documents=documents)
        rows, _ = self.experiment.evaluated_shape
        read = evaluation_pass(kind, self.store, rows, self.segment_length)
        return with_empty_rows(read, self.rows)

    @property
    def settings(self) -> str:
        """A hash of the model's settings, such as the length of a memory."""
        modules = modules_by_name()

        def is_of_model(name: str) -> bool:
            owner = name.rpartition(".")[0].rpartition("/")[2]
            return not any(module.startswith(OTHERS) for module in modules.get(owner, ()))

        chosen = sorted(pair for pair in self.experiment.bindings.items() if is_of_model(pair[0]))
        return hashlib.sha256(json.dumps(chosen).encode()).hexdigest()

    def label(self, text: str) -> str | None:
        return None if self.quiet else f"{self.workdir}, {text}"

    def folder(self, state: str) -> str:
        return os.path.join(self.workdir, "recordings", f"{check_split(self.split)}-{state}")

    def recording(
        self, state: str = "kept", documents: Sequence[int] | np.ndarray | None = None
    ) -> Recording:
        """Returns the recording of one of `STATE_ABLATIONS`; first records missing documents.

        documents: integers; None for all.
        """
        return record(
            self.folder(state),
            self.reader,
            self.params,
            self.store,
            run=self.workdir,
            step=self.step,
            window=self.window,
            state=state,
            documents=documents,
            label=self.label(f"{self.split}, state {state}, segments"),
            settings=self.settings,
        )
