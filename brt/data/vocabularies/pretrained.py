"""Vocabularies of published encoders: byte-level BPE (GPT-2, RoBERTa) and WordPiece (BERT).

The `tokenizers` library (extra `text`) encodes. No token is added around a text, and names of
special tokens in a text are text.
"""

import abc
import functools
import os
import re
from types import ModuleType
from typing import Any

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name, configurable
from brt.data.extras import extra_library
from brt.data.vocabularies.base import (
    Vocabulary,
    checked_ids,
    expanded,
    joint_digest,
    read_vocabulary_file,
    utf8_text,
)

PART = 2**18
"""Characters that are encoded at once: the library needs about 500 bytes per token."""
LARGEST_ID = 2**24 - 1
"""The largest id of a token: a few bytes of a file must not ask for gigabytes of embeddings."""


class _Pretrained(Vocabulary):
    special_tokens: tuple[str, ...]  # those that a file may list

    @property
    @abc.abstractmethod
    def _loaded(self) -> tuple[Any, int, str]:
        """A `tokenizers.Tokenizer`, its size, and the sha256 of the files and the settings."""

    @property
    def size(self) -> int:
        return self._loaded[1]

    @property
    def fingerprint(self) -> str:
        return self._loaded[2]

    @property
    def special_ids(self) -> dict[str, int]:
        tokenizer = self._loaded[0]
        ids = {token: tokenizer.token_to_id(token) for token in self.special_tokens}
        return {token: number for token, number in ids.items() if number is not None}

    def encode(self, data: bytes, title: str) -> np.ndarray:
        tokenizer = self._loaded[0]
        ids = [library_ids(tokenizer, part) for part in parts(utf8_text(data, title), PART)]
        return np.concatenate([np.array(i, np.int32) for i in ids])

    def decode(self, ids: ArrayLike) -> str:
        checked = checked_ids(ids, self.size, self.name).tolist()
        return self._loaded[0].decode(checked, skip_special_tokens=False)


@configurable
class ByteLevelBpeVocabulary(_Pretrained):
    """Byte-level BPE of GPT-2 and, with other ids, RoBERTa; lossless. Reads vocab.json, merges.txt.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
    """

    special_tokens = ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")

    def __init__(self, folder: Name = gin.REQUIRED):
        self.folder = expanded(folder)

    @property
    def path(self) -> str:
        return self.folder

    @property
    def name(self) -> str:
        return f"bpe:{os.path.basename(os.path.normpath(self.folder))}"

    @functools.cached_property
    def _loaded(self) -> tuple[Any, int, str]:
        paths = [os.path.join(self.folder, name) for name in ("vocab.json", "merges.txt")]
        binding = "ByteLevelBpeVocabulary.folder"
        contents = [read_vocabulary_file(path, "file of BPE", binding) for path in paths]
        library = _library(type(self).__name__)
        try:
            tokenizer = library.Tokenizer(library.models.BPE.from_file(*paths))
        except Exception as error:  # the library raises no class of its own
            raise ValueError(
                f"{paths[0]} and merges.txt hold no byte-level BPE ({error}): bind {binding} to a "
                "folder with the published files."
            ) from None
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        size = library_size(tokenizer, paths[0])
        return tokenizer, size, joint_digest(b"bpe", *contents)


@configurable
class WordPieceVocabulary(_Pretrained):
    """WordPiece of BERT: white space is not kept, nor case and accents with `lower_case`.

    Source: Devlin et al. 2019, arXiv:1810.04805, and its code.

    Args:
        file: path of `vocab.txt`; `~` and variables are expanded.
        lower_case: False for cased models.
    """

    special_tokens = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

    def __init__(self, file: Name = gin.REQUIRED, lower_case: bool = True):
        self.file = expanded(file)
        self.lower_case = lower_case

    @property
    def path(self) -> str:
        return self.file

    @property
    def name(self) -> str:
        return "wordpiece:" + "/".join(os.path.abspath(self.file).split("/")[-2:])

    @property
    def unknown_id(self) -> int:
        return self._loaded[0].token_to_id("[UNK]")

    @functools.cached_property
    def _loaded(self) -> tuple[Any, int, str]:
        data = read_vocabulary_file(self.file, "WordPiece list", "WordPieceVocabulary.file")
        library = _library(type(self).__name__)
        try:
            model = library.models.WordPiece.from_file(self.file, unk_token="[UNK]")
            tokenizer = library.Tokenizer(model)
            if tokenizer.token_to_id("[UNK]") is None:
                raise ValueError("it has no [UNK]")
        except Exception as error:  # the library raises no class of its own
            raise ValueError(
                f"{self.file} is no WordPiece list of BERT's ({error}): bind "
                "WordPieceVocabulary.file to one."
            ) from None
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=self.lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece(cleanup=False)
        digest = joint_digest(f"wordpiece {self.lower_case}".encode(), data)
        return tokenizer, library_size(tokenizer, self.file), digest


def library_size(tokenizer: Any, path: str) -> int:
    """Returns one more than the highest id of a `tokenizers.Tokenizer`; `path` is for messages."""
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= highest <= LARGEST_ID:
        raise ValueError(
            f"{path} has no token, or one with an id above {LARGEST_ID:,}: copy the file again."
        )
    return highest + 1


def library_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def parts(text: str, size: int) -> list[str]:
    r"""Cuts a text into parts of at least `size` characters, at boundaries of tokens of both kinds.

    These are after a single `\n` between two characters that are not white space.
    """
    cut = re.compile(r"\S\n(?=\S)")
    cuts = []
    start = 0
    while boundary := cut.search(text, start + size):
        cuts.append(text[start : boundary.end()])
        start = boundary.end()
    return [*cuts, text[start:]]


def _library(user: str) -> ModuleType:
    return extra_library("tokenizers", user, "text")
