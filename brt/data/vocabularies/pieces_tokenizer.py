"""Tokenizers of a folder that are SentencePiece models: T5, DeBERTa v2 and v3, Llama."""

from brt.data.vocabularies.tokenizer_contract import (
    Encoded,
    FolderTokenizer,
    digest_of,
    unknown_family,
)
from brt.data.vocabularies.tokenizer_settings import (
    ADDED_TOKENS,
    SETTINGS,
    AddedToken,
    TokenizerSettings,
    shown,
)

PIECES = {
    "spiece.model": "T5Tokenizer",
    "spm.model": "DebertaV2Tokenizer",
    "tokenizer.model": "LlamaTokenizer",
}
"""SentencePiece models, and the class that reads each."""


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
            raise unknown_family(settings, name, PIECES[name])
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
        self.digest = digest_of("SentencePiece", repr((self._lower_case, self._added)), data)

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
