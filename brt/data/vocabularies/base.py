"""The base of all vocabularies: from the bytes of a document to token ids and back.

Ids run from 0 to size - 1 and all of them are scored, those of unknown text too. The id that opens
a document is `BEGIN`, which lies outside every vocabulary and has its own embedding row in the
model. Bytes and SentencePiece are here too, and the others in files of their own.
"""

import abc
import hashlib
import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import gin
import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

from brt.checks import Name, configurable
from brt.storage.regular_files import NotRegular, open_regular
from brt.token_ids import BEGIN as BEGIN


class Frame(NamedTuple):
    """The special tokens around a text that a model reads alone, by their ids."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class Vocabulary(abc.ABC):
    """Encodes the bytes of documents as token ids, and decodes ids.

    Attributes:
        is_text: whether ids stand for text; those of a task made of symbols do not.
    """

    is_text: bool = True

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of ids; every id lies in [0, size). May open the vocabulary's file."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Short text for messages and manifests."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """sha256, in hex, of whatever decides the mapping; may open the vocabulary's file.

        Two vocabularies with the same fingerprint encode every document alike.
        """

    @property
    def special_ids(self) -> dict[str, int]:
        """Names and ids of the tokens that are no piece of text, such as `<unk>`."""
        return {}

    @property
    def unknown_id(self) -> int | None:
        """The id of text the vocabulary does not know, one of the special ones.

        None where it knows all text, or refuses what it does not know.
        """
        return None

    @property
    def frame(self) -> Frame:
        """The special tokens around a text; none where a model reads texts as they are."""
        return Frame()

    @property
    def cuts_after(self) -> bytes | None:
        """Bytes after which a document may be cut and encoded in pieces; None to encode it whole.

        Empty where any cut will do.
        """
        return None

    @property
    def path(self) -> str | None:
        """Path of the file or folder the vocabulary is read from; None where there is none."""
        return None

    @abc.abstractmethod
    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Encodes one whole document.

        Args:
            data: its bytes.
            title: names it in errors.

        Returns:
            int32 (tokens,).
        """

    def spans(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the ids of a text, and where each is of it; None where that is not known.

        Returns:
            int32 (tokens,), as `encode`; int64 (tokens, 2), characters of each: the first, and
            one behind the last.
        """
        return None

    @abc.abstractmethod
    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of `ids`, integers (tokens,), as well as it can be rendered."""


@configurable
class ByteVocabulary(Vocabulary):
    """Ids are the 256 bytes: any file can be encoded, and nothing is lost."""

    size = 256
    name = "bytes"
    cuts_after = b""
    fingerprint = hashlib.sha256(b"brt vocabulary: bytes").hexdigest()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the bytes of `data` as int32 (len(data),)."""
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Returns UTF-8 text; bytes that are not UTF-8 (half a character) become U+FFFD."""
        checked = checked_ids(ids, self.size, self.name)
        return checked.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@configurable
class SentencePieceVocabulary(Vocabulary):
    """The pieces of a trained SentencePiece model.

    The file is opened when something in it is first asked for, not before, so that an experiment
    can be built and checked on a machine that does not hold it.

    Args:
        model_file: path of the `.model` file; `~` and environment variables are expanded.
    """

    def __init__(self, model_file: Name = gin.REQUIRED):
        self.model_file = expanded(model_file)
        self._loaded: tuple[SentencePieceProcessor, str] | None = None

    @property
    def path(self) -> str:
        """Path of the model."""
        return self.model_file

    @property
    def size(self) -> int:
        """Number of pieces."""
        return self._load()[0].get_piece_size()

    @property
    def name(self) -> str:
        """`sentencepiece:` and the name of the file."""
        return f"sentencepiece:{os.path.basename(self.model_file)}"

    @property
    def fingerprint(self) -> str:
        """sha256 of the model file: pieces and text normalisation are both inside."""
        return self._load()[1]

    @property
    def special_ids(self) -> dict[str, int]:
        """Unknown and control pieces; the model's own names."""
        processor = self._load()[0]
        ids = range(processor.get_piece_size())
        special = (i for i in ids if processor.is_unknown(i) or processor.is_control(i))
        return {processor.id_to_piece(i): i for i in special}

    @property
    def unknown_id(self) -> int:
        """The piece of characters that have none."""
        return self._load()[0].unk_id()

    def encode(self, data: bytes, title: str) -> np.ndarray:
        """Returns the piece ids of a whole UTF-8 document, int32 (tokens,)."""
        processor = self._load()[0]
        text = utf8_text(data, title)
        return np.array(processor.encode(text, out_type=int), np.int32)

    def decode(self, ids: ArrayLike) -> str:
        """Returns the text of the pieces, without what the model's normalisation dropped."""
        processor = self._load()[0]
        return processor.decode(checked_ids(ids, self.size, self.name).tolist())

    def _load(self) -> "tuple[SentencePieceProcessor, str]":
        """The model, and the sha256 of its file."""
        if self._loaded is None:
            self._loaded = _read_sentencepiece(self.model_file)
        return self._loaded


def checked_ids(ids: ArrayLike, size: int, name: str) -> np.ndarray:
    """Returns `ids` as an int64 array (tokens,), all of them in [0, size)."""
    given = np.asarray(ids).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(
            f"Token ids of dtype {given.dtype} are no ids of vocabulary {name!r}: give whole "
            f"numbers from 0 to {size - 1:,}."
        )
    outside = given[(given < 0) | (given >= size)]
    if len(outside):
        raise ValueError(
            f"Token id {outside[0]} is not in vocabulary {name!r} of size {size}: use the "
            "vocabulary that the ids are of."
        )
    return given.astype(np.int64)


def utf8_text(data: bytes, title: str) -> str:
    """Decodes a UTF-8 document."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Document {title!r} is not UTF-8 (byte {error.start} is "
            f"0x{data[error.start]:02x}): convert it to UTF-8, or bind Corpus.vocabulary = "
            '"bytes".'
        ) from None


def utf8_bytes(text: str, title: str) -> bytes:
    """Encodes a text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{title} holds half a character (the lone surrogate {text[error.start]!a}, at "
            f"character {error.start:,}): remove it."
        ) from None


def utf8_lines(data: bytes, title: str) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 document, each with its `\n`; one at a time, to bound memory."""
    for line in io.BytesIO(data):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            utf8_text(data, title)  # says where
            raise


def expanded(path: str) -> str:
    """Returns a path with `~` and environment variables replaced."""
    return os.path.expanduser(os.path.expandvars(path))


def read_vocabulary_file(path: str, what: str, binding: str) -> bytes:
    """Reads a vocabulary's file.

    Args:
        path: of the file, on a disk or in a bucket.
        what: what the file is to be, for messages.
        binding: the gin binding that names it, for messages.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"No {what} is at {path}: put the file there, or bind what names it to where it is, "
            f'{binding} or Corpus.vocabulary = "KIND:FILE". docs/data.md says how one is made, and '
            "docs/data.md where the published ones are."
        ) from None
    except (IsADirectoryError, NotRegular, PermissionError) as error:
        reason = error.strerror.lower() if error.strerror else "it is no regular file"
        raise type(error)(
            f"{path} cannot be read as the {what} ({reason}): bind {binding} to a readable file."
        ) from None


def _read_sentencepiece(path: str) -> "tuple[SentencePieceProcessor, str]":
    from sentencepiece import SentencePieceProcessor

    binding = "Corpus.vocabulary (or SentencePieceVocabulary.model_file)"
    data = read_vocabulary_file(path, "SentencePiece model", binding)
    not_a_model = ValueError(
        f"{path} is not a SentencePiece model ({len(data)} bytes): bind {binding} to a file made "
        "by SentencePiece's trainer."
    )
    if not data:  # the library takes an empty model for "none yet" and does not complain
        raise not_a_model
    try:
        processor = SentencePieceProcessor(model_proto=data)
    except RuntimeError:
        raise not_a_model from None
    return processor, hashlib.sha256(data).hexdigest()
