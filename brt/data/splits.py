"""Names of splits: the one check of what becomes part of a path."""

import re

ALLOWED = re.compile(r"\w[\w\-.\[\]:%+()]*")
"""Letters, digits, `_` and `-`, and what slices of TensorFlow Datasets need: `train[:10%]`."""


def check_split(split: str, name: str = "The name of a split,") -> str:
    """Returns a split's name, which stands in the names of folders and files that brt writes.

    Args:
        split: of a corpus, such as "validation".
        name: the binding or flag it was given by.

    Raises:
        ValueError: it is no plain name: empty, a path, or the name that an unfinished store has.
    """
    plain = isinstance(split, str) and ALLOWED.fullmatch(split) and ".." not in split
    if not plain or split.endswith(".partial"):
        raise ValueError(
            f"{name} = {split!r} is not the name of a split: use letters, digits, _ and -, as in "
            '"validation", or a slice as in "train[:10%]"; the source says where its files are.'
        )
    return split
