"""Where a body's sizes and parameters come from: bindings, or a folder."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from brt.bindings.bound_values import binding_of
from brt.checks import Name, configurable
from brt.pretrained.config_values import ConfigValues
from brt.pretrained.folder import CONFIG, HubFolder

READ_BY = {
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Llama",
    "qwen2": "Llama",
    "gpt_neox": "GPTNeoX",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "deberta-v2": "DeBERTa",
    "t5": "T5",
}
"""The body that reads folders of each `model_type`."""


@configurable
class Pretrained:
    """Names the folder that a body is read from.

    Args:
        folder: in the format of the Hugging Face Hub; None: the body begins with random parameters
            of the sizes that are bound.
        other_vocabulary: accept a corpus whose ids are not those of the folder's tokenizer, which
            the parameters were trained on.
    """

    def __init__(self, folder: Name | None = None, other_vocabulary: bool = False):
        self.folder = folder
        self.other_vocabulary = other_vocabulary


def open_folder(folder: str | None, body: str, model_types: tuple[str, ...]) -> HubFolder | None:
    """Returns the folder that a body is to be read from; None for none.

    Args:
        folder: its path; None: `Pretrained.folder`.
        body: the name of the body, for messages.
        model_types: that the body reads.

    Raises:
        FileNotFoundError, ValueError: as `HubFolder`; a `model_type` of another body, or of none.
    """
    path = Pretrained().folder if folder is None else folder
    if path is None:
        return None
    opened = HubFolder(path)
    model_type = opened.config.get("model_type")
    if model_type not in model_types:
        known = isinstance(model_type, str) and READ_BY.get(model_type)
        raise ValueError(
            f"{opened.file(CONFIG)}: model_type = {model_type!r} is not read by {body}"
            + (f", but by @{known}." if known else f"; brt knows {', '.join(sorted(READ_BY))}.")
        )
    return opened


def settle(
    body: str,
    bound: Mapping[str, Any],
    found: Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    folder: HubFolder | None,
) -> dict[str, Any]:
    """Returns a body's settings, each from its binding, the folder, or its default.

    Args:
        body: its name, for messages.
        bound: by name; None where nothing is bound.
        found: of the folder's config.json, by name; None without a folder.
        defaults: of settings that need not be bound; a missing one must be.
        folder: for messages.

    Raises:
        ValueError: a binding that says something else than the folder, or that is missing.
    """
    if found is None:
        settings = {**defaults, **{name: v for name, v in bound.items() if v is not None}}
        for name in bound:
            if name not in settings:
                raise ValueError(
                    f"{body}.{name} is not bound: include a file of sizes, such as "
                    f'configs/bodies/gpt2_small.gin, or bind Pretrained.folder = "models/NAME".'
                )
        return settings
    for name, value in bound.items():
        if value is not None and not equal(value, found[name]):
            path = os.path.join(folder.path if folder else "", CONFIG)
            raise ValueError(
                f"{body}.{name} = {value!r}, and {path} says {found[name]!r}: bind "
                f"{binding_of(f'{body}.{name}')} = None to take what the folder says, or another "
                "Pretrained.folder."
            )
    return dict(found)


def equal(bound: Any, found: Any) -> bool:
    """Returns whether two settings are the same, numbers as float32.

    A converter that widens a float32 writes 9.99999975e-06 where the model's authors wrote 1e-5.
    """
    if isinstance(bound, float) and isinstance(found, float):
        return np.float32(bound) == np.float32(found)
    return bound == found


def number_of_layers(values: ConfigValues, key: str, default: int, folder: HubFolder) -> int:
    """Returns the number of layers that config.json says; refuses more than there are tensors."""
    layers = values.whole(key, default)
    if layers > len(folder.tensors):
        raise values.refused(key, f"layers, and the weights are {len(folder.tensors)} tensors.")
    return layers


def begin_of(values: ConfigValues, vocabulary_size: int, default: int | None) -> int:
    """Returns the word before a document: the text's beginning, its end, or the last word.

    default: taken where config.json names none of them, if it is a word.
    """
    for key in ("bos_token_id", "eos_token_id"):
        if (found := values.token(key, vocabulary_size)) is not None:
            return found
    last = vocabulary_size - 1
    return last if default is None or default > last else default


def is_tied(
    values: ConfigValues, folder: HubFolder, default: bool, head: str, tables: tuple[str, ...]
) -> bool:
    """Returns whether logits are products with the table of words.

    A head that is stored beside the table and differs from it is a head of its own, whatever
    config.json says.

    Args:
        default: of tie_word_embeddings.
        head, tables: names on disk of the head, and of the table in the forms it may have.
    """
    if not values.flag("tie_word_embeddings", default):
        return False
    table = next((name for name in tables if name in folder.tensors), None)
    if head not in folder.tensors or table is None:
        return True
    of_head, of_table = (folder.tensors[name] for name in (head, table))
    return of_head.shape == of_table.shape and bool((folder.read(head) == folder.read(table)).all())
