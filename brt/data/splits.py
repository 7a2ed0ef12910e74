"""The check of the names of splits, which become parts of paths."""

import re

ALLOWED = re.compile(r"\w[\w\-.\[\]:%+()]*")
"""With the characters of TensorFlow Datasets' slices, `train[:10%]`."""


def check_split(split: str, name: str = "The name of a split,") -> str:
    """Returns `split`; `name` is the binding or flag, for the message."""
    plain = isinstance(split, str) and ALLOWED.fullmatch(split) and ".." not in split
    if not plain or split.endswith(".partial"):
        raise ValueError(
            f"{name} = {split!r} is not the name of a split: use letters, digits, _ and -, as in "
            '"validation", or a slice as in "train[:10%]"; the source says where its files are.'
        )
    return split
