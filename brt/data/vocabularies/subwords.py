"""SubwordTextEncoder, the invertible subwords of Tensor2Tensor (STE in Table 5 of Block-Recurrent).

The encoder is a deprecated part of TensorFlow Datasets (extra `data`), imported when used.
"""

import functools
import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import configurable
from brt.data.extras import check_extra, extra_library
from brt.data.vocabularies.base import FileVocabulary, checked_ids, read_vocabulary_file, utf8_text

SUFFIX = ".subwords"
LIBRARY = "tensorflow_datasets", "SubwordVocabulary", "data"


@configurable
class SubwordVocabulary(FileVocabulary):
    """The subwords of a file made by SubwordTextEncoder; lossless.

    Ids: 0 is padding, then the subwords, then 256 bytes. The name of the file ends in `.subwords`.
    """

    kind = "subwords"

    def check_library(self) -> None:
        check_extra(*LIBRARY)

    @property
    def special_ids(self) -> dict[str, int]:
        return {"<pad>": 0}

    @property
    def size(self) -> int:
        lines = self._content.removesuffix(b"\n").split(b"\n")  # subwords may hold other line ends
        return 1 + sum(not line.startswith(b"### ") for line in lines) + 256

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._content).hexdigest()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        return np.array(self._encoder.encode(utf8_text(data, title)), np.int32)

    def decode(self, ids: ArrayLike) -> str:
        checked = checked_ids(ids, self.size, self.name)
        # The library accepts padding at the end only.
        return self._encoder.decode(checked[checked > 0].tolist())

    @functools.cached_property
    def _content(self) -> bytes:
        content = read_vocabulary_file(self.file, "file of subwords", "SubwordVocabulary.file")
        if not self.file.endswith(SUFFIX) or not content.startswith(b"### SubwordTextEncoder"):
            raise ValueError(
                f"{self.file} is not a {SUFFIX} file that SubwordTextEncoder made: bind "
                "SubwordVocabulary.file to one."
            )
        return content

    @functools.cached_property
    def _encoder(self) -> Any:
        self._content  # noqa: B018  (checks the file)
        return encoder_class().load_from_file(self.file.removesuffix(SUFFIX))


def encoder_class() -> Any:
    library = extra_library(*LIBRARY)
    return library.deprecated.text.SubwordTextEncoder
