"""Settings of the tokenizer in a folder of the Hugging Face Hub.

    tokenizer_config.json, special_tokens_map.json, added_tokens.json     settings, all optional
    config.json            tells the family where the others do not

Every refusal is one sentence that names the file and the key. Nothing outside the folder is read,
because the names of all files are fixed.
"""

import json
import os
import reprlib
from typing import Any, NamedTuple

from brt.data.vocabularies.base import read_vocabulary_file

SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
MODEL = "config.json"

BINDING = "PretrainedFolderVocabulary.folder"
RESAVE = (
    "open the folder with transformers' AutoTokenizer and save it again, which writes a "
    "tokenizer.json"
)
"""What makes a folder readable whose tokenizer is not built here."""

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""What a special token is for; the keys of the files are these with `_token` behind."""

LARGEST_ID = 2**24 - 1
"""The largest id of a token; a table of all ids up to it has to fit memory."""
MOST_EXTRA = 2**16
"""The limit of extra_ids, which are made one by one."""


class AddedToken(NamedTuple):
    """A token that is found in a text before anything else.

    id: None where the files do not tell it: it is the next that is free.
    """

    text: str
    id: int | None = None
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = True


class Family(NamedTuple):
    """What a tokenizer's class decides where the files are silent.

    name: of the class, without `Fast` at its end.
    defaults: special tokens by role.
    """

    name: str
    defaults: dict[str, str]


_END_OF_TEXT = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {
    **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>"},
    **{"pad": "<pad>", "cls": "<s>", "mask": "<mask>"},
}

FAMILIES = {
    family.name: family
    for family in (
        Family("GPT2Tokenizer", _END_OF_TEXT),
        Family("GPTNeoXTokenizer", _END_OF_TEXT),
        Family("RobertaTokenizer", _ROBERTA),
        Family("BertTokenizer", _BERT),
        Family("DebertaV2Tokenizer", {**_BERT, "bos": "[CLS]", "eos": "[SEP]"}),
        Family("T5Tokenizer", {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}),
        Family("LlamaTokenizer", {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}),
        Family("Qwen2Tokenizer", {"eos": "<|endoftext|>", "pad": "<|endoftext|>"}),
    )
}
OF_MODELS = {
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "roberta": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "t5": "T5Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer",
}
"""Class of the tokenizer by `model_type` of config.json."""


class TokenizerSettings:
    """The settings files of one folder, read when it is built.

    Args:
        folder: path of the folder.

    Attributes:
        folder: as given.
        family: the class of the tokenizer; one without defaults where no file names one.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a file that is not JSON, or a key with a value of another type.
    """

    def __init__(self, folder: str):
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"No folder of a pretrained model is at {folder}: put its files there, or bind "
                f'{BINDING} or Corpus.vocabulary = "pretrained:FOLDER" to where they are.'
            )
        self.folder = folder
        self._settings = self.read(SETTINGS)
        self._special = self.read(SPECIAL_TOKENS)
        if "auto_map" in self._settings:
            raise ValueError(
                f"{self.path(SETTINGS)} has auto_map: its tokenizer is a program of its own, and "
                f"brt runs none; {RESAVE}."
            )
        self.family = self._family()

    def path(self, name: str) -> str:
        """Returns the path of a file of the folder."""
        return os.path.join(self.folder, name)

    def has(self, name: str) -> bool:
        """Returns whether the folder has a file of that name."""
        return os.path.isfile(self.path(name))

    def data(self, name: str) -> bytes:
        """Returns the content of a file of the folder.

        Raises:
            OSError: it cannot be read.
            ValueError: it is a link to a file outside of the folder.
        """
        if os.path.dirname(os.path.realpath(self.path(name))) != os.path.realpath(self.folder):
            raise ValueError(
                f"{self.path(name)} is a link to a file outside of the folder: copy the folder "
                "with its files, as cp -rL does."
            )
        return read_vocabulary_file(self.path(name), "tokenizer's file", BINDING)

    def read(self, name: str) -> dict[str, Any]:
        """Returns the keys of a JSON file of the folder; none where there is no such file.

        Raises:
            ValueError: the file is not JSON, or holds no keys.
        """
        if not self.has(name):
            return {}
        return json_keys(self.data(name), self.path(name))

    def choice(self, key: str, default: bool) -> bool:
        """Returns a yes or no of tokenizer_config.json; null is the default.

        Raises:
            ValueError: the value is neither.
        """
        value = self._settings.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(
                f"{self.path(SETTINGS)} has {key} = {shown(value)}: it must be true or false."
            )
        return value

    def refuse(self, key: str, reason: str) -> None:
        """Refuses a key of tokenizer_config.json that is set to anything but null or false.

        Raises:
            ValueError: it is set.
        """
        if self._settings.get(key) not in (None, False):
            raise ValueError(
                f"{self.path(SETTINGS)} has {key} = {shown(self._settings[key])}, {reason}: "
                f"{RESAVE}."
            )

    def roles(self) -> dict[str, AddedToken]:
        """Returns the special tokens that the files name, or else those of the family.

        Raises:
            ValueError: a token that is neither text nor a record with its `content`.
        """
        found = {}
        for role in ROLES:
            key = f"{role}_token"
            for name, keys in ((SETTINGS, self._settings), (SPECIAL_TOKENS, self._special)):
                if key in keys:
                    if keys[key] is not None:
                        found[role] = self._token(keys[key], key, name)
                    break
            else:
                if role in self.family.defaults:
                    lstrip = role == "mask" and self.family.name == "RobertaTokenizer"
                    found[role] = AddedToken(self.family.defaults[role], lstrip=lstrip)
        return found

    def names_role(self, role: str) -> str | None:
        """Returns the file that names the special token of a role; None where none does."""
        for name, keys in ((SETTINGS, self._settings), (SPECIAL_TOKENS, self._special)):
            if keys.get(f"{role}_token") is not None:
                return name
        return None

    def added_tokens(self) -> list[AddedToken]:
        """Returns the tokens that are added to the vocabulary's own, those with ids by their ids.

        Raises:
            ValueError: an id that is none, or twice the same; a token as of `roles`.
        """
        found: dict[str, AddedToken] = {}
        listed = self._settings.get("added_tokens_decoder")
        if listed is not None:
            self._check_keys(listed, "added_tokens_decoder", SETTINGS)
            for text_of_id, record in listed.items():
                token = self._token(record, f"added_tokens_decoder.{text_of_id}", SETTINGS)
                number = self._id(text_of_id, "added_tokens_decoder", SETTINGS)
                found[token.text] = token._replace(id=number)
        for text, number in self.read(ADDED_TOKENS).items():
            if text not in found:
                found[text] = AddedToken(text, self._id(number, text, ADDED_TOKENS))
        ids = [token.id for token in found.values()]
        if len(set(ids)) < len(ids):
            twice = next(number for number in ids if ids.count(number) > 1)
            raise ValueError(
                f"{self.folder} gives id {twice} to two tokens (added_tokens_decoder of "
                f"{SETTINGS}, and {ADDED_TOKENS}): correct one of them."
            )
        tokens = sorted(found.values(), key=lambda token: token.id or 0)
        for token in self._without_ids():
            if token.text not in found:
                found[token.text] = token
                tokens.append(token)
        return tokens

    def _without_ids(self) -> list[AddedToken]:
        """Special tokens that the files name without an id."""
        further = []
        key = "additional_special_tokens"
        for name, keys in ((SETTINGS, self._settings), (SPECIAL_TOKENS, self._special)):
            listed = keys.get(key)
            if listed is None:
                continue
            if not isinstance(listed, list):
                raise ValueError(
                    f"{self.path(name)} has {key} = {shown(listed)}: it must be a list."
                )
            further += [self._token(token, key, name) for token in listed]
        return [*self.roles().values(), *further]

    def count(self, key: str, default: int) -> int:
        """Returns a number of tokenizer_config.json.

        Raises:
            ValueError: the value is no number from 0 to `MOST_EXTRA`.
        """
        value = self._settings.get(key)
        return default if value is None else self._id(value, key, SETTINGS, MOST_EXTRA)

    def _family(self) -> Family:
        name = self._text(self._settings, "tokenizer_class", SETTINGS)
        if name is None:
            model = self.read(MODEL)
            name = self._text(model, "tokenizer_class", MODEL)
            name = name or OF_MODELS.get(self._text(model, "model_type", MODEL) or "", "")
        return FAMILIES.get(name.removesuffix("Fast"), Family(name, {}))

    def _text(self, keys: dict, key: str, name: str) -> str | None:
        value = keys.get(key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.path(name)} has {key} = {shown(value)}: it must be a text.")
        return value

    def _check_keys(self, value: Any, key: str, name: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(
                f"{self.path(name)} has {key} of type {type(value).__name__}: it must hold keys."
            )

    def _id(self, value: Any, key: str, name: str, most: int = LARGEST_ID) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            is_number = len(value) <= len(str(LARGEST_ID))
        if not is_number or not 0 <= int(value) <= most:
            raise ValueError(
                f"{self.path(name)} has {shown(value)} at {shown(key)}: it must be a whole number "
                f"from 0 to {most:,}."
            )
        return int(value)

    def _token(self, value: Any, key: str, name: str) -> AddedToken:
        record = {"content": value} if isinstance(value, str) else value
        if not isinstance(record, dict) or not isinstance(record.get("content"), str):
            raise ValueError(
                f"{self.path(name)} has {key} = {shown(value)}: it must be a token, a text "
                "or a record with its content."
            )
        if not record["content"]:
            raise ValueError(f"{self.path(name)} has {key} without a text: remove it.")
        flags = ("lstrip", "rstrip", "single_word", "normalized")
        for flag in flags:
            if not isinstance(record.get(flag, False), bool):
                raise ValueError(
                    f"{self.path(name)} has {key}.{flag} = {shown(record[flag])}: it must be "
                    "true or false."
                )
        special = record.get("special", True) is not False
        found = {flag: record[flag] for flag in flags if flag in record}
        return AddedToken(record["content"], special=special, **found)


def shown(value: Any) -> str:
    """Returns a value as an error shows it, shortened."""
    return reprlib.repr(value)


def check_ids(vocab: dict[str, Any], path: str) -> None:
    """Refuses a vocabulary of which an id is none, too large, or of two tokens.

    Args:
        vocab: from each token to its id.
        path: of its file, for errors.

    Raises:
        ValueError: naming the token.
    """
    tokens: dict[int, str] = {}
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number <= LARGEST_ID:
            raise ValueError(
                f"{path} gives {shown(token)} the id {shown(number)}: ids are whole numbers from "
                f"0 to {LARGEST_ID:,}. Copy the file again."
            )
        if number in tokens:
            raise ValueError(
                f"{path} gives id {number} to {shown(tokens[number])} and {shown(token)}: copy "
                "the file again."
            )
        tokens[number] = token


def json_keys(data: bytes, path: str) -> dict[str, Any]:
    """Returns the keys of a JSON file.

    Args:
        data: its content.
        path: names it in errors.

    Raises:
        ValueError: it is not JSON, or holds no keys.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): copy the file again.") from None
    if b"\\ud" in data.lower():  # half a character, which no text holds
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{path} holds text that is none ({error.reason}): copy the file again."
            ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__} and no keys: copy the file again.")
    return content
