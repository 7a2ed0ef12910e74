"""A document's memory as a safetensors file, with a JSON description in its header.

It contains the decoding form of the caches, of constant size, and fits only the parameters and the
vocabulary it was made with.
"""

import dataclasses
import hashlib
import json

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.flax import save as to_bytes

from brt.checks import Count
from brt.data.stores.layout import vocabulary_entry, vocabulary_text
from brt.data.vocabularies.base import Vocabulary, expanded
from brt.generation.document_memory import Memory, fresh_memory
from brt.models.model import LanguageModel
from brt.storage.json_files import Fields, parse_json
from brt.storage.paths import as_path, on_disk
from brt.storage.regular_files import check_regular
from brt.storage.replaced_files import replace_file

FORMAT = "brt document memory 1"
AGAIN = "write it again with --save_memory"
DIGITS = 12
"""Width of the position in the header, so that the file's size is constant."""

DESCRIPTION = Fields(
    {
        "format": str,
        "position": str,
        "model": str,
        "vocabulary": Fields({"name": str, "size": Count, "fingerprint": str}),
    },
    {"sha256": str},
)

WITHOUT_EFFECT = ("dropout", "remat")
"""Parts of the names of a model's settings that do not change its outputs."""


def model_fingerprint(model: nnx.Module) -> str:
    """Returns the sha256, in hex, of everything that determines a model's caches."""
    digest = hashlib.sha256()
    for path, module in nnx.iter_modules(model):
        attributes = vars(module)
        if dataclasses.is_dataclass(family := attributes.get("settings")):
            attributes = attributes | {name: str(value) for name, value in vars(family).items()}
        settings = {
            name: str(value)
            for name, value in sorted(attributes.items())
            if isinstance(value, bool | int | float | str | np.dtype)
            and not name.startswith("_")
            and not any(part in name for part in WITHOUT_EFFECT)
        }
        digest.update(json.dumps([list(map(str, path)), settings]).encode())
    _add_arrays(digest, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return digest.hexdigest()


def save(path: str, memory: Memory, fingerprint: str, vocabulary: Vocabulary) -> None:
    """Writes the memory of one document; replaces a file once complete.

    Args:
        fingerprint: the `model_fingerprint` of its model.
    """
    rows = len(memory.position_B)
    if rows != 1:
        raise ValueError(
            f"A memory file holds one document and this memory {rows}: save each of them "
            "(brt.generation.document_memory.take_rows) under a name of its own."
        )
    arrays = _named(memory)
    description = {
        "format": FORMAT,
        "position": f"{int(memory.position_B[0]):>{DIGITS}}",
        "model": fingerprint,
        "vocabulary": {
            "name": vocabulary.name,
            "size": vocabulary.size,
            "fingerprint": vocabulary.fingerprint,
        },
    }
    description["sha256"] = _digest(description, arrays)
    content = to_bytes(arrays, {"brt": json.dumps(description)})
    target = as_path(expanded(path))
    try:
        replace_file(target.parent, target.name, content)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(
            error.errno, f"Cannot write the memory file {path} ({error.strerror})."
        ) from error


def load(path: str, model: LanguageModel, fingerprint: str, vocabulary: Vocabulary) -> Memory:
    """Reads the memory of one document; arguments as of `save`."""
    path = expanded(path)
    try:
        check_regular(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no memory file {path}.") from None
    expected = jax.eval_shape(lambda: fresh_memory(model, 1))
    shapes = {name: list(x.shape) for name, x in _named(expected).items()}
    arrays = None
    try:
        with on_disk(path) as name, safe_open(name, "flax") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            # Other shapes, maybe too large to read, are refused below.
            if {name: file.get_slice(name).get_shape() for name in names} == shapes:
                arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, MemoryError) as error:
        raise _no_memory_file(path, type(error).__name__) from None
    if "brt" not in metadata:
        raise _no_memory_file(path, "it has no description")
    description = parse_json(metadata["brt"], DESCRIPTION, f"The description in {path}", AGAIN)
    if description["format"] != FORMAT:
        raise _no_memory_file(path, "of another format")
    sha256 = description.pop("sha256", None)
    if arrays is not None and sha256 != _digest(description, arrays):
        raise ValueError(
            f"{path} was changed after it was written, its hash does not fit its content: {AGAIN}."
        )
    theirs = description["vocabulary"]
    if theirs["fingerprint"] != vocabulary.fingerprint:
        raise ValueError(
            f"{path} is the memory of a text in the vocabulary {vocabulary_text(theirs)}; this "
            f"model reads {vocabulary_text(vocabulary_entry(vocabulary))}."
        )
    if description["model"] != fingerprint:
        raise ValueError(
            f"{path} is the memory of another model ({description['model']:.12}; this one is "
            f"{fingerprint:.12}): other parameters, a later checkpoint for example, or other "
            "settings. Load the run that wrote it, or read the text again."
        )
    types = [x.dtype for x in jax.tree.leaves(expected)]
    if arrays is None or types != [arrays[name].dtype for name in shapes]:
        raise ValueError(
            f"{path} holds other arrays than this model's memory, by another version of brt "
            f"perhaps: {AGAIN}."
        )
    return jax.tree.unflatten(jax.tree.structure(expected), [arrays[name] for name in shapes])


def _no_memory_file(path, why):
    return ValueError(f"{path} is not a memory file, or only a part of one ({why}): {AGAIN}.")


def _named(memory):
    flat = jax.tree_util.tree_flatten_with_path(memory)[0]
    return {jax.tree_util.keystr(path).removeprefix("."): leaf for path, leaf in flat}


def _digest(description, arrays):
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    _add_arrays(digest, dict(sorted(arrays.items())))
    return digest.hexdigest()


def _add_arrays(digest, tree):
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8))
