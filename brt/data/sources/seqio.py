"""A source of the documents of any seqio task or mixture."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brt.checks import Name, configurable
from brt.data.sources.base import Document
from brt.data.sources.examples import ExampleSource
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary


@configurable
@dataclass(eq=False)
class SeqioText(ExampleSource):
    """One document per example of a registered task or mixture, unshuffled and uncut.

    The feature is text or token ids. The first document checks that `vocabulary` has the same ids.

    Args:
        task: name of the task or mixture; `register` adds those of PG19.
        feature: the text or ids of a document; the bytes of ids are `<feature>_pretokenized`.
        module: a module to import, which registers the task (`--allow_imports`).
        vocabulary: of the ids, or its name.
    """

    library = "seqio"

    task: Name
    feature: str = "targets"
    module: str | None = field(default=None, kw_only=True)
    vocabulary: Vocabulary | str | None = field(default=None, kw_only=True)

    @property
    def data_set(self) -> str:
        return f"seqio's {self.task!r}"

    def documents(self, split: str) -> Iterator[Document]:
        task = self._task(split)
        examples = task.get_dataset(
            sequence_length=None,
            split=self.original_split(split),
            shuffle=False,
            seed=0,
            num_epochs=1,
        )
        for number, example in enumerate(examples.as_numpy_iterator()):
            title = self._title(example, split, number)
            value = self._feature(example, "feature")
            if isinstance(value, bytes):
                yield Document(title, value)
                continue
            if value.ndim != 1 or value.dtype.kind not in "iu":
                raise self._wrong_type("feature", example, "text or token ids")
            if number == 0:
                self._check(task, value)
            yield Document(title, example.get(f"{self.feature}_pretokenized", b""), value)

    def count(self, split: str) -> int | None:
        task = self._task(split)
        try:
            return task.num_input_examples(self.original_split(split))
        except TypeError:  # a mixture with a task that lacks it
            return None

    def _task(self, split: str) -> Any:
        seqio = self._library()
        if folder := self._folder():
            seqio.set_tfds_data_dir_override(folder)
        register()
        if self.module:
            importlib.import_module(self.module)
        try:
            task = seqio.get_mixture_or_task(self.task)
        except ValueError:
            raise ValueError(
                f"seqio has no task or mixture {self.task!r}: bind SeqioText.task to a registered "
                "one, and SeqioText.module to the module that registers it."
            ) from None
        if self.original_split(split) not in task.splits:
            raise self._no_split(split, task.splits)
        return task

    def _check(self, task: Any, ids: np.ndarray) -> None:
        vocabulary = as_vocabulary(self.vocabulary)
        if vocabulary is None:
            raise ValueError(
                f"Feature {self.feature!r} of {self.data_set} holds token ids: bind "
                "SeqioText.vocabulary to the vocabulary they are of, or SeqioText.feature to "
                f"{self.feature + '_pretokenized'!r} if the task passes its text on."
            )
        ids = np.asarray(ids[:256])
        theirs = task.output_features[self.feature].vocabulary.decode(ids.tolist())
        if not isinstance(theirs, str):  # ids that pass through seqio as they are
            return
        ours = vocabulary.decode(ids)
        if ours != theirs:
            raise ValueError(
                f"{self.data_set} begins {theirs[:40]!r}, which {vocabulary.name!r} reads as "
                f"{ours[:40]!r}: bind SeqioText.vocabulary to the vocabulary of the task."
            )


T5_MODEL = "vocabularies/t5.spiece.model"


def register() -> None:
    """Registers pg19_tokens, ids of the SentencePiece model `T5_MODEL`, and pg19_bytes, 0 to 255.

    Both give `targets` (ids without an end-of-document token), `targets_pretokenized` and `title`.
    """
    import seqio
    import tensorflow as tf

    def text_and_title(books):
        return books.map(lambda book: {"targets": book["book_text"], "title": book["book_title"]})

    def to_bytes(books):
        def ids(book):
            data = tf.cast(tf.io.decode_raw(book["targets"], tf.uint8), tf.int32)
            return {**book, "targets": data, "targets_pretokenized": book["targets"]}

        return books.map(ids)

    tasks = {
        "pg19_tokens": (seqio.SentencePieceVocabulary(T5_MODEL), seqio.preprocessors.tokenize),
        # The ids of seqio's own bytes begin at 3, after the special ids.
        "pg19_bytes": (seqio.PassThroughVocabulary(256), to_bytes),
    }
    for name, (vocabulary, to_ids) in tasks.items():
        if name not in seqio.TaskRegistry.names():
            feature = seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32)
            seqio.TaskRegistry.add(
                name,
                seqio.TfdsDataSource(tfds_name="pg19:0.1.1"),
                preprocessors=[text_and_title, to_ids],
                output_features={"targets": feature},
            )
