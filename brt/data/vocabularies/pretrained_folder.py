"""The vocabulary of a pretrained model: the tokenizer in its Hub folder.

`tokenizers` (extra `text`) reads tokenizer.json, `sentencepiece` the models of T5, DeBERTa v2 and
v3, and Llama. Other folders have to be converted once by transformers. No file outside the folder
is read. Names of special tokens in a text are text; the stream of labelled documents adds a frame.
"""

import abc
import functools
import itertools
import json
import os
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
from numpy.typing import ArrayLike

from brt.checks import CountFrom0, Name, configurable
from brt.data.extras import MissingExtra, extra_library
from brt.data.vocabularies.base import (
    Frame,
    Vocabulary,
    checked_ids,
    expanded,
    joint_digest,
    read_vocabulary_file,
    sentencepiece_model,
    utf8_text,
)
from brt.data.vocabularies.pretrained import PART, library_ids, library_size, parts
from brt.storage.json_files import Fields, parse_json

BINDING = "PretrainedFolderVocabulary.folder"
TOKENIZER = "tokenizer.json"
CONVERT = (
    "open the folder with transformers' AutoTokenizer and save it again, which writes a "
    f"{TOKENIZER}"
)
PIECES: dict[str, tuple[str, dict[str, str]]] = {
    "spiece.model": ("T5Tokenizer", {"eos": "</s>"}),
    "spm.model": ("DebertaV2Tokenizer", {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}),
    "tokenizer.model": ("LlamaTokenizer", {"bos": "<s>", "eos": "</s>"}),
}
"""SentencePiece models: the tokenizer class of each, and its special tokens."""
SETTINGS = Fields(
    {},
    {
        "tokenizer_class": str | None,
        **dict.fromkeys(
            ("split_by_punct", "do_lower_case", "add_bos_token", "add_eos_token"), bool | None
        ),
        "extra_ids": CountFrom0 | None,
        "added_tokens_decoder": dict[str, dict],
    },
)
"""Fields of tokenizer_config.json."""


class HubTokenizer(abc.ABC):
    """The tokenizer of a folder; attributes as of `Vocabulary`.

    may_be_cut: whether `pretrained.parts` of a text may be encoded one by one.
    digest: sha256, in hex, of what determines the ids of a text.
    """

    size: int
    special_ids: dict[str, int]
    unknown_id: int | None
    frame: Frame
    may_be_cut: bool
    digest: str

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the same ids, and the first and last + 1 character of each."""

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids, with the names of special tokens."""


@configurable
class PretrainedFolderVocabulary(Vocabulary):
    """The tokenizer of a Hub folder.

    Args:
        folder: of the files; `~` and variables are expanded.
    """

    def __init__(self, folder: Name = gin.REQUIRED):
        self.folder = expanded(folder)

    @functools.cached_property
    def tokenizer(self) -> HubTokenizer:
        return _tokenizer_of(self.folder)

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
        return np.concatenate([np.array(self.tokenizer.encode(p), np.int32) for p in pieces])

    def decode(self, ids: ArrayLike) -> str:
        return self.tokenizer.decode(checked_ids(ids, self.size, self.name).tolist())


def _tokenizer_of(folder: str) -> HubTokenizer:
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"No folder of a pretrained model is at {folder}: put its files there, or bind "
            f'{BINDING} or Corpus.vocabulary = "pretrained:FOLDER" to where they are.'
        )
    settings = _read_fields(folder, "tokenizer_config.json", SETTINGS)
    if "auto_map" in settings:
        raise ValueError(
            f"{folder}/tokenizer_config.json has auto_map: its tokenizer is a program of its own, "
            f"and brt runs none; {CONVERT}."
        )
    names = os.listdir(folder)
    if TOKENIZER in names:
        return LibraryTokenizer(_read(folder, TOKENIZER), os.path.join(folder, TOKENIZER))
    for name in PIECES:
        if name in names:
            return PiecesTokenizer(folder, name, settings)
    if old := sorted({"vocab.json", "vocab.txt"}.intersection(names)):
        raise ValueError(
            f"{os.path.join(folder, old[0])} is not read without a {TOKENIZER}: {CONVERT}, or bind "
            'Corpus.vocabulary = "bpe:FOLDER" (GPT-2, RoBERTa) or "wordpiece:FILE" (BERT).'
        )
    raise FileNotFoundError(
        f"{folder} has no tokenizer: it should hold {', '.join((TOKENIZER, *PIECES))}; copy it "
        f"from where the weights are, or bind {BINDING}."
    )


