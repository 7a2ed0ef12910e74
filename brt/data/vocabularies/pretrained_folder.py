"""The vocabulary of a pretrained model: the tokenizer in its Hub folder.

Stored texts have no special tokens: `BEGIN` has its own embedding, and the stream of labelled
documents adds the frame of an encoder.
"""

import functools
import os

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name, configurable
from brt.data.vocabularies.base import Frame, Vocabulary, checked_ids, expanded, utf8_text
from brt.data.vocabularies.hub_tokenizers import HubTokenizer, hub_tokenizer
from brt.data.vocabularies.pretrained import PART, parts


@configurable
class PretrainedFolderVocabulary(Vocabulary):
    """The tokenizer of a Hub folder; see `hub_tokenizers`.

    Args:
        folder: of the files; `~` and variables are expanded.
    """

    def __init__(self, folder: Name = gin.REQUIRED):
        self.folder = expanded(folder)

    @functools.cached_property
    def tokenizer(self) -> HubTokenizer:
        """The tokenizer; the first use opens the files."""
        return hub_tokenizer(self.folder)

    @property
    def path(self) -> str:
        return self.folder

    @property
    def name(self) -> str:
        return f"pretrained:{os.path.basename(os.path.normpath(self.folder))}"

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def fingerprint(self) -> str:
        return self.tokenizer.digest

    @property
    def special_ids(self) -> dict[str, int]:
        return self.tokenizer.special_ids

    @property
    def unknown_id(self) -> int | None:
        return self.tokenizer.unknown_id

    @property
    def frame(self) -> Frame:
        return self.tokenizer.frame

    def spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids, characters = self.tokenizer.spans(text)
        return np.array(ids, np.int32), np.array(characters, np.int64).reshape(-1, 2)

    def encode(self, data: bytes, title: str) -> np.ndarray:
        text = utf8_text(data, title)
        pieces = parts(text, PART) if self.tokenizer.may_be_cut else [text]
        ids = [np.array(self.tokenizer.encode(piece), np.int32) for piece in pieces]
        return np.concatenate([np.zeros(0, np.int32), *ids])

    def decode(self, ids: ArrayLike) -> str:
        return self.tokenizer.decode(checked_ids(ids, self.size, self.name).tolist())
