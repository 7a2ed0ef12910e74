"""Tokenizers of Hub folders: tokenizer.json, or else a SentencePiece model.

`tokenizers` (extra `text`) reads tokenizer.json, `sentencepiece` the models of T5 (spiece.model),
DeBERTa v2 and v3 (spm.model) and Llama (tokenizer.model). Other folders have to be converted once
by transformers. No file outside the folder is read.
"""

import abc
import json
import os
from collections.abc import Callable
from typing import Any

from brt.data.extras import MissingExtra, extra_library
from brt.data.vocabularies.base import (
    Frame,
    joint_digest,
    read_vocabulary_file,
    sentencepiece_model,
)
from brt.data.vocabularies.tokenizer_limits import check_id, check_tokenizer, json_keys, shown

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
PIECES = {
    "spiece.model": ("T5Tokenizer", {"eos": "</s>"}),
    "spm.model": ("DebertaV2Tokenizer", {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}),
    "tokenizer.model": ("LlamaTokenizer", {"bos": "<s>", "eos": "</s>"}),
}
"""SentencePiece models: the tokenizer class of each, and its special tokens."""
OLD_FILES = ("vocab.json", "vocab.txt")
BINDING = "PretrainedFolderVocabulary.folder"
CONVERT = (
    "open the folder with transformers' AutoTokenizer and save it again, which writes a "
    f"{TOKENIZER}"
)
MOST_SENTINELS = 2**16


class HubTokenizer(abc.ABC):
    """The tokenizer of a folder; names of special tokens in a text are text.

    Attributes:
        size: one more than the highest id.
        special_ids: special tokens and their ids.
        unknown_id: of unknown text; None if every text has ids.
        frame: the special tokens around a text.
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
    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text."""

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the same ids, and the first and last + 1 character of each."""

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids, with the names of special tokens."""


