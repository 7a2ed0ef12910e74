"""Documents of any TensorFlow Datasets data set that has a text feature, PG19 for one.

Only `prepare` comes here, so TensorFlow is imported inside the functions that need it.
"""

import os
from collections.abc import Iterator

import gin

from brt.data.extras import extra_library
from brt.data.sources.files import Document


@gin.configurable
class TfdsText:
    """One document an example. Downloads the data set when it is not on disk yet.

    Args:
        name: the data set, with its config and version if need be.
        text_feature: feature that holds a document's text.
        title_feature: feature that names it; without one, titles are `<split>-<number>`.
        data_dir: where data sets are kept, None for the library's own folder. `~` and environment
            variables are expanded.
        splits: from a split's name here to its name (or slice) there, where they differ, such as
            `{'validation': 'train[:1%]', 'train': 'train[1%:]'}`.

    PG19 is `name='pg19', text_feature='book_text', title_feature='book_title'`.

    Raises:
        ImportError: from `documents` and `count`, when the `data` extra is not installed.
        ValueError: from `documents` and `count`, for a data set or split that is not there; from
            `documents`, for a feature the data set lacks, or that is no text.
    """

    def __init__(
        self,
        name: str = gin.REQUIRED,
        text_feature: str = "text",
        title_feature: str | None = None,
        data_dir: str | None = None,
        splits: dict | None = None,
    ):
        self.name = name
        self.text_feature = text_feature
        self.title_feature = title_feature
        self.data_dir = data_dir
        self.splits = dict(splits or {})

    def documents(self, split: str) -> Iterator[Document]:
        """Yields a `Document` an example, in the data set's own order."""
        tfds = _library()
        builder = self._builder()
        builder.download_and_prepare()
        # Reading one shard at a time gives the order in which the examples were written.
        self._examples_of(builder, split)
        examples = builder.as_dataset(
            split=self.splits.get(split, split),
            shuffle_files=False,
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        for number, example in enumerate(tfds.as_numpy(examples)):
            title = f"{split}-{number}"
            if self.title_feature:
                title = self._feature(example, "title_feature").decode("utf-8", "replace")
            yield Document(title, self._feature(example, "text_feature"))

    def description(self, split: str) -> dict:
        """The settings that decide the documents; where they are kept does not."""
        return {
            "source": "TfdsText",
            "name": self.name,
            "split": self.splits.get(split, split),
            "text_feature": self.text_feature,
            "title_feature": self.title_feature,
        }

    def count(self, split: str) -> int | None:
        """Number of examples, None when the data set does not tell before it is downloaded."""
        builder = self._builder()
        return self._examples_of(builder, split) if builder.info.splits else None

    def _builder(self):
        folder = self.data_dir and os.path.expanduser(os.path.expandvars(self.data_dir))
        library = _library()
        try:
            return library.builder(self.name, data_dir=folder)
        except library.core.DatasetNotFoundError:
            raise ValueError(
                f"TensorFlow Datasets has no data set {self.name!r}, and there is none in "
                f"{folder or 'its own folder'}; bind TfdsText.name to one it has, or "
                "TfdsText.data_dir to the folder where yours is"
            ) from None

    def _examples_of(self, builder, split):
        """Number of examples of a split, which has to be there."""
        there = self.splits.get(split, split)
        try:
            return builder.info.splits[there].num_examples
        except (KeyError, ValueError):
            raise ValueError(
                f"data set {self.name!r} has no split {there!r}; bind TfdsText.splits to say which "
                f"of {', '.join(sorted(builder.info.splits))} it is, as in {{{split!r}: 'train'}}"
            ) from None

    def _feature(self, example, setting):
        feature = getattr(self, setting)
        if feature not in example:
            raise ValueError(
                f"data set {self.name!r} has no feature {feature!r}; bind TfdsText.{setting} to "
                f"one of {', '.join(sorted(example))}"
            )
        if not isinstance(example[feature], bytes):
            raise ValueError(
                f"feature {feature!r} of data set {self.name!r} is no text; bind "
                f"TfdsText.{setting} to one that is, of {', '.join(sorted(example))}"
            )
        return example[feature]


def _library():
    return extra_library("tensorflow_datasets", "TfdsText", "data")
