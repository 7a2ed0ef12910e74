"""Base of vocabularies, bytes, and SentencePiece models.

All ids are scored, also those of unknown text. The BOS token `BEGIN` is outside every vocabulary
and has its own embedding in a model.
"""

import abc
import functools
import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

from brt.checks import Name, configurable
from brt.storage.file_parts import FileBytes
from brt.storage.regular_files import NotRegular, open_regular
from brt.token_ids import BEGIN as BEGIN


class Frame(NamedTuple):
    """The ids of the special tokens around a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Vocabulary(abc.ABC):
    """Encodes the bytes of documents as token ids, and decodes ids.

    is_text: whether ids represent text and not the symbols of a task.
    """

    is_text: bool = True

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of ids. May open the vocabulary's file."""

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """sha256, in hex, of the mapping."""

    @property
    def special_ids(self) -> dict[str, int]:
        """Names and ids of the tokens that are not text, such as `<unk>`."""
        return {}

    @property
    def unknown_id(self) -> int | None:
        """The id of unknown text; None if there is none or it is refused."""
        return None

    @property
    def frame(self) -> Frame:
        return Frame()

    @property
    def cuts_after(self) -> bytes | None:
        """Bytes after which a text may be cut for encoding; empty for any cut, None for none."""
        return None

    @property
    def path(self) -> str | None:
        return None

    @abc.abstractmethod
    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the ids of a whole document, int32 (tokens,); `title` is for error messages."""

    def spans(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the ids of a text, int32 (tokens,), and the first and last + 1 character of each,
        int64 (tokens, 2); None if positions are unknown.
        """
        return None

    @abc.abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of ids, integers (tokens,)."""


@dataclass(eq=False)
class FileVocabulary(Vocabulary):
    """A vocabulary with a file, which is opened on first use.

    `~` and environment variables in the path are expanded.
    """

    file: Name
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        self.file = expanded(self.file)

    @property
    def path(self) -> str:
        return self.file

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.file.rstrip('/').rsplit('/', 1)[-1]}"


@configurable
class ByteVocabulary(Vocabulary):
    """The 256 bytes: any file can be encoded, without loss."""

    size = 256
    name = "bytes"
    cuts_after = b""
    fingerprint = hashlib.sha256(b"brt vocabulary: bytes").hexdigest()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def decode(self, ids: ArrayLike) -> str:
        checked = checked_ids(ids, self.size, self.name)
        return checked.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@configurable
class SentencePieceVocabulary(FileVocabulary):
    """The pieces of a trained SentencePiece model, a `.model` file."""

    kind = "sentencepiece"

    def __init__(self, model_file: Name):
        super().__init__(model_file)

    @property
    def size(self) -> int:
        return self._model[0].get_piece_size()

    @property
    def fingerprint(self) -> str:
        return self._model[1]

    @property
    def special_ids(self) -> dict[str, int]:
        processor = self._model[0]
        ids = range(processor.get_piece_size())
        special = (i for i in ids if processor.is_unknown(i) or processor.is_control(i))
        return {processor.id_to_piece(i): i for i in special}

    @property
    def unknown_id(self) -> int:
        return self._model[0].unk_id()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        text = utf8_text(data, title)
        return np.array(self._model[0].encode(text, out_type=int), np.int32)

    def decode(self, ids: ArrayLike) -> str:
        return self._model[0].decode(checked_ids(ids, self.size, self.name).tolist())

    @functools.cached_property
    def _model(self) -> "tuple[SentencePieceProcessor, str]":
        from sentencepiece import SentencePieceProcessor

        binding = "Corpus.vocabulary (or SentencePieceVocabulary.model_file)"
        data = read_vocabulary_file(self.file, "SentencePiece model", binding)
        try:
            if not data:  # the library accepts an empty model
                raise RuntimeError
            processor = SentencePieceProcessor(model_proto=data)
        except RuntimeError:
            raise ValueError(
                f"{self.file} is not a SentencePiece model ({len(data)} bytes): bind {binding} to "
                "a file made by SentencePiece's trainer."
            ) from None
        return processor, hashlib.sha256(data).hexdigest()


def joint_digest(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def checked_ids(ids: ArrayLike, size: int, name: str) -> np.ndarray:
    flat = np.asarray(ids).reshape(-1)
    if flat.size and flat.dtype.kind not in "iu":
        raise ValueError(
            f"Token ids of dtype {flat.dtype} are not ids of vocabulary {name!r}: give whole "
            f"numbers from 0 to {size - 1:,}."
        )
    outside = flat[(flat < 0) | (flat >= size)]
    if len(outside):
        raise ValueError(
            f"Token id {outside[0]} is not in vocabulary {name!r} of size {size}: use the "
            "vocabulary that the ids are of."
        )
    return flat.astype(np.int64)


def utf8_text(data: bytes, title: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Document {title!r} is not UTF-8 (byte {error.start} is "
            f"0x{data[error.start]:02x}): convert it to UTF-8, or bind Corpus.vocabulary = "
            '"bytes".'
        ) from None


def utf8_bytes(text: str, title: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{title} holds half a character (the lone surrogate {text[error.start]!a}, at "
            f"character {error.start:,}): remove it."
        ) from None


def utf8_lines(data: bytes, title: str) -> Iterator[str]:
    for line in io.BytesIO(data):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            utf8_text(data, title)  # raises with the position
            raise


def cut(data: bytes | FileBytes, after: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Yields start and bytes of parts of about `size` bytes that end with `after`."""
    start = 0
    while start < len(data):
        stop = data.find(after, min(start + size, len(data)) - len(after))
        stop = len(data) if stop < 0 else stop + len(after)
        yield start, data[start:stop]
        start = stop


def expanded(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))


def read_vocabulary_file(path: str, what: str, binding: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No {what} is at {path}: put the file there, or bind {binding} or "
            'Corpus.vocabulary = "KIND:FILE" to it. docs/data.md describes how to make one, and '
            "where the published ones are."
        ) from None
    except (IsADirectoryError, NotRegular, PermissionError) as error:
        reason = error.strerror.lower() if error.strerror else "it is not a regular file"
        raise type(error)(
            f"{path} cannot be read as the {what} ({reason}): bind {binding} to a readable file."
        ) from None
