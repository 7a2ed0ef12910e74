"""Says how far a long pass over documents has come."""

import sys
import time
from collections.abc import Iterable, Iterator

from absl import logging
from tqdm import tqdm

REPORT_SECONDS = 10


def reported(documents: Iterable, label: str, total: int | None = None) -> Iterator:
    """Passes documents on and shows their number, their rate and, given `total`, what is left.

    On a terminal this is a live bar; elsewhere it is a log line every 10 seconds, so that the
    output of a batch job stays short. Both go to stderr.
    """
    if sys.stderr.isatty():
        yield from tqdm(documents, desc=label, total=total, unit="document")
        return
    begun = last = time.monotonic()
    for number, document in enumerate(documents, 1):
        yield document
        now = time.monotonic()
        if now - last >= REPORT_SECONDS:
            last = now
            known = "" if total is None else f" of {total}"
            rate = number / (now - begun)
            logging.info("%s: %d%s documents, %.3g documents/s", label, number, known, rate)
