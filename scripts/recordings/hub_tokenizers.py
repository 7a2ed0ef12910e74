"""Compares encodings.json, recorded from tokenizers of Hub folders, with brt's vocabulary.

See `check_recording.py`. The folders are named relative to the file. Compares, by tokenizer and
kind, how many texts or pairs differ: 0 is the tolerance.
"""

import json
from pathlib import Path
from typing import Any

from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary


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
        special = dict(record["special"].values())
        frame = sum(map(len, vocabulary.frame))
        between = tokenizer.named.encode("x", "x").sequence_ids
        differ = {
            "size": [tokenizer.named.get_vocab_size() != record["size"]],
            "special tokens": [not special.items() <= vocabulary.special_ids.items()],
            "special tokens added": [
                frame != record["special_tokens_added"],
                between.count(None) != record["special_tokens_added_to_pair"],
            ],
            "texts": [_text_differs(vocabulary, text) for text in record["texts"]],
            "pairs": [_pair_differs(tokenizer.named, pair) for pair in record["pairs"]],
        }
        found |= {f"{name} {kind}": float(sum(wrong)) for kind, wrong in differ.items()}
    return found


def _text_differs(vocabulary: PretrainedFolderVocabulary, record: dict[str, Any]) -> bool:
    named = vocabulary.tokenizer.named
    text = record["text"]
    whole = named.encode(text)
    alone = named.encode(text, add_special_tokens=False)
    stored = vocabulary.encode(text.encode(), "text").tolist()
    spelt = any(name in text for name in vocabulary.special_ids)
    return (
        whole.ids != record["ids"]
        or alone.ids != record["ids_without_special"]
        or vocabulary.decode(alone.ids) != record["decoded"]
        or _offsets_differ(whole.offsets, record["offsets"])
        # The store keeps names of special tokens as text.
        or (stored != record["ids_without_special"]) != spelt
    )


def _pair_differs(named: Any, record: dict[str, Any]) -> bool:
    encoding = named.encode(record["first"], record["second"])
    types = record["token_type_ids"]
    return (
        encoding.ids != record["ids"]
        or (types is not None and encoding.type_ids != types)
        or _offsets_differ(encoding.offsets, record["offsets"])
        or encoding.sequence_ids != record["sequence_ids"]
    )


def _offsets_differ(offsets: list[tuple[int, int]], recorded: list) -> bool:
    return bool(recorded) and [list(pair) for pair in offsets] != recorded
