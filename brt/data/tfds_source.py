"""Documents of any TensorFlow Datasets data set that has a text feature, PG19 for one.

Only `prepare` comes here, so TensorFlow is imported inside the functions that need it.
"""

import os
from collections.abc import Iterator

import gin

from brt.data.extras import extra_library
from brt.data.sources import Document


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
        ValueError: from `documents`, for a feature the data set lacks.
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
        splits = self._builder().info.splits
        return splits[self.splits.get(split, split)].num_examples if splits else None

    def _builder(self):
        folder = self.data_dir and os.path.expanduser(os.path.expandvars(self.data_dir))
        return _library().builder(self.name, data_dir=folder)

    def _feature(self, example, setting):
        feature = getattr(self, setting)
        if feature not in example:
            raise ValueError(
                f"data set {self.name!r} has no feature {feature!r}; bind TfdsText.{setting} to "
                f"one of {', '.join(sorted(example))}"
            )
        return example[feature]


def _library():
    return extra_library("tensorflow_datasets", "TfdsText", "data")
