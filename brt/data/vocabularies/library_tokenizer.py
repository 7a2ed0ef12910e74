"""Tokenizers of a folder that the `tokenizers` library computes.

tokenizer.json              whatever it says
vocab.json, merges.txt      byte-level BPE of GPT-2 and RoBERTa
vocab.txt                   WordPiece of BERT
"""

import json
import re
from types import ModuleType
from typing import Any

from brt.data.extras import MissingExtra, extra_library
from brt.data.vocabularies.tokenizer_contract import (
    TOKENIZER,
    Encoded,
    FolderTokenizer,
    digest_of,
    unknown_family,
)
from brt.data.vocabularies.tokenizer_settings import (
    ADDED_TOKENS,
    RESAVE,
    SETTINGS,
    AddedToken,
    TokenizerSettings,
    check_ids,
    json_keys,
    shown,
)

BPE = ("vocab.json", "merges.txt")
WORDPIECE = "vocab.txt"
NEEDED_BY = "PretrainedFolderVocabulary"


class LibraryTokenizer(FolderTokenizer):
    """A tokenizer of the `tokenizers` library.

    Args:
        settings: of the folder.
        tokenizer: a `tokenizers.Tokenizer`.
        digest: see `FolderTokenizer`.
        source: file that it was made from, for errors.
    """

    def __init__(self, settings: TokenizerSettings, tokenizer: Any, digest: str, source: str):
        # A saved tokenizer may cut and fill up what it is given.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        parts = json.loads(tokenizer.to_str())
        self._named = tokenizer
        plain = json.dumps(_without_names(parts))
        self._plain = _built(lambda: _library().Tokenizer.from_str(plain), settings.path(source))
        self._plain.encode_special_tokens = True
        ids = tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise ValueError(f"{settings.path(source)} has no token: copy the file again.")
        self.size = max(ids.values()) + 1
        self.count = len(ids)
        self.special = {}
        for role, token in settings.roles().items():
            number = tokenizer.token_to_id(token.text)
            if number is not None:
                self.special[role] = token.text, number
            elif name := settings.names_role(role):
                raise ValueError(
                    f"{settings.path(name)} has {role}_token = {shown(token.text)}, a token that "
                    f"{source} does not have: correct the one or the other."
                )
        self.unknown_id = _unknown_id(parts, tokenizer)
        self.may_be_cut = _may_be_cut(parts)
        self.digest = digest

    def encode(self, text: str) -> list[int]:
        return self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = self._plain.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def read(self, text: str, second: str | None = None, special: bool = True) -> Encoded:
        found = self._named.encode(text, second, add_special_tokens=special)
        return Encoded(found.ids, found.offsets, found.type_ids, found.sequence_ids)

    def decode(self, ids: list[int]) -> str:
        return self._named.decode(ids, skip_special_tokens=False)


def _library() -> ModuleType:
    return extra_library("tokenizers", NEEDED_BY, "text")


def of_tokenizer_file(settings: TokenizerSettings) -> LibraryTokenizer:
    """Builds what a tokenizer.json says.

    Raises:
        ValueError, ImportError: as `folder_tokenizer`.
    """
    data = settings.data(TOKENIZER)
    path = settings.path(TOKENIZER)
    keys = json_keys(data, path)
    _check_size(keys, path)
    tokenizer = _built(lambda: _library().Tokenizer.from_str(data.decode("utf-8")), path)
    for token in keys.get("added_tokens") or []:
        if tokenizer.token_to_id(token["content"]) != token["id"]:
            raise ValueError(
                f"{path} has added_tokens with id {token['id']} for {shown(token['content'])}, "
                f"which is token {tokenizer.token_to_id(token['content'])}: correct the id."
            )
    decides = ("added_tokens", "normalizer", "pre_tokenizer", "model")
    content = json.dumps({key: keys.get(key) for key in decides}, sort_keys=True)
    return LibraryTokenizer(settings, tokenizer, digest_of(TOKENIZER, content), TOKENIZER)


