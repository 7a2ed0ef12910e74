"""Checks of a tokenizer's JSON files.

A small file can ask for 2^31 ids, or double a text in each step.
"""

import json
import re
import reprlib
from typing import Any

LARGEST_ID = 2**24 - 1
"""The largest id of a token: a list of all ids must fit into memory."""
MOST_GROWTH = 1_000
"""Most characters that one character may become; 3 in published tokenizers."""
STEPS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""Steps of a tokenizer.json, and the key of the parts of a sequence of steps."""


def shown(value: Any) -> str:
    """Returns a shortened value for a message."""
    return reprlib.repr(value)


def json_keys(data: bytes, path: str) -> dict[str, Any]:
    """Returns the JSON object in `data`; `path` is for messages."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}): copy the file again.") from None
    if b"\\ud" in data.lower():  # a lone surrogate cannot be encoded
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{path} has text that is not Unicode ({error.reason}): copy the file again."
            ) from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds {type(content).__name__} and no keys: copy the file again.")
    return content


def check_id(number: Any, token: str, path: str, largest: int = LARGEST_ID) -> int:
    """Returns `number`, unless it is no whole number from 0 to `largest`."""
    if type(number) is not int or not 0 <= number <= largest:
        raise ValueError(
            f"{path} gives {shown(token)} the number {shown(number)}: it must be a whole number "
            f"from 0 to {largest:,}. Copy the file again."
        )
    return number


def check_ids(vocab: dict[str, Any], path: str) -> None:
    """Refuses a vocabulary (token to id) with an id out of range, or the same id twice."""
    tokens: dict[int, str] = {}
    for token, number in vocab.items():
        other = tokens.setdefault(check_id(number, token, path), token)
        if other != token:
            raise ValueError(
                f"{path} gives id {number} to {shown(other)} and {shown(token)}: copy the file "
                "again."
            )


def check_tokenizer(keys: dict[str, Any], path: str) -> None:
    """Refuses a tokenizer.json with ids out of range or steps that multiply a text.

    The library checks the types of values.
    """
    model, added = keys.get("model"), keys.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        check_ids(vocab, path)
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            check_id(token.get("id"), str(token.get("content")), path)
    for name, parts in STEPS.items():
        if (growth := _growth(_flat(keys.get(name), parts))) > MOST_GROWTH:
            raise ValueError(
                f"{path} has a {name} that makes {growth:,.0f} characters and more of one: copy "
                "the file again from where the weights are."
            )


def _flat(step: Any, parts: str) -> list[dict]:
    """Returns the steps of nested sequences, in their order."""
    steps, todo = [], [step]
    while todo:
        step = todo.pop()
        inner = step.get(parts) if isinstance(step, dict) else None
        if isinstance(inner, list):
            todo += reversed(inner)
        elif isinstance(step, dict):
            steps.append(step)
    return steps


def _growth(steps: list[dict]) -> float:
    """Returns how many characters steps can make of one, or put before a text."""
    # From the last step to the first: number of final characters of each input character.
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
            # Any character may become any other; bytes become two, and a text its copies.
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
    except (re.error, OverflowError, RecursionError):  # the library accepts more expressions
        return True