class LibraryTokenizer(HubTokenizer):
    """A tokenizer.json, read by the `tokenizers` library.

    In `named`, a `tokenizers.Tokenizer`, names of special tokens in a text are tokens.
    """

    def __init__(self, data: bytes, path: str):
        self.named = _built(data.decode("utf-8", "replace"), path)
        keys = json.loads(data)
        for token in keys.get("added_tokens") or []:
            if self.named.token_to_id(token["content"]) != token["id"]:
                raise ValueError(
                    f"{path} has added_tokens with id {token['id']} for {token['content']!a}, "
                    f"which is token {self.named.token_to_id(token['content'])}: correct the id."
                )
        self.size = library_size(self.named, path)
        self.named.no_truncation()  # a saved tokenizer may truncate and pad
        self.named.no_padding()
        saved = json.loads(self.named.to_str())
        self._plain = _built(json.dumps(_without_names(saved)), path)
        self._plain.encode_special_tokens = True
        special = (token for token in saved["added_tokens"] if token["special"])
        self.special_ids = {token["content"]: token["id"] for token in special}
        self.unknown_id = _unknown_id(saved, self.named)
        self.may_be_cut = _may_be_cut(saved)
        framed = self.named.encode("x")
        empty = self.named.encode("").ids
        first = next((i for i, text in enumerate(framed.sequence_ids) if text == 0), 0)
        self.frame = Frame(tuple(empty[:first]), tuple(empty[first:]))
        decides = ("added_tokens", "normalizer", "pre_tokenizer", "model")
        content = json.dumps({key: keys.get(key) for key in decides}, sort_keys=True)
        self.digest = joint_digest(TOKENIZER.encode(), content.encode())

    def encode(self, text: str) -> list[int]:
        return library_ids(self._plain, text)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._plain.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: list[int]) -> str:
        return self.named.decode(ids, skip_special_tokens=False)


class PiecesTokenizer(HubTokenizer):
    """A SentencePiece model (a key of `PIECES`) with the special tokens of its family."""

    may_be_cut = False

    def __init__(self, folder: str, name: str, settings: dict[str, Any]):
        path = os.path.join(folder, name)
        family, tokens = PIECES[name]
        config = _read_fields(folder, "config.json", Fields({}, {"tokenizer_class": str | None}))
        declared = settings.get("tokenizer_class") or config.get("tokenizer_class") or family
        others = {role: settings.get(f"{role}_token") or text for role, text in tokens.items()}
        others = {
            role: other.get("content") if isinstance(other, dict) else other
            for role, other in others.items()
        }
        if (
            declared.removesuffix("Fast") != family
            or others != tokens
            or settings.get("split_by_punct")
        ):
            raise ValueError(
                f"{path} is read as {family} with {', '.join(tokens.values())}, and "
                f"tokenizer_config.json or config.json has another class, other special tokens or "
                f"split_by_punct: {CONVERT}."
            )
        data = _read(folder, name)
        self._model = sentencepiece_model(data, path, "copy the file again.")
        self._lower_case = bool(settings.get("do_lower_case"))
        pieces = self._model.get_piece_size()
        extra = settings.get("extra_ids")
        sentinels = (100 if extra is None else extra) if family == "T5Tokenizer" else 0
        special = [*tokens.values(), *(f"<extra_id_{n}>" for n in reversed(range(sentinels)))]
        added = [text for text in special if self._piece_id(text) is None]
        self._added = {text: pieces + number for number, text in enumerate(added)}
        self._check_listed(folder, path, settings)
        self.size = pieces + len(self._added)
        self.unknown_id = self._model.unk_id()
        control = [self.unknown_id, *filter(self._model.is_control, range(pieces))]
        self._names = {number: text for text, number in self._added.items()}
        self._names |= {number: self._model.id_to_piece(number) for number in control}
        self.special_ids = {text: number for number, text in self._names.items()}
        self.frame = self._frame_of(family, settings)
        self.digest = joint_digest(
            b"SentencePiece", repr((self._lower_case, self._added)).encode(), data
        )

    def _piece_id(self, text: str) -> int | None:
        number = self._model.piece_to_id(text)
        return number if self._model.id_to_piece(number) == text else None

    def _check_listed(self, folder: str, path: str, settings: dict[str, Any]) -> None:
        """Refuses added tokens that are not those of the family."""
        listed = _read_fields(folder, "added_tokens.json", dict[str, CountFrom0])
        for number, record in (settings.get("added_tokens_decoder") or {}).items():
            listed[str(record.get("content"))] = number
        for text, number in listed.items():
            if str(self._added.get(text, self._piece_id(text))) != str(number):
                raise ValueError(
                    f"{folder} gives {text!a} id {number} in tokenizer_config.json or "
                    f"added_tokens.json, which {path} does not: {CONVERT}."
                )

    def _frame_of(self, family: str, settings: dict[str, Any]) -> Frame:
        def flag(key: str, default: bool) -> bool:
            return default if settings.get(key) is None else settings[key]

        before, after = {
            "T5Tokenizer": ([], ["</s>"]),
            "DebertaV2Tokenizer": (["[CLS]"], ["[SEP]"]),
            "LlamaTokenizer": (
                ["<s>"] * flag("add_bos_token", True),
                ["</s>"] * flag("add_eos_token", False),
            ),
        }[family]
        ids = self.special_ids
        return Frame(tuple(ids[text] for text in before), tuple(ids[text] for text in after))

    def _text(self, text: str) -> str:
        return text.lower() if self._lower_case else text

    def encode(self, text: str) -> list[int]:
        return self._model.encode(self._text(text), out_type=int)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._model.encode(self._text(text), out_type="offset_mapping")
        return encoding["ids"], encoding["offsets"]

    def decode(self, ids: list[int]) -> str:
        texts: list[str] = []
        for is_named, group in itertools.groupby(ids, self._names.__contains__):
            numbers = list(group)
            if is_named:
                texts += [self._names[number] for number in numbers]
            else:
                # The first piece of a run loses the space before it.
                space = bool(texts) and self._model.id_to_piece(numbers[0]).startswith("\u2581")
                texts.append(" " * space + self._model.decode(numbers))
        return "".join(texts)


