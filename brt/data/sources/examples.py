"""The base of sources that read data sets of another library: one document per example."""

import abc
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

from brt.data.extras import check_extra, extra_library
from brt.data.sources.base import Source
from brt.data.vocabularies.base import expanded

UNRECORDED = ("splits", "data_dir", "module")
"""Settings that only locate the documents."""


@dataclass(eq=False)
class ExampleSource(Source):
    """A source of examples, each a dictionary of features.

    Args:
        title_feature: feature with the title; None for titles `<split>-<number>`.
        data_dir: folder of the data sets; None for the library's.
        splits: from names of splits to different names in the data set.
    """

    library: ClassVar[str]

    title_feature: str | None = field(default=None, kw_only=True)
    data_dir: str | None = field(default=None, kw_only=True)
    splits: dict[str, str] | None = field(default=None, kw_only=True)

    def description(self, split: str) -> dict[str, Any]:
        settings = super().description(self.original_split(split))
        return {name: settings[name] for name in settings if name not in UNRECORDED}

    def check_library(self) -> None:
        """Raises if the library is not installed; does not import it, which takes seconds."""
        check_extra(self.library, type(self).__name__, "data")

    def _library(self) -> ModuleType:
        return extra_library(self.library, type(self).__name__, "data")

    @property
    @abc.abstractmethod
    def data_set(self) -> str: ...

    def _folder(self) -> str | None:
        return expanded(self.data_dir) if self.data_dir else None

    def _title(self, example: dict, split: str, number: int) -> str:
        if not self.title_feature:
            return f"{split}-{number}"
        title = self._feature(example, "title_feature")
        if not isinstance(title, bytes):
            raise self._wrong_type("title_feature", example)
        return title.decode("utf-8", "replace")

    def _feature(self, example: dict, setting: str) -> Any:
        feature = getattr(self, setting)
        if feature not in example:
            raise ValueError(
                f"{self.data_set} has no feature {feature!r}: bind {type(self).__name__}.{setting} "
                f"to one of {', '.join(sorted(example))}."
            )
        return example[feature]

    def _wrong_type(self, setting: str, example: dict, expected: str = "text") -> ValueError:
        return ValueError(
            f"Feature {getattr(self, setting)!r} of {self.data_set} does not hold {expected}: bind "
            f"{type(self).__name__}.{setting} to one that does, of {', '.join(sorted(example))}."
        )

    def _no_split(self, split: str, known: Any) -> ValueError:
        name = type(self).__name__
        return ValueError(
            f"{self.data_set} has no split {self.original_split(split)!r}: bind {name}.splits to "
            f"one of {', '.join(sorted(known))}, as in {{{split!r}: 'train'}}."
        )
