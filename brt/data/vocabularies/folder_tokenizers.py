"""Tokenizers of folders of the Hugging Face Hub, built from their files.

    tokenizer.json                                  whatever it says, by the `tokenizers` library
    vocab.json, merges.txt                          byte-level BPE of GPT-2 and RoBERTa
    vocab.txt                                       WordPiece of BERT
    spiece.model, spm.model, tokenizer.model        SentencePiece of T5, DeBERTa v2 and v3, Llama

The first that is there counts. Each gives texts as ids in two ways: as brt stores them, without
special tokens and with their names read as text; and as `transformers` gives them to a model, with
special tokens around a text or a pair, and their names read as tokens.
"""

import abc
import hashlib
import json
from types import ModuleType
from typing import Any, NamedTuple

from brt.data.extras import extra_library
from brt.data.vocabularies.tokenizer_settings import (
    ADDED_TOKENS,
    BINDING,
    RESAVE,
    SETTINGS,
    AddedToken,
    TokenizerSettings,
    json_keys,
    shown,
)

TOKENIZER = "tokenizer.json"
BPE = ("vocab.json", "merges.txt")
WORDPIECE = "vocab.txt"
PIECES = {
    "spiece.model": "T5Tokenizer",
    "spm.model": "DebertaV2Tokenizer",
    "tokenizer.model": "LlamaTokenizer",
}
"""SentencePiece models, and the class that reads each."""

NEEDED_BY = "PretrainedFolderVocabulary"


class Encoded(NamedTuple):
    """A text, or a pair of texts, as a model reads it.

    ids: of its tokens.
    offsets: of each token, the characters of its own text: first, and one behind the last; (0, 0)
        of a special token that was added. None where the tokenizer does not tell them.
    types: `token_type_ids`; None as offsets.
    sequences: 0 or 1, the text a token is of; None of a special token that was added.
    """

    ids: list[int]
    offsets: list[tuple[int, int]] | None
    types: list[int] | None
    sequences: list[int | None]


