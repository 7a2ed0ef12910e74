"""A source of any TensorFlow Datasets data set that has a text feature, PG19 for one.

Only `prepare` comes here, so TensorFlow is imported inside the functions that need it.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import gin

from brt.checks import Name, configurable
from brt.data.extras import extra_library
from brt.data.sources.base import Document
from brt.data.sources.examples import ExampleSource


@configurable
class TfdsText(ExampleSource):
    """One document an example. Downloads the data set when it is not on disk yet.

    Args:
        name: the data set, with its config and version if need be.
        text_feature: feature that holds a document's text.
        title_feature, data_dir: as of `ExampleSource`.
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
        name: Name = gin.REQUIRED,
        text_feature: str = "text",
        title_feature: str | None = None,
        data_dir: str | None = None,
        splits: dict[str, str] | None = None,
    ):
        super().__init__(title_feature, data_dir, splits)
        self.name = name
        self.text_feature = text_feature

    @property
    def data_set(self) -> str:
        """The data set, for messages."""
        return f"TensorFlow Datasets' {self.name!r}"

    def documents(self, split: str) -> Iterator[Document]:
        """Yields a `Document` an example, in the data set's own order."""
        tfds = _library()
        builder = self._builder()
        builder.download_and_prepare()
        self._examples_of(builder, split)  # refuses a split that is not there
        # Reading one shard at a time gives the order in which the examples were written.
        examples = builder.as_dataset(
            split=self._split_there(split),
            shuffle_files=False,
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        for number, example in enumerate(tfds.as_numpy(examples)):
            title = self._title(example, split, number)
            text = self._feature(example, "text_feature")
            if not isinstance(text, bytes):
                raise self._no_text("text_feature", example)
            yield Document(title, text)

    def description(self, split: str) -> dict:
        """Returns the settings that decide the documents; where they are kept does not."""
        return {
            "source": "TfdsText",
            "name": self.name,
            "split": self._split_there(split),
            "text_feature": self.text_feature,
            "title_feature": self.title_feature,
        }

    def count(self, split: str) -> int | None:
        """Returns the number of examples, None where it is not known before the download."""
        builder = self._builder()
        return self._examples_of(builder, split) if builder.info.splits else None

    def _builder(self) -> Any:
        folder = self._folder()
        library = _library()
        try:
            return library.builder(self.name, data_dir=folder)
        except library.core.DatasetNotFoundError:
            raise ValueError(
                f"TensorFlow Datasets has no data set {self.name!r}, and there is none in "
                f"{folder or 'its own folder'}: bind TfdsText.name to one it has, or "
                "TfdsText.data_dir to the folder where yours is."
            ) from None

    def _examples_of(self, builder: Any, split: str) -> int:
        """Number of examples of a split, which has to be there."""
        try:
            return builder.info.splits[self._split_there(split)].num_examples
        except (KeyError, ValueError):
            raise self._no_split(split, builder.info.splits) from None


def _library() -> ModuleType:
    return extra_library("tensorflow_datasets", "TfdsText", "data")
