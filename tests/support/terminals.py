"""A terminal for the standard streams of this process."""

import os
import pty
import sys
import termios
from contextlib import contextmanager

import pytest

END = b"\0"


@contextmanager
def terminal():
    """Makes stdout and stderr a terminal; yields a function that reads what appeared on it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with open(theirs, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
        for name in ("stdout", "stderr"):
            patch.setattr(sys, name, stream)

        def read():
            stream.flush()
            os.write(stream.fileno(), END)
            found = b""  # output to a terminal may arrive in several parts
            while not found.endswith(END):
                found += os.read(ours, 65536)
            return found.removesuffix(END).decode().replace("\r\n", "\n")

        yield read
    os.close(ours)
