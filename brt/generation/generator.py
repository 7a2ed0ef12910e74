"""Reads, scores and writes documents.

generator = Generator(experiment.bind(params), experiment.trainer.corpus.vocabulary)
memory = generator.read(["Call me Ishmael."])
for pieces in generator.write(memory, max_tokens=100):
    print(pieces[0], end="")
"""

import functools
import os
from collections.abc import Sequence
from typing import Any, Self

import jax
import numpy as np
from flax import nnx

from brt.checks import Count, CountFrom0, Name, checked_arguments
from brt.data.vocabularies.base import Vocabulary, checked_ids, cut, utf8_bytes
from brt.experiment import Experiment
from brt.generation import memory_file
from brt.generation.decode_loop import DRAW, make_decode_loop
from brt.generation.document_memory import Memory, fresh_memory
from brt.generation.prefill import Prefill
from brt.generation.sampling import Sampling, checked
from brt.generation.streaming_text import StreamingText
from brt.host.progress import Progress
from brt.model_folder import load_run
from brt.models.diagonal import layerwise_of
from brt.models.model import LanguageModel, Model
from brt.storage.file_parts import FileBytes

SEGMENT = 2048
"""Approximate default length, in tokens."""

READ_TOGETHER = 2**17
"""Approximate tokens of a long text in memory at a time."""

ENCODED_TOGETHER = 2**16
"""Approximate bytes of a long text encoded at a time."""

Text = str | bytes | np.ndarray | Sequence[int]
Texts = Text | Sequence[Text]
Seeds = int | Sequence[int] | np.ndarray
"""One for each document, or that of the first; the others count from it."""


class NonFiniteLogits(ValueError): ...


