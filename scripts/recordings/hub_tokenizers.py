"""Compares encodings.json, what tokenizers of Hub folders gave, with what brt's vocabulary gives.

See `check_recording.py`. The folders are named relative to the file. Compared are, by tokenizer and
kind, how many texts or pairs differ: 0 is the tolerance.
"""

import json
from pathlib import Path
from typing import Any

from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.data.vocabularies.tokenizer_contract import FolderTokenizer


def errors(file: str) -> dict[str, float]:
    """Returns how many records differ, by tokenizer and kind.

    Raises:
        ValueError, KeyError: the file is not of this format.
    """
    recorded = json.loads(Path(file).read_text(encoding="utf-8"))
    found: dict[str, float] = {}
    for name, record in recorded.items():
        vocabulary = PretrainedFolderVocabulary(str(Path(file).parent / record["folder"]))
        tokenizer = vocabulary.tokenizer
        special = {f"{role}_token": [*token] for role, token in tokenizer.special.items()}
        around = tokenizer.frame()
        between = tokenizer.read("x", "x")
        differ = {
            "size": [tokenizer.count != record["size"]],
            "special tokens": [special != record["special"]],
            "special tokens added": [
                sum(map(len, around)) != record["special_tokens_added"],
                between.sequences.count(None) != record["special_tokens_added_to_pair"],
            ],
            "texts": [_text_differs(vocabulary, text) for text in record["texts"]],
            "pairs": [_pair_differs(tokenizer, pair) for pair in record["pairs"]],
        }
        found |= {f"{name} {kind}": float(sum(wrong)) for kind, wrong in differ.items()}
    return found


def _text_differs(vocabulary: PretrainedFolderVocabulary, record: dict[str, Any]) -> bool:
    tokenizer, text = vocabulary.tokenizer, record["text"]
    whole = tokenizer.read(text)
    alone = tokenizer.read(text, special=False)
    stored = vocabulary.encode(text.encode(), "text").tolist()
    spelt = any(name in text for name, _ in tokenizer.special.values())
    return (
        whole.ids != record["ids"]
        or alone.ids != record["ids_without_special"]
        or tokenizer.decode(alone.ids) != record["decoded"]
        or _offsets_differ(whole.offsets, record["offsets"])
        # The store keeps names of special tokens as text.
        or (stored != record["ids_without_special"]) != spelt
    )


def _pair_differs(tokenizer: FolderTokenizer, record: dict[str, Any]) -> bool:
    found = tokenizer.read(record["first"], record["second"])
    types = record["token_type_ids"]
    return (
        found.ids != record["ids"]
        or (types is not None and found.types != types)
        or _offsets_differ(found.offsets, record["offsets"])
        or found.sequences != record["sequence_ids"]
    )


def _offsets_differ(found: list[tuple[int, int]] | None, recorded: list) -> bool:
    """Returns whether offsets differ from recorded ones; an empty list is none recorded."""
    return bool(recorded) and [list(pair) for pair in found or []] != recorded
