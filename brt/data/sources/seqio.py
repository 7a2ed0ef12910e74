"""A source of the documents of any seqio task or mixture."""

import importlib
from collections.abc import Iterator
from typing import Any

import gin
import numpy as np

from brt.checks import Name, configurable
from brt.data.extras import extra_library
from brt.data.sources import tasks
from brt.data.sources.base import Document
from brt.data.sources.examples import ExampleSource
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary


@configurable
class SeqioText(ExampleSource):
    """One document per example of a registered task or mixture, unshuffled and uncut.

    The feature is text or token ids. For ids, `vocabulary` is the one of brt with the same ids,
    because seqio's need TensorFlow; both decode the first document as a check.

    Args:
        task: name of the task or mixture; those of `tasks` are registered.
        feature: the text or ids of a document; the bytes of ids are `<feature>_pretokenized`.
        module: a module to import, which registers the task (`--allow_imports`).
        title_feature, splits, data_dir: as of `ExampleSource`.
        vocabulary: of the ids, or its name.
    """

    def __init__(
        self,
        task: Name = gin.REQUIRED,
        feature: str = "targets",
        title_feature: str | None = None,
        module: str | None = None,
        splits: dict[str, str] | None = None,
        data_dir: str | None = None,
        vocabulary: Vocabulary | str | None = None,
    ):
        super().__init__(title_feature, data_dir, splits)
        self.task = task
        self.feature = feature
        self.module = module
        self.vocabulary = as_vocabulary(vocabulary)

    @property
    def data_set(self) -> str:
        return f"seqio's {self.task!r}"

    def documents(self, split: str) -> Iterator[Document]:
        task = self._task(split)
        examples = task.get_dataset(
            sequence_length=None,
            split=self._original_split(split),
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

    def description(self, split: str) -> dict:
        return {
            "source": "SeqioText",
            "task": self.task,
            "split": self._original_split(split),
            "feature": self.feature,
            "title_feature": self.title_feature,
        }

    def count(self, split: str) -> int | None:
        task = self._task(split)
        try:
            return task.num_input_examples(self._original_split(split))
        except TypeError:  # a mixture with a task that does not know it
            return None

    def _task(self, split: str) -> Any:
        seqio = extra_library("seqio", "SeqioText", "data")
        if folder := self._folder():
            seqio.set_tfds_data_dir_override(folder)
        tasks.register()
        if self.module:
            importlib.import_module(self.module)
        try:
            task = seqio.get_mixture_or_task(self.task)
        except ValueError:
            raise ValueError(
                f"seqio has no task or mixture {self.task!r}: bind SeqioText.task to a registered "
                "one, and SeqioText.module to the module that registers it."
            ) from None
        if self._original_split(split) not in task.splits:
            raise self._no_split(split, task.splits)
        return task

    def _check(self, task: Any, ids: np.ndarray) -> None:
        if self.vocabulary is None:
            raise ValueError(
                f"Feature {self.feature!r} of {self.data_set} holds token ids: bind "
                "SeqioText.vocabulary to the vocabulary they are of, or SeqioText.feature to "
                f"{self.feature + '_pretokenized'!r} if the task passes its text on."
            )
        ids = np.asarray(ids[:256])
        theirs = task.output_features[self.feature].vocabulary.decode(ids.tolist())
        if not isinstance(theirs, str):  # ids that pass through seqio as they are
            return
        ours = self.vocabulary.decode(ids)
        if ours != theirs:
            raise ValueError(
                f"{self.data_set} begins {theirs[:40]!r}, which {self.vocabulary.name!r} reads as "
                f"{ours[:40]!r}: bind SeqioText.vocabulary to the vocabulary of the task."
            )
