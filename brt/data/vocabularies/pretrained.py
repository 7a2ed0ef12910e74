"""Vocabularies of pretrained models: byte-level BPE (GPT-2, RoBERTa) and WordPiece (BERT).

Encodes by the `tokenizers` library (extra `text`). Adds no tokens around a text, and encodes names
of special tokens as text.
"""

import abc
import functools
import os
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from brt.checks import Name, configurable
from brt.data.extras import extra_library
from brt.data.vocabularies.base import (
    FileVocabulary,
    Frame,
    checked_ids,
    joint_digest,
    read_vocabulary_file,
    utf8_text,
)

PART = 2**18
"""Characters encoded at once: the library needs about 250 bytes per token."""
LARGEST_ID = 2**24 - 1
"""A file must not request gigabytes of embeddings."""


class Tokenizer(NamedTuple):
    """A tokenizer of the library; other attributes as of `Vocabulary`.

    plain: a `tokenizers.Tokenizer` that encodes names of special tokens as text.
    named: the same, but it encodes them as tokens.
    digest: sha256, in hex, of the mapping.
    may_be_cut: whether `parts` of a text have the tokens of the whole.
    """

    plain: Any
    named: Any
    size: int
    digest: str
    special_ids: dict[str, int]
    unknown_id: int | None = None
    frame: Frame = Frame()
    may_be_cut: bool = False


def highest_id(library_tokenizer: Any, path: str) -> int:
    """Returns the highest id; a `ValueError` if it is above `LARGEST_ID` or there is none."""
    highest = max(library_tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if not 0 <= highest <= LARGEST_ID:
        raise ValueError(
            f"{path} has no token, or one with an id above {LARGEST_ID:,}: copy the file again."
        )
    return highest


class TokenizerVocabulary(FileVocabulary):
    """The ids of a `Tokenizer`, which is made on first use, in every process."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "tokenizer"}

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer: ...

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
        encoding = self.tokenizer.plain.encode(text, add_special_tokens=False)
        characters = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return np.array(encoding.ids, np.int32), characters

    def encode(self, data: bytes, title: str) -> np.ndarray:
        text, encode = utf8_text(data, title), self.tokenizer.plain.encode_batch_fast
        texts = parts(text, PART) if self.tokenizer.may_be_cut else [text]
        encoded = (encode([part], add_special_tokens=False)[0].ids for part in texts)
        return np.concatenate([np.array(ids, np.int32) for ids in encoded])

    def decode(self, ids: ArrayLike) -> str:
        numbers = checked_ids(ids, self.size, self.name).tolist()
        return self.tokenizer.named.decode(numbers, skip_special_tokens=False)


@configurable
class ByteLevelBpeVocabulary(TokenizerVocabulary):
    """Byte-level BPE of GPT-2 and, with other ids, RoBERTa; lossless. Reads vocab.json, merges.txt.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
    """

    kind = "bpe"

    def __init__(self, folder: Name):
        super().__init__(folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        paths = [os.path.join(self.file, name) for name in ("vocab.json", "merges.txt")]
        binding = "ByteLevelBpeVocabulary.folder"
        contents = [read_vocabulary_file(path, "file of BPE", binding) for path in paths]
        library = extra_library("tokenizers", type(self).__name__, "text")
        try:
            tokenizer = library.Tokenizer(library.models.BPE.from_file(*paths))
        except Exception as error:  # the library raises no class of its own
            raise ValueError(
                f"{paths[0]} and merges.txt hold no byte-level BPE ({error}): bind {binding} to a "
                "folder with the published files."
            ) from None
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        special = _ids(tokenizer, "<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
        size, digest = highest_id(tokenizer, paths[0]) + 1, joint_digest(b"bpe", *contents)
        return Tokenizer(tokenizer, tokenizer, size, digest, special, may_be_cut=True)


@configurable
@dataclass(eq=False)
class WordPieceVocabulary(TokenizerVocabulary):
    """WordPiece of BERT: white space is not kept, nor case and accents with `lower_case`.

    Source: Devlin et al. 2019, arXiv:1810.04805, and its code.
    """

    lower_case: bool = True

    @property
    def name(self) -> str:
        return "wordpiece:" + "/".join(os.path.abspath(self.file).split("/")[-2:])

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        data = read_vocabulary_file(self.file, "WordPiece list", "WordPieceVocabulary.file")
        library = extra_library("tokenizers", type(self).__name__, "text")
        try:
            model = library.models.WordPiece.from_file(self.file, unk_token="[UNK]")
            tokenizer = library.Tokenizer(model)
            if (unknown := tokenizer.token_to_id("[UNK]")) is None:
                raise ValueError("it has no [UNK]")
        except Exception as error:  # the library raises no class of its own
            raise ValueError(
                f"{self.file} is not a WordPiece list of BERT's ({error}): bind "
                "WordPieceVocabulary.file to one."
            ) from None
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=self.lower_case)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece(cleanup=False)
        digest = joint_digest(f"wordpiece {self.lower_case}".encode(), data)
        special = _ids(tokenizer, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        size = highest_id(tokenizer, self.file) + 1
        return Tokenizer(tokenizer, tokenizer, size, digest, special, unknown, may_be_cut=True)


def _ids(tokenizer: Any, *names: str) -> dict[str, int]:
    ids = {name: tokenizer.token_to_id(name) for name in names}
    return {name: number for name, number in ids.items() if number is not None}


def parts(text: str, size: int) -> list[str]:
    """Cuts a text after ends of lines, `size` characters apart or more."""
    cut = re.compile(r"\S\n(?=\S)")
    cuts = []
    start = 0
    while boundary := cut.search(text, start + size):
        cuts.append(text[start : boundary.end()])
        start = boundary.end()
    return [*cuts, text[start:]]
