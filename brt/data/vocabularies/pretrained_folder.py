"""The vocabulary of a pretrained model: the tokenizer in its folder of the Hugging Face Hub.

Stored texts have the ids that the model was trained with, and none around them: a decoder's `BEGIN`
has a row of its own, and what stands around a text that an encoder reads is added when it is read
(`brt/data/streams/labelled.py`). Names of special tokens in a text are text.
"""

import functools
import os

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name
from brt.data.vocabularies.base import Frame, Vocabulary, checked_ids, expanded, utf8_text
from brt.data.vocabularies.folder_tokenizers import folder_tokenizer
from brt.data.vocabularies.pretrained import PART, parts
from brt.data.vocabularies.tokenizer_contract import FolderTokenizer


@gin.configurable
class PretrainedFolderVocabulary(Vocabulary):
    """The tokenizer of a Hub folder: `tokenizer.json`, or the older files.

    Args:
        folder: holds the files; `~` and variables are expanded.

    Raises:
        FileNotFoundError, ValueError, ImportError: on first use, naming file and key.
    """

    def __init__(self, folder: Name = gin.REQUIRED):
        self.folder = expanded(folder)

    @functools.cached_property
    def tokenizer(self) -> FolderTokenizer:
        """The tokenizer; the first use opens the files."""
        return folder_tokenizer(self.folder)

    @property
    def path(self) -> str:
        """Path of the folder."""
        return self.folder

    @property
    def name(self) -> str:
        """`pretrained:` and the name of the folder."""
        return f"pretrained:{os.path.basename(os.path.normpath(self.folder))}"

    @property
    def size(self) -> int:
        """One more than the highest id; the model's own table may have further rows."""
        return self.tokenizer.size

    @property
    def fingerprint(self) -> str:
        """sha256 of what decides the ids."""
        return self.tokenizer.digest

    @property
    def special_ids(self) -> dict[str, int]:
        """Special tokens that the folder names."""
        return dict(self.tokenizer.special.values())

    @property
    def unknown_id(self) -> int | None:
        """The id of text that has no token, None where every text has some."""
        return self.tokenizer.unknown_id

    @property
    def frame(self) -> Frame:
        """The special tokens that the tokenizer puts around a text."""
        before, after = self.tokenizer.frame()
        return Frame(tuple(before), tuple(after))

    def spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids and characters; see `Vocabulary.spans`."""
        ids, characters = self.tokenizer.spans(text)
        return np.array(ids, np.int32), np.array(characters, np.int64).reshape(-1, 2)

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the ids of a whole UTF-8 document, int32 (tokens,).

        Raises:
            ValueError: `data` is not UTF-8.
        """
        text = utf8_text(data, title)
        pieces = parts(text, PART) if self.tokenizer.may_be_cut else [text]
        ids = [np.array(self.tokenizer.encode(piece), np.int32) for piece in pieces]
        return np.concatenate([np.zeros(0, np.int32), *ids])

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text, as well as the pieces tell it.

        Raises:
            ValueError: an id outside [0, size).
        """
        return self.tokenizer.decode(checked_ids(ids, self.size, self.name).tolist())
