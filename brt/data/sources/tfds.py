"""A source of any TensorFlow Datasets data set with a text feature, such as PG19."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from brt.checks import Name, configurable
from brt.data.sources.base import Document
from brt.data.sources.examples import ExampleSource


@configurable
@dataclass(eq=False)
class TfdsText(ExampleSource):
    """One document per example, such as a book of pg19. Downloads a data set that is not on disk.

    Args:
        name: of the data set, with config and version.
        text_feature: feature with the text of a document.
        splits: from the name of a split to its name or slice in the data set, such as
            `{'validation': 'train[:1%]', 'train': 'train[1%:]'}`.
    """

    library = "tensorflow_datasets"

    name: Name
    text_feature: str = "text"

    @property
    def data_set(self) -> str:
        return f"TensorFlow Datasets' {self.name!r}"

    def documents(self, split: str) -> Iterator[Document]:
        builder = self._builder()
        builder.download_and_prepare()
        self._examples_of(builder, split)  # refuses an unknown split
        tfds = self._library()
        # One shard at a time, in the order in which the examples were written.
        examples = builder.as_dataset(
            split=self.original_split(split),
            shuffle_files=False,
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        for number, example in enumerate(tfds.as_numpy(examples)):
            title = self._title(example, split, number)
            text = self._feature(example, "text_feature")
            if not isinstance(text, bytes):
                raise self._wrong_type("text_feature", example)
            yield Document(title, text)

    def count(self, split: str) -> int | None:
        builder = self._builder()
        return self._examples_of(builder, split) if builder.info.splits else None

    def _builder(self) -> Any:
        folder = self._folder()
        library = self._library()
        try:
            return library.builder(self.name, data_dir=folder)
        except library.core.DatasetNotFoundError:
            raise ValueError(
                f"TensorFlow Datasets has no data set {self.name!r}, and there is none in "
                f"{folder or 'its own folder'}: bind TfdsText.name to one it has, or "
                "TfdsText.data_dir to the folder where yours is."
            ) from None

    def _examples_of(self, builder: Any, split: str) -> int:
        try:
            return builder.info.splits[self.original_split(split)].num_examples
        except (KeyError, ValueError):
            raise self._no_split(split, builder.info.splits) from None
