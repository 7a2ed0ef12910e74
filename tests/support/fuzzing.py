"""Judges what becomes of bad input, and counts: a right result, or a sentence that names it.

Cases are drawn from a seed, so that one that fails can be run again by its number.
"""

import collections
import json
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
from absl import logging

from brt.bindings.errors import message
from brt.command_line import EXPLAINED

SECONDS = 90
"""After which a case counts as hung; the longest takes three on an idle machine."""

KINDS = ("right", "sentence", "unclear", "traceback", "hang", "silent")


class Hang(BaseException):
    """A case took too long."""


class Tally:
    """Counts outcomes; `check` shows those that must not be."""

    def __init__(self, name):
        self.name = name
        self.counts = collections.Counter()
        self.bad = []
        self.begun = time.monotonic()

    def judge(self, case, call, right, culprits):
        """Runs a case.

        Args:
            case: describes the damage, to reproduce it.
            call: returns a value, or raises.
            right: whether a value is right.
            culprits: texts of which a refusal must have one.
        """
        kind, detail = outcome(call, right, culprits)
        self.counts[kind] += 1
        if kind not in ("right", "sentence"):
            self.bad.append(f"{kind}: {case}: {detail}")

    def check(self):
        counts = "  ".join(f"{kind} {self.counts[kind]}" for kind in KINDS)
        seconds = time.monotonic() - self.begun
        line = f"{self.name}: cases {sum(self.counts.values())}  {counts}  ({seconds:.0f} s)"
        print(line)
        if file := os.environ.get("FUZZ_LOG"):
            with open(file, "a", encoding="utf-8") as log:
                print(line, *self.bad, sep="\n  ", file=log)
        assert sum(self.counts.values()) > 0
        assert not self.bad, "\n".join([line, *self.bad[:40]])


def outcome(call, right, culprits):
    """Returns one of `KINDS` and the value or the error as text."""

    def alarm(number, frame):
        raise Hang

    before = signal.signal(signal.SIGALRM, alarm)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    signal.alarm(SECONDS)
    try:
        value = call()
        return ("right", "") if right(value) else ("silent", repr(value)[:300])
    except Hang:
        return "hang", f"over {SECONDS} s"
    except EXPLAINED as error:
        text = message(error)
        named = any(str(culprit) in text for culprit in culprits)
        written = text and "Traceback" not in text and text.count("\n") <= 12
        return ("sentence" if named and written else "unclear"), f"{type(error).__name__}: {text}"
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {str(error)[:400]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        logging.set_verbosity(verbosity)


# Ways to spoil a file.


def flipped(rng, content):
    spoilt = bytearray(content)
    if spoilt:
        spoilt[rng.integers(len(spoilt))] ^= 1 << int(rng.integers(8))
    return bytes(spoilt)


def overwritten(rng, content):
    start = int(rng.integers(len(content) + 1))
    return content[:start] + rng.bytes(int(rng.integers(1, 64))) + content[start:]


CONTENTS = {
    "a flipped bit": flipped,
    "bytes put in": overwritten,
    "cut short": lambda rng, content: content[: int(rng.integers(len(content) + 1))],
    "longer": lambda rng, content: content + rng.bytes(int(rng.integers(1, 100))),
    "empty": lambda rng, content: b"",
    "zeros": lambda rng, content: bytes(len(content)),
    "half of it twice": lambda rng, content: content[: len(content) // 2] * 2,
    "other bytes": lambda rng, content: rng.bytes(len(content)),
    "a pickle": lambda rng, content: pickle.dumps("boom"),
    "an archive": lambda rng, content: b"PK\x03\x04" + content,
    "in UTF-16": lambda rng, content: content.decode("latin-1").encode("utf-16"),
    "with a byte order mark": lambda rng, content: b"\xef\xbb\xbf" + content,
    "with carriage returns": lambda rng, content: content.replace(b"\n", b"\r\n"),
    "brackets": lambda rng, content: b"[" * 100_000,
    "null": lambda rng, content: b"null\n",
    "a surrogate": lambda rng, content: b'{"a": "\\ud800"}\xed\xa0\x80',
}
KINDS_OF_FILES = {
    "missing": lambda path: None,
    "a FIFO": os.mkfifo,
    "a folder": os.mkdir,
    "a loop": lambda path: path.symlink_to(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "gone elsewhere": lambda path: path.symlink_to(path.with_name("nowhere")),
}


def spoil_file(rng, path: Path) -> str:
    """Spoils a file in some way; returns which."""
    way = [*CONTENTS, *KINDS_OF_FILES][int(rng.integers(len(CONTENTS) + len(KINDS_OF_FILES)))]
    if way in CONTENTS:
        path.write_bytes(CONTENTS[way](rng, path.read_bytes()))
    else:
        path.unlink()
        KINDS_OF_FILES[way](path)
    return way


VALUES = (
    *(None, True, False, 0, 1, -1, 2, 1.5, 2**70, -(2**63), 1e308, float("nan"), float("inf")),
    *("", "abc", "../../x", "/dev/zero", "<script>alert(1)</script>", "\ud800", "a\0b"),
    *([], {}, [None], [[[]]], {"a": 1}, [1, 2], ["x"]),
)


def spoil_json(rng, path: Path) -> str:
    """Changes a value somewhere in a JSON file, or takes a key away; returns which."""
    lines = path.read_text(encoding="utf-8").splitlines()
    of_lines = path.suffix == ".jsonl"
    number = int(rng.integers(len(lines))) if of_lines else 0
    content = json.loads(lines[number] if of_lines else "\n".join(lines))
    places = list(_places(content))
    holder, key, name = places[int(rng.integers(len(places)))]
    if rng.random() < 0.25:
        del holder[key]
        what = f"without {name}"
    else:
        holder[key] = VALUES[int(rng.integers(len(VALUES)))]
        what = f"{name} = {holder[key]!r}"
    if of_lines:
        lines[number] = json.dumps(content)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return what


def _places(content, name=""):
    """(holder, key, name) of every value in JSON."""
    if isinstance(content, dict | list):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in list(pairs):
            yield content, key, f"{name}.{key}".lstrip(".")
            yield from _places(value, f"{name}.{key}")


def same_arrays(first, second):
    pairs = list(zip(first, second, strict=True))
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