MOST_GROWTH = 1_000
"""Characters that one character of a text may become in a step; published tokenizers make 3."""
STEPS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Steps of a tokenizer.json, and the key of the parts of one that is a sequence."""


def _check_size(keys: dict[str, Any], path: str) -> None:
    """Refuses ids too large for a table, and steps that make a text many times as long.

    What is of another type than the library expects is left to the library.
    """
    model, added = keys.get("model"), keys.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        check_ids(vocab, path)
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            check_ids({str(token.get("content")): token.get("id")}, path)
    for name, parts in STEPS.items():
        if (growth := _growth(_flat(keys.get(name), parts))) > MOST_GROWTH:
            raise ValueError(
                f"{path} has a {name} that makes {growth:,.0f} characters and more of one: it is "
                "no tokenizer to be used. Copy the file again, from where the weights are."
            )


def _flat(step: Any, parts: str) -> list[dict]:
    """Returns the steps of a sequence, and of sequences in it, in their order."""
    found, todo = [], [step]
    while todo:
        step = todo.pop()
        inner = step.get(parts) if isinstance(step, dict) else None
        if isinstance(inner, list):
            todo += reversed(inner)
        elif isinstance(step, dict):
            found.append(step)
    return found


def _growth(steps: list[dict]) -> float:
    """Returns how many characters steps can make of one, or put before a text."""
    # From the last step back: characters that each character at its input becomes in the end.
    ends: dict[str, float] = {}
    others = most = 1.0
    for step in reversed(steps):
        content = step.get("content", step.get("prepend"))
        after = sum(ends.get(c, others) for c in content) if isinstance(content, str) else 0.0
        pattern = step.get("pattern")
        replaced = pattern.get("String") if isinstance(pattern, dict) else None
        if step.get("type") == "Prepend":
            most = max(most, after)
        elif step.get("type") != "Replace":
            # It may make any character of any other; bytes become two, and a text its copies.
            copies = str(step.get("single")).count("'Sequence'")
            copies = max(copies, str(step.get("pair")).count("'Sequence'") - 1)
            factor = 2.0 if step.get("type") == "ByteLevel" else max(copies, 1)
            ends, others = {}, max([others, *ends.values()]) * factor
        elif isinstance(replaced, str) and replaced:
            each = after / len(replaced)
            ends |= {c: max(ends.get(c, others), each) for c in replaced}
        else:  # an expression may match any character
            kept = others if _may_match_nothing(pattern) else 0.0
            ends, others = {}, max([others, *ends.values(), after + kept])
        most = max([most, others, *ends.values()])
        if most > MOST_GROWTH:
            break
    return most


def _may_match_nothing(pattern: Any) -> bool:
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    try:
        return re.search(str(expression), "") is not None
    except (re.error, OverflowError, RecursionError):  # the library's language is a larger one
        return True


def of_merges(settings: TokenizerSettings) -> LibraryTokenizer:
    """Builds the byte-level BPE of GPT-2 or RoBERTa from vocab.json and merges.txt.

    Raises:
        ValueError, ImportError: as `folder_tokenizer`.
    """
    library = _library()
    if settings.family.name not in ("GPT2Tokenizer", "RobertaTokenizer"):
        raise unknown_family(settings, BPE[0], "GPT2Tokenizer or RobertaTokenizer")
    settings.refuse("add_bos_token", "which is not built from vocab.json")
    prefix = settings.choice("add_prefix_space", False)
    contents = [settings.data(name) for name in BPE]
    check_ids(json_keys(contents[0], settings.path(BPE[0])), settings.path(BPE[0]))
    paths = [settings.path(name) for name in BPE]
    tokenizer = library.Tokenizer(
        _built(lambda: library.models.BPE.from_file(*paths), " with ".join(paths))
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = library.decoders.ByteLevel()
    tokenizer.post_processor = library.processors.ByteLevel(trim_offsets=False)
    added = _add_tokens(settings, tokenizer, BPE[0])
    if settings.family.name == "RobertaTokenizer":
        before, after = _ends(settings, tokenizer, BPE[0])
        tokenizer.post_processor = library.processors.RobertaProcessing(
            after, before, trim_offsets=True, add_prefix_space=prefix
        )
    digest = digest_of("byte-level BPE", repr((prefix, added)), *contents)
    return LibraryTokenizer(settings, tokenizer, digest, BPE[0])


def of_word_pieces(settings: TokenizerSettings) -> LibraryTokenizer:
    """Builds the WordPiece of BERT from vocab.txt.

    Raises:
        ValueError, ImportError: as `folder_tokenizer`.
    """
    library = _library()
    if settings.family.name != "BertTokenizer":
        raise unknown_family(settings, WORDPIECE, "BertTokenizer")
    settings.refuse("never_split", "words that are kept whole")
    if not settings.choice("do_basic_tokenize", True):
        raise ValueError(
            f"{settings.path(SETTINGS)} has do_basic_tokenize = False, which is not built: "
            f"{RESAVE}."
        )
    lower_case = settings.choice("do_lower_case", True)
    accents = settings.choice("strip_accents", lower_case)
    chinese = settings.choice("tokenize_chinese_chars", True)
    data = settings.data(WORDPIECE)
    path = settings.path(WORDPIECE)
    unknown = settings.roles()["unk"].text if "unk" in settings.roles() else "[UNK]"
    tokenizer = library.Tokenizer(
        _built(lambda: library.models.WordPiece.from_file(path, unk_token=unknown), path)
    )
    if tokenizer.token_to_id(unknown) is None:
        raise ValueError(f"{path} has no line {unknown}, the unknown token: copy the file again.")
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=accents,
        lowercase=lower_case,
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece(cleanup=True)
    added = _add_tokens(settings, tokenizer, WORDPIECE)
    before, after = _ends(settings, tokenizer, WORDPIECE)
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=[before[0], "$A", after[0]],
        pair=[before[0], "$A", after[0], "$B:1", f"{after[0]}:1"],
        special_tokens=list(dict.fromkeys((before, after))),
    )
    digest = digest_of("WordPiece", repr((lower_case, accents, chinese, added)), data)
    return LibraryTokenizer(settings, tokenizer, digest, WORDPIECE)


def _built(build: Any, path: str) -> Any:
    """Returns what `build` makes of a file; what the library raises becomes a sentence."""
    try:
        return build()
    except (MemoryError, MissingExtra):
        raise
    # A panic of the library's Rust is no Exception.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} holds no tokenizer that the tokenizers library can read ({reason[:200]}): "
            "copy the file again."
        ) from None


def _add_tokens(settings: TokenizerSettings, tokenizer: Any, source: str) -> list[AddedToken]:
    """Adds the tokens that the settings name; returns them."""
    added = settings.added_tokens()
    for token in added:
        entry = _library().AddedToken(
            token.text,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            single_word=token.single_word,
            normalized=token.normalized,
            special=token.special,
        )
        add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        add([entry])
        number = tokenizer.token_to_id(token.text)
        if token.id is not None and number != token.id:
            raise ValueError(
                f"{settings.path(SETTINGS)} and {ADDED_TOKENS} say that {shown(token.text)} has id "
                f"{token.id}, and after {source} it has {number}: copy the files again."
            )
    return added


def _ends(settings: TokenizerSettings, tokenizer: Any, source: str) -> list[tuple[str, int]]:
    """Returns the tokens before and after a text, each with its id."""
    found = []
    for role in ("cls", "sep"):
        token = settings.roles().get(role)
        number = None if token is None else tokenizer.token_to_id(token.text)
        if token is None or number is None:
            raise ValueError(
                f"{settings.path(SETTINGS)} has no {role}_token that {source} holds: name it there."
            )
        found.append((token.text, number))
    return found


def _unknown_id(parts: dict, tokenizer: Any) -> int | None:
    """Returns the id of text without a token, by the parts of a saved tokenizer."""
    model = parts["model"]
    if model.get("byte_fallback") or _is_byte_level(parts.get("pre_tokenizer")):
        return None
    if model["type"] == "Unigram":
        return model.get("unk_id")
    name = model.get("unk_token")
    return None if name is None else tokenizer.token_to_id(name)


def _is_byte_level(step: dict | None) -> bool:
    """Returns whether a step of pre-tokenization, or one of its own steps, spells bytes."""
    if step is None:
        return False
    return step["type"] == "ByteLevel" or any(map(_is_byte_level, step.get("pretokenizers", [])))


def _without_names(parts: dict) -> dict:
    """Returns a saved tokenizer whose Unigram model spells no special token as a piece of text.

    Their scores must stay, because the least of all is the measure of unknown text.
    """
    model = parts["model"]
    if model["type"] != "Unigram":
        return parts
    special = {token["content"] for token in parts["added_tokens"] if token["special"]}
    # Two noncharacters of Unicode, which no text holds.
    vocab = [[f"\uffff\ufffe{text}" if text in special else text, s] for text, s in model["vocab"]]
    return {**parts, "model": {**model, "vocab": vocab}}


def _may_be_cut(parts: dict) -> bool:
    step = parts.get("pre_tokenizer") or {}
    if any("\n" in token["content"] for token in parts["added_tokens"]):
        return False
    if step.get("type") == "BertPreTokenizer":
        return (parts.get("normalizer") or {}).get("type") == "BertNormalizer"
    plain = step.get("type") == "ByteLevel" and step.get("use_regex", True)
    return plain and not step["add_prefix_space"] and parts.get("normalizer") is None
