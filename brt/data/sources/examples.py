"""The base of sources that read another library's data sets: a document an example."""

import abc
from typing import Any

from brt.data.sources.base import Source
from brt.data.vocabularies.base import expanded


class ExampleSource(Source):
    """A source of examples, each a dictionary of features, two of which are text and title.

    Args:
        title_feature: feature that names a document; without one, titles are `<split>-<number>`.
        data_dir: where data sets are kept, None for the library's own folder. `~` and environment
            variables are expanded.
        splits: from a split's name here to its name there, where they differ.

    Attributes:
        title_feature, data_dir, splits: as given.
    """

    def __init__(
        self, title_feature: str | None, data_dir: str | None, splits: dict[str, str] | None
    ):
        self.title_feature = title_feature
        self.data_dir = data_dir
        self.splits = dict(splits or {})

    @property
    @abc.abstractmethod
    def data_set(self) -> str:
        """The data set, for messages."""

    def _folder(self) -> str | None:
        """`data_dir` with its variables replaced; it may be the address of a bucket."""
        return expanded(self.data_dir) if self.data_dir else None

    def _split_there(self, split: str) -> str:
        """The name of a split in the data set."""
        return self.splits.get(split, split)

    def _title(self, example: dict, split: str, number: int) -> str:
        """The title of an example; numbers count from 0."""
        if not self.title_feature:
            return f"{split}-{number}"
        title = self._feature(example, "title_feature")
        if not isinstance(title, bytes):
            raise self._no_text("title_feature", example)
        return title.decode("utf-8", "replace")

    def _feature(self, example: dict, setting: str) -> Any:
        """The feature of an example that a setting names."""
        feature = getattr(self, setting)
        if feature not in example:
            raise ValueError(
                f"{self.data_set} has no feature {feature!r}: bind {type(self).__name__}.{setting} "
                f"to one of {', '.join(sorted(example))}."
            )
        return example[feature]

    def _no_text(self, setting: str, example: dict, wanted: str = "text") -> ValueError:
        """The error for a setting that names a feature of another type."""
        return ValueError(
            f"Feature {getattr(self, setting)!r} of {self.data_set} does not hold {wanted}: bind "
            f"{type(self).__name__}.{setting} to one that does, of {', '.join(sorted(example))}."
        )

    def _no_split(self, split: str, known: Any) -> ValueError:
        """The error for a split that the data set lacks; `known` are those it has."""
        name = type(self).__name__
        return ValueError(
            f"{self.data_set} has no split {self._split_there(split)!r}: bind {name}.splits to say "
            f"which of {', '.join(sorted(known))} it is, as in {{{split!r}: 'train'}}."
        )