class Generator:
    """A model with its vocabulary, compiled for reading and writing.

    The state of a document is an immutable `Memory`: use it twice to continue from it twice.

    Args:
        model: with parameters, from `Experiment.bind`; on one device.
        segment_length: tokens read at once, a multiple of the model's cache-update interval; None:
            about 2,048, or the only one of a model whose memory changes with each segment.
        chunk: tokens written by one call of the compiled loop.
        segments_together: segments of a long text that run at once, in the diagonal schedule.
    """

    @checked_arguments
    def __init__(
        self,
        model: LanguageModel,
        vocabulary: Vocabulary,
        segment_length: Count | None = None,
        chunk: Count = 16,
        segments_together: Count = 1,
    ):
        P = model.period
        own = getattr(model, "segment_length", None)
        segment_length = segment_length or own or max(SEGMENT // P, 1) * P
        if segment_length % P or segment_length != (own or segment_length):
            only = "be" if own else "be a multiple of the model's cache-update interval,"
            other = f": pass model.for_segments({segment_length})" if own else ""
            raise ValueError(f"segment_length = {segment_length} must {only} {P} tokens{other}.")
        if vocabulary.size > model.vocabulary_size:
            raise ValueError(
                f"The vocabulary {vocabulary.name} has {vocabulary.size} ids and the model's table "
                f"only {model.vocabulary_size} rows: it is not the one the model was trained with."
            )
        self.model = model
        self.vocabulary = vocabulary
        self.chunk = chunk
        graph, params = nnx.split(model)
        (self.device,) = jax.tree.leaves(params)[0].devices()
        # Explicit placement, here and below, avoids a second compilation.
        self.params = jax.device_put(params, self.device)
        self.decode_loop = jax.jit(make_decode_loop(graph, vocabulary.size))
        if segments_together > 1:
            layerwise_of(model)
        sizes = chunk, segments_together
        self.prefill = Prefill(graph, P, segment_length, self.decode_loop, *sizes)

    @classmethod
    @checked_arguments
    def from_folder(
        cls,
        folder: str | os.PathLike,
        bindings: Sequence[str] = (),
        allow_imports: Sequence[str] = (),
        step: int | str | None = None,
    ) -> Self:
        """Returns the generator of a folder; arguments as of `load_run`."""
        experiment, params, _ = load_run(folder, bindings, allow_imports, step)
        return cls.of_experiment(experiment, params, os.fspath(folder))

    @classmethod
    def of_experiment(cls, experiment: Experiment, params: Any, folder: str) -> Self:
        trainer = experiment.trainer
        model = experiment.bind_evaluated(params)
        if not isinstance(model, LanguageModel):
            raise ValueError(f"{folder} holds a {type(model).__name__}, which writes no text.")
        return cls(
            model,
            trainer.corpus.vocabulary,
            experiment.evaluated_length,
            segments_together=experiment.evaluation.segments_together,
        )

    # Reading.

    @checked_arguments
    def begin(self, rows: CountFrom0 = 1) -> Memory:
        return jax.device_put(fresh_memory(self.model, rows), self.device)

    @checked_arguments
    def read(self, texts: Texts, memory: Memory | None = None, label: str | None = None) -> Memory:
        """Reads texts of any length, whole segments at a time.

        Args:
            texts: one for each document, as of `encode`, or a single one.
            memory: of the documents that the texts continue; None begins new ones.
        """
        tokens, memory = self._prepared(texts, memory)
        return self.prefill(self.params, memory, tokens, label=label)[0]

    def read_files(
        self,
        files: Sequence[tuple[str, bytes | FileBytes]],
        memory: Memory | None = None,
        label: str | None = None,
    ) -> Memory:
        """Reads files, (title, content) each, part by part."""
        memory = self.begin(len(files)) if memory is None else memory
        streams = [self._encoded(data, title) for title, data in files]
        rests = [np.zeros(0, np.int32) for _ in files]
        # Cut where `read` cuts it into segments, so that results are the same.
        length = self.prefill.segment_length * self.prefill.together
        size = max(READ_TOGETHER // length, 1) * length
        wanted_B = -np.asarray(memory.position_B) % self.prefill.period + size
        progress = Progress(label, None)
        done = 0
        while True:
            for row, stream in enumerate(streams):
                while len(rests[row]) < wanted_B[row] and (ids := next(stream, None)) is not None:
                    rests[row] = np.append(rests[row], ids)
            parts = [rest[:wanted] for rest, wanted in zip(rests, wanted_B)]
            rests = [rest[wanted:] for rest, wanted in zip(rests, wanted_B)]
            if not any(map(len, parts)):
                break
            memory = self.read(parts, memory)
            done += sum(map(len, parts))
            progress.update(done)
            wanted_B = np.full(len(files), size)
        progress.close()
        return memory

    def _encoded(self, data, title):
        after = self.vocabulary.cuts_after
        if after is None:
            raise ValueError(
                f"{title} has {len(data):,} bytes, and vocabulary {self.vocabulary.name!r} has to "
                "encode a text whole: give a part of it."
            )
        for start, part in cut(data, after, ENCODED_TOGETHER):
            encode = self.encode if start + len(part) == len(data) else self.vocabulary.encode
            yield np.asarray(encode(part, title), np.int32)

    @checked_arguments
    def score(
        self, texts: Texts, memory: Memory | None = None, label: str | None = None
    ) -> tuple[Memory, list[np.ndarray]]:
        """Reads texts as `read` does, and scores their tokens.

        Returns:
            The memory, and for each document the nats of its tokens, float64 (tokens,).
        """
        tokens, before = self._prepared(texts, memory)
        memory, nats = self.prefill(self.params, before, tokens, score=True, label=label)
        assert nats is not None
        for row, nats_T in enumerate(nats):
            if not np.isfinite(nats_T).all():
                raise self.not_finite(before, row, int(np.argmin(np.isfinite(nats_T))))
        return memory, nats

    def encode(self, text: Text, title: str = "the prompt") -> np.ndarray:
        """Returns token ids, int32 (tokens,), of a text to be continued; `title` is for errors."""
        if not isinstance(text, str | bytes):
            # Checked before the cast, which would wrap.
            return checked_ids(text, self.vocabulary.size, self.vocabulary.name).astype(np.int32)
        data = utf8_bytes(text, title) if isinstance(text, str) else text
        ids = self.vocabulary.encode(data, title)
        # Vocabularies of words end the last line; this one is to be continued.
        if len(ids) and not data.endswith(b"\n"):
            ids = ids[: -1 if self.vocabulary.decode(ids[-2:]).endswith("\n") else None]
        return ids

    def _prepared(self, texts, memory):
        is_one = isinstance(texts, str | bytes) or getattr(texts, "ndim", 0) == 1
        if is_one or (len(texts) and isinstance(texts[0], int | np.integer)):
            texts = [texts]
        tokens = [self.encode(text) for text in texts]
        memory = self.begin(len(tokens)) if memory is None else memory
        rows = len(memory.position_B)
        if rows != len(tokens) or not rows:
            raise ValueError(f"{len(tokens)} texts were given for {rows} documents.")
        return tokens, memory

    # Writing.

    @checked_arguments
    def write(
        self,
        memory: Memory,
        max_tokens: int = 256,
        sampling: Sampling = Sampling(),  # noqa: B008  (it is immutable)
        seed: Seeds = 0,
        stop: str | Sequence[str] = (),
    ) -> "Writing":
        """Continues documents; iterate over the result, or call its `run`.

        Args:
            seed: of the first document, the others count from it; or one for each. With the
                position in the document it determines every draw.
            stop: texts; a document ends where the first of them begins.
        """
        return Writing(self, memory, max_tokens, sampling, seed, stop)

    def not_finite(self, memory: Memory, row: int, index: int) -> NonFiniteLogits:
        return NonFiniteLogits(
            f"The model's logits for token {int(memory.position_B[row]) + index:,} of document "
            f"{row} are not finite numbers, and say nothing: look at the parameters, or at "
            f"{_innermost(self.model)}.activation_dtype."
        )

    # Memory files.

    @functools.cached_property
    def fingerprint(self) -> str:
        return memory_file.model_fingerprint(self.model)

    @checked_arguments
    def save(self, path: Name | os.PathLike, memory: Memory) -> None:
        memory_file.save(os.fspath(path), memory, self.fingerprint, self.vocabulary)

    @checked_arguments
    def load(self, path: Name | os.PathLike) -> Memory:
        memory = memory_file.load(os.fspath(path), self.model, self.fingerprint, self.vocabulary)
        return jax.device_put(memory, self.device)


class Writing:
    """Documents being written: an iterator over new text, a list of B strings each time.

    Attributes:
        texts: all text, B strings, without the stop sequences.
        tokens, nats: B lists of ids, with the token that completed a stop sequence, and of their
            -log p under the model's own distribution.
        stopped: B bools, whether a stop sequence ended the document.
        memory: of the documents with all of `tokens`.
    """

    def __init__(
        self,
        generator: Generator,
        memory: Memory,
        max_tokens: int,
        sampling: Sampling,
        seed: Seeds,
        stop: str | Sequence[str],
    ):
        self.generator = generator
        self.memory = memory
        rows = len(memory.position_B)
        self._sampling = checked(sampling, generator.vocabulary.size)
        if isinstance(seed, Sequence | np.ndarray):
            seeds = list(seed)
        else:
            seeds = [seed + row for row in range(rows)]
        if len(seeds) != rows or not all(0 <= s < 2**32 for s in seeds):
            raise ValueError(
                f"seed = {seed}: {rows} texts need seeds from 0 to 2^32 - 1, one for each or a "
                "single one to count from."
            )
        stop = [stop] if isinstance(stop, str) else list(stop)
        if max_tokens < 0 or not all(stop):
            raise ValueError(
                f"max_tokens = {max_tokens} must be at least 0, and stop sequences not empty."
            )
        self._seeds_B = np.array(seeds, np.uint32)
        self._left_B = np.full(rows, max_tokens)
        self._streams = [
            StreamingText(generator.vocabulary, recent_P[recent_P >= 0], stop)
            for recent_P in np.asarray(memory.recent_BP)
        ]
        self.texts = [""] * rows
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.nats: list[list[float]] = [[] for _ in range(rows)]
        self.stopped = [False] * rows
        # Raised after the text before it has been returned.
        self._bad: NonFiniteLogits | None = None

    def run(self) -> "Writing":
        for _ in self:
            pass
        return self

    def __iter__(self):
        return self

    def __next__(self) -> list[str]:
        if self._bad:
            raise self._bad
        counts_B = np.minimum(self._left_B, self.generator.chunk)
        if not counts_B.any():
            raise StopIteration
        given_BC = np.full((len(counts_B), self.generator.chunk), DRAW, np.int32)
        memory, *arrays = self._decode(given_BC, counts_B)
        tokens_BC, nats_BC, finite_BC = map(np.asarray, arrays)
        pieces, used_B = [], np.zeros_like(counts_B)
        for row, stream in enumerate(self._streams):
            piece = ""
            while used_B[row] < counts_B[row] and not stream.stopped:
                if not finite_BC[row, used_B[row]]:
                    error = self.generator.not_finite(self.memory, row, used_B[row])
                    self._bad = self._bad or error
                    piece += stream.finish()
                    break
                piece += stream.push(tokens_BC[row, used_B[row]])
                used_B[row] += 1
            self.tokens[row] += tokens_BC[row, : used_B[row]].tolist()
            self.nats[row] += nats_BC[row, : used_B[row]].tolist()
            self.stopped[row] = stream.stopped
            self._left_B[row] = 0 if stream.stopped else self._left_B[row] - used_B[row]
            if counts_B[row] and not self._left_B[row] and not stream.stopped:
                piece += stream.finish()
            pieces.append(piece)
        if (used_B < counts_B).any():  # the same tokens again, up to where documents stopped
            memory, *_ = self._decode(tokens_BC, used_B)
        self.memory = memory
        self.texts = [text + piece for text, piece in zip(self.texts, pieces)]
        return pieces

    def _decode(self, given_BC, counts_B):
        return self.generator.decode_loop(
            self.generator.params,
            self.memory,
            given_BC,
            counts_B.astype(np.int32),
            self._seeds_B,
            self._sampling,
        )


def _innermost(model: Model) -> str:
    models = [(len(path), m) for path, m in nnx.iter_modules(model) if isinstance(m, Model)]
    _, innermost = max(models, key=lambda entry: entry[0], default=(0, model))
    return type(innermost).__name__
