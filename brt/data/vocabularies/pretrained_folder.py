"""A pretrained model's vocabulary: the tokenizer.json in its Hub folder.

`tokenizers` (extra `text`) reads it. Folders without one have to be converted once by transformers.
No file outside the folder is read.
"""

import functools
import json
import os
from typing import Any

from brt.checks import Name, configurable
from brt.data.extras import MissingExtra, extra_library
from brt.data.vocabularies.base import Frame, joint_digest, read_vocabulary_file
from brt.data.vocabularies.pretrained import Tokenizer, TokenizerVocabulary, highest_id
from brt.storage.json_files import parse_json

BINDING = "PretrainedFolderVocabulary.folder"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
CONVERT = (
    "make one with transformers, by `from transformers import AutoTokenizer` and "
    "`AutoTokenizer.from_pretrained({0!r}).save_pretrained({0!r})`"
)


@configurable
class PretrainedFolderVocabulary(TokenizerVocabulary):
    """The tokenizer of a Hub folder."""

    kind = "pretrained"

    def __init__(self, folder: Name):
        super().__init__(folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        folder = self.file
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"No folder of a pretrained model is at {folder}: put its files there, or bind "
                f'{BINDING} or Corpus.vocabulary = "pretrained:FOLDER" to where they are.'
            )
        names = os.listdir(folder)
        if TOKENIZER not in names:
            raise FileNotFoundError(
                f"{folder} has no {TOKENIZER}: {CONVERT.format(folder)}, or bind Corpus.vocabulary "
                'to "bpe:FOLDER" for vocab.json and merges.txt of GPT-2 or RoBERTa, to '
                '"wordpiece:FILE" for vocab.txt of BERT.'
            )
        if SETTINGS in names:
            path = os.path.join(folder, SETTINGS)
            if "auto_map" in parse_json(_read(folder, SETTINGS), dict, path, "copy the file again"):
                raise ValueError(
                    f"{path} has auto_map: its tokenizer is a program of its own, and brt runs "
                    f"none; if its {TOKENIZER} gives the same ids, remove auto_map."
                )
        return _of_json(_read(folder, TOKENIZER), os.path.join(folder, TOKENIZER))


def _of_json(data: bytes, path: str) -> Tokenizer:
    named = _built(data.decode("utf-8", "replace"), path)
    size = highest_id(named, path) + 1  # checked first: `to_str` lists all ids below it
    keys = json.loads(data)
    for token in keys.get("added_tokens") or []:
        if named.token_to_id(token["content"]) != token["id"]:
            raise ValueError(
                f"{path} has added_tokens with id {token['id']} for {token['content']!a}, "
                f"which is token {named.token_to_id(token['content'])}: correct the id."
            )
    named.no_truncation()  # a saved tokenizer may truncate and pad
    named.no_padding()
    saved = json.loads(named.to_str())
    plain = _built(json.dumps(_without_names(saved)), path)
    plain.encode_special_tokens = True
    decides = ("added_tokens", "normalizer", "pre_tokenizer", "model")
    content = json.dumps({key: keys.get(key) for key in decides}, sort_keys=True)
    digest = joint_digest(TOKENIZER.encode(), content.encode())
    special = {token["content"]: token["id"] for token in saved["added_tokens"] if token["special"]}
    framed, empty = named.encode("x"), named.encode("").ids
    first = next((i for i, text in enumerate(framed.sequence_ids) if text == 0), 0)
    frame = Frame(tuple(empty[:first]), tuple(empty[first:]))
    return Tokenizer(
        plain, named, size, digest, special, _unknown_id(saved, named), frame, _may_be_cut(saved)
    )


def _read(folder: str, name: str) -> bytes:
    path = os.path.join(folder, name)
    if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
        raise ValueError(
            f"{path} is a link to a file outside of the folder: copy the folder with its files, "
            "as cp -rL does."
        )
    return read_vocabulary_file(path, "tokenizer's file", BINDING)


def _built(text: str, path: str) -> Any:
    library = extra_library("tokenizers", "PretrainedFolderVocabulary", "text")
    try:
        return library.Tokenizer.from_str(text)
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
