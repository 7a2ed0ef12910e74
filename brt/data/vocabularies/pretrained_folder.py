"""A pretrained model's vocabulary: the tokenizer in its Hub folder.

`tokenizers` (extra `text`) reads tokenizer.json, `sentencepiece` the models of T5, DeBERTa v2 and
v3, and Llama. Other folders have to be converted once by transformers. No file outside the folder
is read.
"""

import functools
import itertools
import json
import os
from typing import Any

import gin

from brt.checks import CountFrom0, Name, configurable
from brt.data.extras import MissingExtra, extra_library
from brt.data.vocabularies.base import (
    Frame,
    joint_digest,
    read_vocabulary_file,
    sentencepiece_model,
)
from brt.data.vocabularies.pretrained import Tokenizer, TokenizerVocabulary, highest_id, of_library
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
FLAGS = ("split_by_punct", "do_lower_case", "add_bos_token", "add_eos_token")
SETTINGS = Fields(
    {},
    {
        "tokenizer_class": str | None,
        **dict.fromkeys(FLAGS, bool | None),
        "extra_ids": CountFrom0 | None,
        "added_tokens_decoder": dict[str, dict],
    },
)


@configurable
class PretrainedFolderVocabulary(TokenizerVocabulary):
    """The tokenizer of a Hub folder."""

    kind = "pretrained"

    def __init__(self, folder: Name = gin.REQUIRED):
        super().__init__(folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        folder = self.file
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"No folder of a pretrained model is at {folder}: put its files there, or bind "
                f'{BINDING} or Corpus.vocabulary = "pretrained:FOLDER" to where they are.'
            )
        settings = _read_fields(folder, "tokenizer_config.json", SETTINGS)
        if "auto_map" in settings:
            raise ValueError(
                f"{folder}/tokenizer_config.json has auto_map: its tokenizer is a program of its "
                f"own, and brt runs none; {CONVERT}."
            )
        names = os.listdir(folder)
        if TOKENIZER in names:
            return _of_json(_read(folder, TOKENIZER), os.path.join(folder, TOKENIZER))
        for name in PIECES:
            if name in names:
                return _of_pieces(folder, name, settings)
        if old := sorted({"vocab.json", "vocab.txt"}.intersection(names)):
            raise ValueError(
                f"{os.path.join(folder, old[0])} is not read without a {TOKENIZER}: {CONVERT}, or "
                'bind Corpus.vocabulary = "bpe:FOLDER" (GPT-2, RoBERTa) or "wordpiece:FILE" (BERT).'
            )
        raise FileNotFoundError(
            f"{folder} has no tokenizer: it should hold {', '.join((TOKENIZER, *PIECES))}; copy it "
            f"from where the weights are, or bind {BINDING}."
        )


def _of_json(data: bytes, path: str) -> Tokenizer:
    named = _built(data.decode("utf-8", "replace"), path)
    highest_id(named, path)  # `to_str` lists all ids below it
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
    tokenizer = of_library(plain, named, path, digest, special)
    tokenizer.unknown_id = _unknown_id(saved, named)
    tokenizer.may_be_cut = _may_be_cut(saved)
    framed, empty = named.encode("x"), named.encode("").ids
    first = next((i for i, text in enumerate(framed.sequence_ids) if text == 0), 0)
    tokenizer.frame = Frame(tuple(empty[:first]), tuple(empty[first:]))
    return tokenizer


def _of_pieces(folder: str, name: str, settings: dict[str, Any]) -> Tokenizer:
    path = os.path.join(folder, name)
    data = _read(folder, name)
    model = sentencepiece_model(data, path, "copy the file again.")
    pieces = model.get_piece_size()
    family, tokens = PIECES[name]

    def piece_id(text):
        number = model.piece_to_id(text)
        return number if model.id_to_piece(number) == text else None

    sentinels = 0
    if family == "T5Tokenizer":
        sentinels = 100 if settings.get("extra_ids") is None else settings["extra_ids"]
    names = [*tokens.values(), *(f"<extra_id_{n}>" for n in reversed(range(sentinels)))]
    new = [text for text in names if piece_id(text) is None]
    added = {text: pieces + number for number, text in enumerate(new)}
    ids = {text: added.get(text, piece_id(text)) for text in _listed(folder, settings)}
    _check_family(folder, name, settings, ids)
    control = [model.unk_id(), *filter(model.is_control, range(pieces))]
    special = added | {model.id_to_piece(number): number for number in control}
    lower_case = bool(settings.get("do_lower_case"))

    def cased(text):
        return text.lower() if lower_case else text

    def spans(text):
        encoding = model.encode(cased(text), out_type="offset_mapping")
        return encoding["ids"], encoding["offsets"]

    return Tokenizer(
        encode=lambda text: model.encode(cased(text), out_type=int),
        spans=spans,
        decode=functools.partial(_decoded, model, {n: text for text, n in special.items()}),
        size=pieces + len(added),
        digest=joint_digest(b"SentencePiece", repr((lower_case, added)).encode(), data),
        special_ids=special,
        unknown_id=model.unk_id(),
        frame=_frame_of(family, settings, special),
    )


def _listed(folder: str, settings: dict[str, Any]) -> dict[str, int]:
    listed = _read_fields(folder, "added_tokens.json", dict[str, CountFrom0])
    for number, record in (settings.get("added_tokens_decoder") or {}).items():
        listed[str(record.get("content"))] = number
    return listed


def _check_family(
    folder: str, name: str, settings: dict[str, Any], ids: dict[str, int | None]
) -> None:
    """Refuses settings that a model's family lacks; `ids` are of the added tokens."""
    family, tokens = PIECES[name]
    declared = {role: settings.get(f"{role}_token") or text for role, text in tokens.items()}
    declared = {r: t.get("content") if isinstance(t, dict) else t for r, t in declared.items()}
    config = _read_fields(folder, "config.json", Fields({}, {"tokenizer_class": str | None}))
    kind = settings.get("tokenizer_class") or config.get("tokenizer_class") or family
    if (
        (kind.removesuffix("Fast"), declared) != (family, tokens)
        or settings.get("split_by_punct")
        or any(str(ids[text]) != str(number) for text, number in _listed(folder, settings).items())
    ):
        raise ValueError(
            f"{os.path.join(folder, name)} is read as {family} with {', '.join(tokens.values())}, "
            "and tokenizer_config.json, added_tokens.json or config.json has another class, other "
            f"special tokens or split_by_punct: {CONVERT}."
        )


def _frame_of(family: str, settings: dict[str, Any], ids: dict[str, int]) -> Frame:
    if family == "T5Tokenizer":
        return Frame((), (ids["</s>"],))
    if family == "DebertaV2Tokenizer":
        return Frame((ids["[CLS]"],), (ids["[SEP]"],))
    begins = settings.get("add_bos_token") is not False
    return Frame((ids["<s>"],) * begins, (ids["</s>"],) * bool(settings.get("add_eos_token")))


def _decoded(model: Any, names: dict[int, str], ids: list[int]) -> str:
    texts: list[str] = []
    for is_named, group in itertools.groupby(ids, names.__contains__):
        numbers = list(group)
        if is_named:
            texts += [names[number] for number in numbers]
        else:
            # The first piece of a run loses the space before it.
            space = bool(texts) and model.id_to_piece(numbers[0]).startswith("\u2581")
            texts.append(" " * space + model.decode(numbers))
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
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return {}
    return parse_json(_read(folder, name), expected, path, "copy the file again")


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
