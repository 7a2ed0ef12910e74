"""Progress of a command: a live bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from brt.host.terminal import plain, printable, shown

SECONDS = 10.0
"""Least seconds between plain lines, so that a batch job's log stays short."""


def say(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class Progress:
    """Progress of counted work, on stderr.

    Args:
        label: None to show nothing, as in all processes of a run but the first.
        total: None where it is not known.
        delay: seconds before a live bar appears, for work that is often short.
    """

    def __init__(self, label: str | None, total: int | None, start: int = 0, delay: float = 0.0):
        self.label = label
        self.total = total
        self.begun = self.last = time.monotonic()
        self.first: tuple[int, float] | None = None
        self.bar = None
        if label and sys.stderr is not None and sys.stderr.isatty():
            with contextlib.suppress(OSError):
                # A notebook keeps every state of the bar.
                seconds = SECONDS if "JPY_PARENT_PID" in os.environ else 0.1
                self.bar = tqdm(
                    desc=printable(label),
                    file=plain(sys.stderr),
                    total=total,
                    initial=start,
                    dynamic_ncols=True,
                    mininterval=seconds,
                    miniters=1,
                    delay=delay,
                )

    def update(self, done: int, text: str | None = None, speed: str = "") -> None:
        """Shows the count `done`; without a bar, `text` at once and `speed` with the next line."""
        now = time.monotonic()
        if self.first is None:  # excluded from the rate: the first may have compiled
            self.first = done, now
        if self.bar is not None:
            with contextlib.suppress(OSError):
                if text is not None or speed:
                    self.bar.set_postfix_str(text or speed, refresh=False)
                self.bar.update(done - self.bar.n)
            return
        if not self.label or (text is None and now - self.last < SECONDS):
            return
        self.last = now
        total = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self.label} {done:,}{total}", text or "", speed, self._left(done, now)]
        say("  ".join(part for part in parts if part))

    def _left(self, done, now):
        first, begun = self.first or (done, now)
        rate = (done - first) / max(now - begun, 1e-9)
        if not rate:
            return ""
        if self.total is None:
            return f"{rate:.3g}/s"
        seconds = int((self.total - done) / rate)
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"

    def note(self, text: str) -> None:
        if not self.label:
            return
        if self.bar is None:
            say(text)
        else:
            with contextlib.suppress(OSError):
                self.bar.write(shown(text), file=self.bar.fp)

    def close(self) -> None:
        if self.bar is not None:
            with contextlib.suppress(OSError):
                self.bar.close()


def reported(items: Iterable, label: str, total: int | None = None, delay: float = 0.0) -> Iterator:
    """Yields items and shows how many are done."""
    with contextlib.closing(Progress(label, total, delay=delay)) as progress:
        for number, item in enumerate(items, 1):
            yield item
            progress.update(number)
