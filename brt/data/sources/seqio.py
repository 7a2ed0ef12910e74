"""Documents of any seqio task or mixture.

Only `prepare` comes here, so seqio and TensorFlow are imported inside the functions.
"""

import importlib
from collections.abc import Iterator

import gin
import numpy as np

from brt.data.extras import extra_library
from brt.data.sources import tasks
from brt.data.sources.files import Document, expanded
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary


@gin.configurable
class SeqioText:
    """One document an example of a registered task or mixture, unshuffled and uncut.

    The feature may be text, which the corpus's vocabulary encodes, or token ids, which are kept
    as they are. seqio's vocabularies need TensorFlow, which training does without; so for ids,
    `vocabulary` is the one of brt with the same ids, and the first document is decoded with both
    to see that they agree. Where the task passes on `<feature>_pretokenized`, as seqio's
    `tokenize` does, it is counted as the document's bytes and words.

    The tasks of `brt.data.sources.tasks` (pg19_tokens, pg19_bytes) are registered here. A mixture
    is drawn as seqio draws it, and ends with the first of its tasks that ends.

    Args:
        task: name of the task or mixture.
        feature: feature that holds a document.
        title_feature: feature that names it; without one, titles are `<split>-<number>`.
        module: a module to import beforehand, which registers the task.
        splits: from a split's name here to its name there, where they differ.
        data_dir: where TensorFlow Datasets are kept, None for the library's own folder. `~` and
            environment variables are expanded.
        vocabulary: of the ids, or its name; the corpus takes it from here.

    Raises:
        ImportError: from `documents` and `count`, without the `data` extra or the module.
        ValueError: from `documents`, for a task that is not registered, a split or a feature it
            lacks, ids without a vocabulary, or with one that decodes them otherwise.
    """

    def __init__(
        self,
        task: str = gin.REQUIRED,
        feature: str = "targets",
        title_feature: str | None = None,
        module: str | None = None,
        splits: dict | None = None,
        data_dir: str | None = None,
        vocabulary: Vocabulary | str | None = None,
    ):
        self.task = task
        self.feature = feature
        self.title_feature = title_feature
        self.module = module
        self.splits = dict(splits or {})
        self.data_dir = data_dir
        self.vocabulary = as_vocabulary(vocabulary)

    def documents(self, split: str) -> Iterator[Document]:
        """Yields a `Document` an example, in the order of the task's source."""
        task, there = self._task(split)
        examples = task.get_dataset(
            sequence_length=None, split=there, shuffle=False, seed=0, num_epochs=1
        )
        for number, example in enumerate(examples.as_numpy_iterator()):
            title = f"{split}-{number}"
            if self.title_feature:
                title = self._value(example, "title_feature").decode("utf-8", "replace")
            value = self._value(example, "feature")
            if isinstance(value, bytes):
                yield Document(title, value)
                continue
            if number == 0:
                self._check(task, value)
            yield Document(title, example.get(f"{self.feature}_pretokenized", b""), value)

    def description(self, split: str) -> dict:
        """The settings that decide the documents; where they are kept does not."""
        return {
            "source": "SeqioText",
            "task": self.task,
            "split": self.splits.get(split, split),
            "feature": self.feature,
            "title_feature": self.title_feature,
        }

    def count(self, split: str) -> int | None:
        """Number of examples the task's source has, None where it does not tell."""
        task, there = self._task(split)
        try:
            return task.num_input_examples(there)
        except TypeError:  # a mixture of tasks, one of which does not tell
            return None

    def _task(self, split):
        """The task or mixture, and the split's name there."""
        seqio = _library()
        if self.data_dir:
            seqio.set_tfds_data_dir_override(expanded(self.data_dir))
        tasks.register()
        if self.module:
            importlib.import_module(self.module)
        try:
            task = seqio.get_mixture_or_task(self.task)
        except ValueError:
            raise ValueError(
                f"seqio has no task or mixture {self.task!r}; bind SeqioText.task to a registered "
                "one, and SeqioText.module to the module that registers it"
            ) from None
        there = self.splits.get(split, split)
        if there not in task.splits:
            raise ValueError(
                f"seqio's {self.task!r} has no split {there!r}; bind SeqioText.splits to say which "
                f"of {', '.join(sorted(task.splits))} it is, as in {{{split!r}: 'train'}}"
            )
        return task, there

    def _value(self, example, setting):
        feature = getattr(self, setting)
        if feature not in example:
            raise ValueError(
                f"seqio's {self.task!r} has no feature {feature!r}; bind SeqioText.{setting} to "
                f"one of {', '.join(sorted(example))}"
            )
        value = example[feature]
        if isinstance(value, bytes):
            return value
        if setting == "title_feature" or value.ndim != 1 or value.dtype.kind not in "iu":
            raise ValueError(
                f"feature {feature!r} of seqio's {self.task!r} is {value.dtype} of shape "
                f"{value.shape}; bind SeqioText.{setting} to one that holds text"
                + (" or token ids" if setting == "feature" else "")
            )
        return value

    def _check(self, task, ids):
        """Refuses ids that brt would read otherwise than the task does."""
        if self.vocabulary is None:
            raise ValueError(
                f"feature {self.feature!r} of seqio's {self.task!r} holds token ids; bind "
                "SeqioText.vocabulary to the vocabulary they are of, or SeqioText.feature to "
                f"{self.feature + '_pretokenized'!r} if the task passes its text on"
            )
        ids = np.asarray(ids[:256])
        theirs = task.output_features[self.feature].vocabulary.decode(ids.tolist())
        if not isinstance(theirs, str):  # ids that pass through seqio as they are
            return
        ours = self.vocabulary.decode(ids)
        if ours != theirs:
            raise ValueError(
                f"seqio's {self.task!r} begins {theirs[:40]!r}, which {self.vocabulary.name!r} "
                f"reads as {ours[:40]!r}; bind SeqioText.vocabulary to the vocabulary of the task"
            )


def _library():
    return extra_library("seqio", "SeqioText", "data")
