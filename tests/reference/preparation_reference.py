"""Sources and vocabularies that worker processes can import, and that tell what they have done."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from brt.data.sources.files import TextFiles
from brt.data.vocabularies.base import ByteVocabulary


class Observed(ByteVocabulary):
    """Bytes, whole; leaves a file `<title>.<process>` in `folder` for each document it encodes.

    Documents may ask for more: `kill` ends the process that encodes it, as long as there is a file
    `armed` in the folder; `wait` gives the others time; `big` makes an id the vocabulary lacks.
    """

    name = "observed"
    fingerprint = "3" * 64
    unknown_id = ord("?")
    cuts_after = None

    def __init__(self, folder):
        self.seen = Path(folder)

    def encode(self, data, title):
        assert not {"jax", "tensorflow", "sentencepiece"} & set(sys.modules) or here(self.seen)
        with open(self.seen / f"{title}.{os.getpid()}", "a") as file:
            file.write("encoded\n")
        if data.startswith(b"kill") and (self.seen / "armed").exists():
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if data.startswith(b"big"):
            return np.array([1, 300])
        return super().encode(data, title)


def here(folder):
    """Whether this process is the one that the test runs in."""
    return (folder / f"home.{os.getpid()}").exists()


class Touching(TextFiles):
    """Text files, one of which somebody changes when another is read."""

    def read(self, part):
        if part.endswith("5.txt"):
            changed = Path(part).with_name("0.txt")
            changed.write_bytes(changed.read_bytes() + b".")
        return super().read(part)


class Slow(Observed):
    """Observed, and takes a moment for each document."""

    def encode(self, data, title):
        time.sleep(0.3)
        return super().encode(data, title)