class FolderTokenizer(abc.ABC):
    """The tokenizer of a folder: the base of both kinds.

    Attributes:
        size: one more than the highest id.
        count: of tokens.
        special: special tokens by role, each its text and its id.
        unknown_id: of text that it does not know; None where it knows every text.
        may_be_cut: whether a text may be cut after a line feed between two characters that are
            not white space, and encoded in parts.
        digest: sha256, in hex, of whatever decides the ids of a text.
    """

    size: int
    count: int
    special: dict[str, tuple[str, int]]
    unknown_id: int | None
    may_be_cut: bool
    digest: str

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, without special tokens; names of such are text."""

    @abc.abstractmethod
    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the same ids and, for each, the characters it is of: first, and one behind."""

    @abc.abstractmethod
    def read(self, text: str, second: str | None = None, special: bool = True) -> Encoded:
        """Returns a text or a pair as a model reads it; names of special tokens are tokens.

        special: whether special tokens are added.
        """

    @abc.abstractmethod
    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids, special tokens by their names."""

    def frame(self) -> tuple[list[int], list[int]]:
        """Returns the special tokens before and after a text that a model reads alone."""
        found = self.read("")
        marked = self.read("x")
        first = next((i for i, of in enumerate(marked.sequences) if of == 0), 0)
        return found.ids[:first], found.ids[first:]


def folder_tokenizer(folder: str) -> FolderTokenizer:
    """Builds the tokenizer of a folder.

    Raises:
        FileNotFoundError, ValueError, ImportError: each one sentence, naming file and key.
    """
    settings = TokenizerSettings(folder)
    if settings.has(TOKENIZER):
        return _of_tokenizer_file(settings)
    if all(map(settings.has, BPE)):
        return _of_merges(settings)
    if settings.has(WORDPIECE):
        return _of_word_pieces(settings)
    for name in PIECES:
        if settings.has(name):
            return PiecesTokenizer(settings, name)
    known = ", ".join((TOKENIZER, " with ".join(BPE), WORDPIECE, *PIECES))
    raise FileNotFoundError(
        f"{folder} has no tokenizer: it should hold {known}; copy them from where the weights "
        f"are, or bind {BINDING}."
    )


# By the `tokenizers` library.


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
        self._plain = _library().Tokenizer.from_str(json.dumps(_without_names(parts)))
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


def _of_tokenizer_file(settings: TokenizerSettings) -> LibraryTokenizer:
    data = settings.data(TOKENIZER)
    path = settings.path(TOKENIZER)
    keys = json_keys(data, path)
    tokenizer = _built(lambda: _library().Tokenizer.from_str(data.decode("utf-8")), path)
    for token in keys.get("added_tokens") or []:
        if tokenizer.token_to_id(token["content"]) != token["id"]:
            raise ValueError(
                f"{path} has added_tokens with id {token['id']} for {shown(token['content'])}, "
                f"which is token {tokenizer.token_to_id(token['content'])}: correct the id."
            )
    decides = ("added_tokens", "normalizer", "pre_tokenizer", "model")
    content = json.dumps({key: keys.get(key) for key in decides}, sort_keys=True)
    return LibraryTokenizer(settings, tokenizer, _digest(TOKENIZER, content), TOKENIZER)


def _of_merges(settings: TokenizerSettings) -> LibraryTokenizer:
    library = _library()
    if settings.family.name not in ("GPT2Tokenizer", "RobertaTokenizer"):
        raise _unknown_family(settings, BPE[0], "GPT2Tokenizer or RobertaTokenizer")
    settings.refuse("add_bos_token", "which is not built from vocab.json")
    prefix = settings.choice("add_prefix_space", False)
    contents = [settings.data(name) for name in BPE]
    json_keys(contents[0], settings.path(BPE[0]))
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
    digest = _digest("byte-level BPE", repr((prefix, added)), *contents)
    return LibraryTokenizer(settings, tokenizer, digest, BPE[0])


def _of_word_pieces(settings: TokenizerSettings) -> LibraryTokenizer:
    library = _library()
    if settings.family.name != "BertTokenizer":
        raise _unknown_family(settings, WORDPIECE, "BertTokenizer")
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
    digest = _digest("WordPiece", repr((lower_case, accents, chinese, added)), data)
    return LibraryTokenizer(settings, tokenizer, digest, WORDPIECE)


def _built(build: Any, path: str) -> Any:
    """Returns what `build` makes of a file; what the library raises becomes a sentence."""
    try:
        return build()
    except MemoryError:
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


def _unknown_family(settings: TokenizerSettings, name: str, known: str) -> ValueError:
    return ValueError(
        f"{settings.path(name)} is of tokenizer_class {settings.family.name or 'unknown'} "
        f"({SETTINGS}, or model_type of config.json), and without {TOKENIZER} brt reads {known}: "
        f"{RESAVE}."
    )


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


# By sentencepiece.


class PiecesTokenizer(FolderTokenizer):
    """A SentencePiece model, with the special tokens of its family.

    Names of special tokens in a text stay text here: `read` too does not look for them.

    Args:
        settings: of the folder.
        name: of the model's file.

    Raises:
        ValueError: the file is no model, or the settings ask for what is not built.
    """

    may_be_cut = False

    def __init__(self, settings: TokenizerSettings, name: str):
        from sentencepiece import SentencePieceProcessor

        family = settings.family.name
        if family != PIECES[name]:
            raise _unknown_family(settings, name, PIECES[name])
        settings.refuse("split_by_punct", "which is not built from spm.model")
        self._lower_case = settings.choice("do_lower_case", False)
        data = settings.data(name)
        self._processor = SentencePieceProcessor()
        try:
            if not data:
                raise RuntimeError("it is empty")
            self._processor.LoadFromSerializedProto(data)
        except RuntimeError:
            raise ValueError(
                f"{settings.path(name)} is not a SentencePiece model ({len(data)} bytes): copy the "
                "file again."
            ) from None
        pieces = self._processor.get_piece_size()
        self._added = self._further(settings, name, pieces)
        self._names = {number: text for text, number in self._added.items()}
        self.count = pieces + len(self._added)
        self.size = max([pieces, *(number + 1 for number in self._added.values())])
        self.unknown_id = self._processor.unk_id()
        self.special = {}
        for role, token in settings.roles().items():
            if (number := self._id(token.text)) is not None:
                self.special[role] = token.text, number
        if "unk" in self.special:
            self._names[self.unknown_id] = self.special["unk"][0]
        self._before = [role for role in self._role_before(settings) if role in self.special]
        self._after = [role for role in self._role_after(settings) if role in self.special]
        self.digest = _digest("SentencePiece", repr((self._lower_case, self._added)), data)

    def _role_before(self, settings: TokenizerSettings) -> list[str]:
        begins = settings.choice("add_bos_token", settings.family.name == "LlamaTokenizer")
        return {"DebertaV2Tokenizer": ["cls"], "LlamaTokenizer": ["bos"] * begins}.get(
            settings.family.name, []
        )

    def _role_after(self, settings: TokenizerSettings) -> list[str]:
        ends = settings.choice("add_eos_token", False)
        return {
            "DebertaV2Tokenizer": ["sep"],
            "T5Tokenizer": ["eos"],
            "LlamaTokenizer": ["eos"] * ends,
        }[settings.family.name]

    def _further(self, settings: TokenizerSettings, name: str, pieces: int) -> dict[str, int]:
        """Returns the tokens beyond the model's pieces, and their ids."""
        further: dict[str, int] = {}
        last = pieces
        listed = settings.added_tokens()
        if settings.family.name == "T5Tokenizer":
            sentinels = settings.count("extra_ids", 100)
            numbered = [AddedToken(f"<extra_id_{n}>") for n in reversed(range(sentinels))]
            known = {token.text for token in listed if token.id is not None}
            names = {token.text for token in numbered}
            listed = [token for token in listed if token.id is not None or token.text not in names]
            listed += [token for token in numbered if token.text not in known]
        for token in listed:
            own = self._processor.piece_to_id(token.text)
            if self._processor.id_to_piece(own) == token.text:
                if token.id not in (None, own):
                    raise ValueError(
                        f"{settings.path(SETTINGS)} and {ADDED_TOKENS} say that "
                        f"{shown(token.text)} has id {token.id}, and in {name} it has {own}: copy "
                        "the files again."
                    )
                continue
            number = last if token.id is None else token.id
            if number < pieces:
                raise ValueError(
                    f"{settings.path(SETTINGS)} and {ADDED_TOKENS} give {shown(token.text)} id "
                    f"{number}, which {name} has for another piece: copy the files again."
                )
            further[token.text] = number
            last = max(last, number + 1)
        return further

    def _id(self, text: str) -> int | None:
        if text in self._added:
            return self._added[text]
        number = self._processor.piece_to_id(text)
        return number if self._processor.id_to_piece(number) == text else None

    def _text(self, text: str) -> str:
        return text.lower() if self._lower_case else text

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(self._text(text), out_type=int)

    def spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = self._processor.encode(self._text(text), out_type="offset_mapping")
        return found["ids"], found["offsets"]

    def read(self, text: str, second: str | None = None, special: bool = True) -> Encoded:
        before = [self.special[role][1] for role in self._before] if special else []
        after = [self.special[role][1] for role in self._after] if special else []
        ids = list(before)
        sequences: list[int | None] = [None] * len(before)
        for number, part in enumerate((text,) if second is None else (text, second)):
            found = self.encode(part)
            # Llama opens the second text as well.
            again = before if number and self._before == ["bos"] else []
            ids += [*again, *found, *after]
            sequences += [*[None] * len(again), *[number] * len(found), *[None] * len(after)]
        return Encoded(ids, None, None, sequences)

    def decode(self, ids: list[int]) -> str:
        texts: list[str] = []
        run: list[int] = []
        for number in [*ids, None]:
            if number is not None and number not in self._names:
                run.append(number)
                continue
            if run:
                # What opens a run loses the space before it.
                opens = self._processor.id_to_piece(run[0]).startswith("\u2581")
                texts.append(" " * bool(texts and opens) + self._processor.decode(run))
                run = []
            if number is not None:
                texts.append(self._names[number])
        return "".join(texts)


def _digest(*contents: str | bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        content = content.encode() if isinstance(content, str) else content
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()
