"""SubwordTextEncoder, the invertible subwords of Tensor2Tensor and Table 5's row STE.

TensorFlow Datasets keeps the encoder as deprecated: `pip install -e ".[data]"`. It and TensorFlow
are imported when text is encoded, in preparation, not to know the size or the fingerprint.
"""

import functools
import hashlib

import gin
import numpy as np

from brt.data.extras import extra_library
from brt.data.vocabularies.base import checked_ids, expanded, read_vocabulary_file, utf8_text

SUFFIX = ".subwords"


@gin.configurable
class SubwordVocabulary:
    """The subwords of a file made by SubwordTextEncoder; any text can be encoded and comes back.

    Ids are the encoder's: 0 is padding, which no text gives, then the subwords, then 256 bytes.

    Args:
        file: path of the file, whose name ends in `.subwords`; `~` and variables are expanded.

    Raises:
        FileNotFoundError, ValueError, ImportError: on first use.
    """

    unknown_id = None
    special_ids = {"<pad>": 0}

    def __init__(self, file: str = gin.REQUIRED):
        self.file = expanded(file)

    @property
    def size(self) -> int:
        """Number of ids, padding and bytes included."""
        lines = self._content.decode("utf-8").splitlines()
        return 1 + sum(not line.startswith("### ") for line in lines) + 256

    @property
    def name(self) -> str:
        """`subwords:` and the name of the file."""
        return f"subwords:{self.file.rsplit('/', 1)[-1]}"

    @property
    def fingerprint(self) -> str:
        """sha256 of the file."""
        return hashlib.sha256(self._content).hexdigest()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Ids of a whole UTF-8 document, int32 (tokens,).

        Raises:
            ValueError: `data` is not UTF-8.
        """
        return np.array(self._encoder.encode(utf8_text(data, title)), np.int32)

    def decode(self, ids) -> str:
        """The text; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: an id outside [0, size).
        """
        ids = checked_ids(ids, self.size, self.name)
        return self._encoder.decode(ids[ids > 0].tolist())  # which takes padding at the end only

    @functools.cached_property
    def _content(self):
        content = read_vocabulary_file(self.file, "file of subwords", "SubwordVocabulary.file")
        if not self.file.endswith(SUFFIX) or not content.startswith(b"### SubwordTextEncoder"):
            raise ValueError(f"{self.file} is not a {SUFFIX} file that SubwordTextEncoder made")
        return content

    @functools.cached_property
    def _encoder(self):
        self._content  # noqa: B018  (says what is wrong with the file)
        return encoder_class().load_from_file(self.file.removesuffix(SUFFIX))


def encoder_class():
    """The library's `SubwordTextEncoder`.

    Raises:
        MissingExtra: TensorFlow Datasets is not installed.
    """
    library = extra_library("tensorflow_datasets", "SubwordVocabulary", "data")
    return library.deprecated.text.SubwordTextEncoder