def hub_tokenizer(folder: str) -> HubTokenizer:
    """Builds the tokenizer of a folder."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"No folder of a pretrained model is at {folder}: put its files there, or bind "
            f'{BINDING} or Corpus.vocabulary = "pretrained:FOLDER" to where they are.'
        )
    settings = _read_keys(folder, SETTINGS)
    if "auto_map" in settings:
        raise ValueError(
            f"{folder}/{SETTINGS} has auto_map: its tokenizer is a program of its own, and brt "
            f"runs none; {CONVERT}."
        )
    if _has(folder, TOKENIZER):
        return LibraryTokenizer(_read(folder, TOKENIZER), os.path.join(folder, TOKENIZER))
    for name in PIECES:
        if _has(folder, name):
            return PiecesTokenizer(folder, name, settings)
    if old := next((name for name in OLD_FILES if _has(folder, name)), None):
        raise ValueError(
            f"{os.path.join(folder, old)} is not read without a {TOKENIZER}: {CONVERT}, or bind "
            'Corpus.vocabulary = "bpe:FOLDER" (GPT-2, RoBERTa) or "wordpiece:FILE" (BERT).'
        )
    raise FileNotFoundError(
        f"{folder} has no tokenizer: it should hold {', '.join((TOKENIZER, *PIECES))}; copy it "
        f"from where the weights are, or bind {BINDING}."
    )


class LibraryTokenizer(HubTokenizer):
    """A tokenizer.json, read by the `tokenizers` library.

    Args:
        data: content of the file.
        path: for messages.

    Attributes:
        named: the `tokenizers.Tokenizer` in which names of special tokens in a text are tokens.
    """

    def __init__(self, data: bytes, path: str):
        keys = json_keys(data, path)
        check_tokenizer(keys, path)
        self.named = _built(data.decode("utf-8"), path)
        for token in keys.get("added_tokens") or []:
            if self.named.token_to_id(token["content"]) != token["id"]:
                raise ValueError(
                    f"{path} has added_tokens with id {token['id']} for "
                    f"{shown(token['content'])}, which is token "
                    f"{self.named.token_to_id(token['content'])}: correct the id."
                )
        self.named.no_truncation()  # a saved tokenizer may truncate and pad
        self.named.no_padding()
        saved = json.loads(self.named.to_str())
        self._plain = _built(json.dumps(_without_names(saved)), path)
        self._plain.encode_special_tokens = True
        ids = self.named.get_vocab(with_added_tokens=True)
        if not ids:
            raise ValueError(f"{path} has no token: copy the file again.")
        self.size = max(ids.values()) + 1
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
        return self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._plain.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: list[int]) -> str:
        return self.named.decode(ids, skip_special_tokens=False)


class PiecesTokenizer(HubTokenizer):
    """A SentencePiece model with the special tokens of its family.

    Args:
        folder: of the model.
        name: of the model's file, a key of `PIECES`.
        settings: of tokenizer_config.json.
    """

    may_be_cut = False

    def __init__(self, folder: str, name: str, settings: dict[str, Any]):
        path = os.path.join(folder, name)
        self._settings, self._settings_path = settings, os.path.join(folder, SETTINGS)
        family, roles = PIECES[name]
        declared = settings.get("tokenizer_class") or _read_keys(folder, "config.json").get(
            "tokenizer_class"
        )
        if declared is not None and str(declared).removesuffix("Fast") != family:
            raise ValueError(
                f"{path} is of tokenizer_class {shown(declared)} ({SETTINGS} or config.json), and "
                f"brt reads {family} from it: {CONVERT}."
            )
        if settings.get("split_by_punct"):
            raise ValueError(f"{self._settings_path} has split_by_punct: {CONVERT}.")
        data = _read(folder, name)
        self._processor = sentencepiece_model(data, path, "copy the file again.")
        self._lower_case = self._flag("do_lower_case", False)
        names = {role: self._token(f"{role}_token", text) for role, text in roles.items()}
        pieces = self._processor.get_piece_size()
        self._added = self._added_tokens(folder, path, family, [*names.values()])
        self._names = {number: text for text, number in self._added.items()}
        self.size = max([pieces, *(number + 1 for number in self._added.values())])
        self.unknown_id = self._processor.unk_id()
        control = [self.unknown_id, *filter(self._processor.is_control, range(pieces))]
        self._names |= {number: self._processor.id_to_piece(number) for number in control}
        self.special_ids = {text: number for number, text in self._names.items()}
        before, after = ["cls"], ["sep"]
        if family == "T5Tokenizer":
            before, after = [], ["eos"]
        if family == "LlamaTokenizer":
            before = ["bos"] * self._flag("add_bos_token", True)
            after = ["eos"] * self._flag("add_eos_token", False)
        ids = [tuple(self.special_ids[names[role]] for role in part) for part in (before, after)]
        self.frame = Frame(*ids)
        self.digest = joint_digest(
            b"SentencePiece", repr((self._lower_case, self._added)).encode(), data
        )

    def _flag(self, key: str, default: bool) -> bool:
        value = self._settings.get(key)
        if value is not None and not isinstance(value, bool):
            raise ValueError(
                f"{self._settings_path} has {key} = {shown(value)}: it must be true or false."
            )
        return default if value is None else value

    def _token(self, key: str, default: str) -> str:
        value = self._settings.get(key)
        content = value.get("content") if isinstance(value, dict) else value
        if content is None and value is None:
            return default
        if not isinstance(content, str) or not content:
            raise ValueError(
                f"{self._settings_path} has {key} = {shown(value)}: it must be a token, a text "
                "or an object with its content."
            )
        return content

    def _added_tokens(
        self, folder: str, path: str, family: str, special: list[str]
    ) -> dict[str, int]:
        """Returns the tokens that are not pieces of the model, and their ids."""
        listed = _listed_tokens(folder, self._settings)
        pieces = self._processor.get_piece_size()
        added = {}
        for text, number in sorted(listed.items(), key=lambda item: item[1]):
            piece = self._processor.piece_to_id(text)
            expected = piece if self._processor.id_to_piece(piece) == text else None
            if (number != expected) if expected is not None else number < pieces:
                raise ValueError(
                    f"{folder} gives {shown(text)} id {number} in {SETTINGS} or added_tokens.json, "
                    f"and {path} has another piece or id for it: copy the files again."
                )
            if expected is None:
                added[text] = number
        if len(set(added.values())) < len(added):
            raise ValueError(
                f"{folder} gives one id to two tokens of {SETTINGS} and added_tokens.json: "
                "copy the files again."
            )
        if family == "T5Tokenizer":
            count = self._settings.get("extra_ids")
            count = 100 if count is None else count
            check_id(count, "extra_ids", self._settings_path, MOST_SENTINELS)
            special = [*special, *(f"<extra_id_{n}>" for n in reversed(range(count)))]
        for text in special:
            piece = self._processor.piece_to_id(text)
            if text not in added and self._processor.id_to_piece(piece) != text:
                added[text] = max([pieces, *(number + 1 for number in added.values())])
        return added

    def _text(self, text: str) -> str:
        return text.lower() if self._lower_case else text

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(self._text(text), out_type=int)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._processor.encode(self._text(text), out_type="offset_mapping")
        return encoding["ids"], encoding["offsets"]

    def decode(self, ids: list[int]) -> str:
        texts: list[str] = []
        run: list[int] = []
        for number in [*ids, None]:
            if number is not None and number not in self._names:
                run.append(number)
                continue
            if run:
                # The first piece of a run loses the space before it.
                space = self._processor.id_to_piece(run[0]).startswith("\u2581")
                texts.append(" " * bool(texts and space) + self._processor.decode(run))
                run = []
            if number is not None:
                texts.append(self._names[number])
        return "".join(texts)


def _listed_tokens(folder: str, settings: dict[str, Any]) -> dict[str, int]:
    """Returns the added tokens that the files list, and their ids."""
    path = os.path.join(folder, SETTINGS)
    added = _read_keys(folder, "added_tokens.json")
    listed = {
        text: check_id(number, text, os.path.join(folder, "added_tokens.json"))
        for text, number in added.items()
    }
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ValueError(f"{path} has added_tokens_decoder = {shown(decoder)}: it must hold keys.")
    for key, record in decoder.items():
        content = record.get("content") if isinstance(record, dict) else None
        if not isinstance(content, str) or not content or not key.isascii() or not key.isdigit():
            raise ValueError(
                f"{path} has added_tokens_decoder.{shown(key)} = {shown(record)}: it must be a "
                "token with its content, under its id."
            )
        listed[content] = check_id(int(key[:10]), content, path)
    return listed


def _has(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name))


def _read(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
        raise ValueError(
            f"{path} is a link to a file outside of the folder: copy the folder with its files, "
            "as cp -rL does."
        )
    return read_vocabulary_file(path, "tokenizer's file", BINDING)


def _read_keys(folder: str, name: str) -> dict[str, Any]:
    if not _has(folder, name):
        return {}
    return json_keys(_read(folder, name), os.path.join(folder, name))


def _built(text: str, path: str) -> Any:
    """Returns a `tokenizers.Tokenizer`; refuses a file that the library cannot read."""
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
