"""A folder in the Hub's format as data: config.json and safetensors, read and written.

Nothing in a folder is run or unpickled, and nothing outside it is read.
"""

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from brt.storage.json_files import read_json
from brt.storage.paths import folder_of, is_remote
from brt.storage.regular_files import check_inside
from brt.storage.tensor_files import TensorInfo, read_tensor, tensor_infos

CONFIG = "config.json"
JSON_BYTES = 2**26
"""Bytes of the largest config.json."""
WEIGHTS = "model.safetensors"
SHARD = re.compile(r"model-[0-9]{5}-of-([0-9]{5})\.safetensors")
"""Names of the files of larger weights, which transformers numbers from 1."""
OTHER_WEIGHTS = (".bin", ".h5", ".msgpack", ".ckpt.index", ".gguf")
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "spm.model", "spiece.model", "tokenizer.model"),
    "generation_config.json",
)
"""Files that are copied next to written weights."""


class HubFolder:
    """A folder with config.json and weights in safetensors, one file or its shards.

    Models with their own code and quantized weights are refused.
    """

    def __init__(self, path: str):
        self.path = os.path.expanduser(path)
        if not os.path.isdir(self.path):
            raise FileNotFoundError(f"There is no folder {self.path} (Pretrained.folder).")
        if not os.path.lexists(os.path.join(self.path, CONFIG)):
            raise FileNotFoundError(
                f"{self.path} has no {CONFIG}: name a folder in the format of the Hugging Face Hub."
            )
        self.config: dict[str, Any] = read_json(
            self._checked(CONFIG), dict[str, Any], "copy it again", JSON_BYTES
        )
        if self.config.get("auto_map") is not None:
            raise ValueError(
                f"{self.file(CONFIG)}: auto_map names code in the folder that computes the model. "
                "brt runs none; name a folder of a known architecture."
            )
        if self.config.get("quantization_config") is not None:
            raise ValueError(
                f"{self.file(CONFIG)}: quantization_config says that the weights are quantized. "
                "Load them with transformers, dequantize, and save them in float32."
            )

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _checked(self, name):
        check_inside(self.path, [name])
        return self.file(name)

    @functools.cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors by their names on disk; reads headers only."""
        names = sorted(os.listdir(self.path))
        counts = {name: int(match[1]) for name in names if (match := SHARD.fullmatch(name))}
        files = [WEIGHTS] if WEIGHTS in names else list(counts)
        if not files:
            raise ValueError(self._no_weights(names))
        if WEIGHTS not in names and set(counts.values()) != {len(counts)}:
            raise ValueError(
                f"{self.path} has only some of the files of its weights, or those of two models: "
                f"{', '.join(files[:9])}. Copy the whole folder again."
            )
        tensors: dict[str, TensorInfo] = {}
        for file in files:
            header = tensor_infos(self._checked(file))
            if twice := header.keys() & tensors.keys():
                raise ValueError(
                    f"{self.file(file)} holds {min(twice)}, and so does another file. Copy the "
                    "whole folder again."
                )
            tensors |= header
        return tensors

    def _no_weights(self, names):
        if not (other := [name for name in names if name.endswith(OTHER_WEIGHTS)]):
            return f"{self.path} has no {WEIGHTS}, nor its parts: copy the weights into it."
        return (
            f"{self.path} has its weights only as {', '.join(other)}: convert them as "
            "docs/pretrained.md, Getting weights, shows, with save_pretrained of transformers."
        )

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32; refuses types other than floats, and non-finite values."""
        info = self.tensors[name]
        return read_tensor(self.file(info.file), name, info)


def write_folder(
    path: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    copied_from: str | None = None,
    further: Mapping[str, bytes] | None = None,
) -> None:
    """Writes config.json, model.safetensors and tokenizer files for transformers, or nothing at
    all.

    path: of a new or empty folder. copied_from: a folder whose tokenizer files are copied.
    """
    path = folder_of(path)
    if is_remote(path):
        raise ValueError(f"{path} lies in a bucket: name a folder of a disk, and copy it there.")
    path = os.path.abspath(path)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise FileExistsError(f"{path} holds something already: name a new folder.")
    growing = f"{path}.growing-{os.getpid()}"
    os.makedirs(growing)
    try:
        text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
        Path(growing, CONFIG).write_text(text, encoding="utf-8")
        contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        save_file(contiguous, os.path.join(growing, WEIGHTS), metadata={"format": "pt"})
        # The library makes it readable to the owner only; other files have the mode of the umask.
        shutil.copymode(os.path.join(growing, CONFIG), os.path.join(growing, WEIGHTS))
        for name in TOKENIZER_FILES if copied_from else ():
            source = os.path.join(os.path.expanduser(copied_from or ""), name)
            if os.path.isfile(source):
                shutil.copyfile(source, os.path.join(growing, name))
        for name, content in (further or {}).items():
            Path(growing, name).write_bytes(content)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
        os.rename(growing, path)
    except BaseException:
        shutil.rmtree(growing, ignore_errors=True)
        raise