def _read(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
        raise ValueError(
            f"{path} is a link to a file outside of the folder: copy the folder with its files, "
            "as cp -rL does."
        )
    return read_vocabulary_file(path, "tokenizer's file", BINDING)


def _read_fields(folder: str, name: str, expected: Any) -> dict[str, Any]:
    """Returns the content of a JSON file; {} if there is none."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return {}
    return parse_json(_read(folder, name), expected, path, "copy the file again")


def _built(text: str, path: str) -> Any:
    from_str: Callable[[str], Any] = extra_library(
        "tokenizers", "PretrainedFolderVocabulary", "text"
    ).Tokenizer.from_str
    try:
        return from_str(text)
    except (MemoryError, MissingExtra, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust is not an Exception
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} holds no tokenizer that the tokenizers library can read ({reason[:200]}): "
            "copy the file again."
        ) from None


def _unknown_id(saved: dict, tokenizer: Any) -> int | None:
    model = saved["model"]
    if model.get("byte_fallback") or _is_byte_level(saved.get("pre_tokenizer")):
        return None
    if model["type"] == "Unigram":
        return model.get("unk_id")
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def _is_byte_level(step: dict | None) -> bool:
    if step is None:
        return False
    return step["type"] == "ByteLevel" or any(map(_is_byte_level, step.get("pretokenizers", [])))


def _without_names(saved: dict) -> dict:
    """Returns a tokenizer whose Unigram model does not find special tokens in a text.

    Their scores stay, because the lowest one is that of unknown text.
    """
    model = saved["model"]
    if model["type"] != "Unigram":
        return saved
    special = {token["content"] for token in saved["added_tokens"] if token["special"]}
    # Two noncharacters of Unicode.
    vocab = [[f"\uffff\ufffe{text}" if text in special else text, s] for text, s in model["vocab"]]
    return {**saved, "model": {**model, "vocab": vocab}}


def _may_be_cut(saved: dict) -> bool:
    step = saved.get("pre_tokenizer") or {}
    if any("\n" in token["content"] for token in saved["added_tokens"]):
        return False
    if step.get("type") == "BertPreTokenizer":
        return (saved.get("normalizer") or {}).get("type") == "BertNormalizer"
    plain = step.get("type") == "ByteLevel" and step.get("use_regex", True)
    return plain and not step["add_prefix_space"] and saved.get("normalizer") is None
