"""Files in the safetensors format: a header with types and shapes, then the numbers.

The header is read alone, so that misfits are refused before memory is allocated.
"""

import os
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from brt.storage.regular_files import check_regular

FLOATS = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
ERRORS = (SafetensorError, MemoryError, OSError, OverflowError, ValueError)


class TensorInfo(NamedTuple):
    """A tensor of a file, not read: file, safetensors type, shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def tensor_infos(path: str | os.PathLike) -> dict[str, TensorInfo]:
    check_regular(path)
    try:
        with safe_open(path, "numpy") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            return {
                key: TensorInfo(os.path.basename(path), part.get_dtype(), tuple(part.get_shape()))
                for key, part in slices.items()
            }
    except ERRORS as error:
        raise ValueError(
            f"{os.fspath(path)} is no safetensors file, or only a part of one ({error}): copy it "
            "again."
        ) from None


def read_tensor(path: str | os.PathLike, name: str, info: TensorInfo) -> np.ndarray:
    """Returns a tensor as float32; refuses other types than floats, and values that are not finite.

    info: of `tensor_infos`.
    """
    path = os.fspath(path)
    if info.dtype not in FLOATS:
        raise ValueError(f"{path}: {name} is of type {info.dtype}; brt reads {', '.join(FLOATS)}.")
    try:
        with safe_open(path, "numpy") as file:
            array = file.get_tensor(name)
    except ERRORS as error:
        raise ValueError(f"{path} cannot be read ({error}).") from None
    if array.dtype != FLOATS[info.dtype]:
        array = array.view(FLOATS[info.dtype])
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{path}: {name} holds values that are not finite (in "
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} places)."
        )
    return array
