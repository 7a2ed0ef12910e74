"""A terminal for the standard streams of this process."""

import os
import pty
import select
import sys
import termios
from contextlib import contextmanager

import pytest


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
            parts = []  # output to a terminal may arrive in several parts
            while select.select([ours], [], [], 0.3)[0]:
                parts.append(os.read(ours, 65536))
            return b"".join(parts).decode().replace("\r\n", "\n")

        yield read
    os.close(ours)
