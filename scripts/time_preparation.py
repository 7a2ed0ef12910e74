"""Times preparation with one worker and with several, by turns.

    python scripts/time_preparation.py --text='books/test/*.txt' --vocabulary=spiece.model

Each preparation is a process of its own, imports included. Wall seconds say how fast it is where
the machine is quiet; CPU seconds (all processes) say what it costs where it is not.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

PREPARE = """
import sys
from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles

Corpus(sys.argv[1], TextFiles(sys.argv[2]), sys.argv[3]).prepare(
    "train", quiet=True, workers=int(sys.argv[4])
)
"""


def timed(text: str, vocabulary: str, workers: int) -> tuple[float, float]:
    """Returns wall and CPU seconds of one preparation."""

    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        begun, before = time.monotonic(), cpu()
        command = [sys.executable, "-c", PREPARE, folder, text, vocabulary, str(workers)]
        subprocess.run(command, check=True)
        return time.monotonic() - begun, cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="pattern of text files")
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ratios = []
    for number in range(1, arguments.rounds + 1):
        found = {w: timed(arguments.text, arguments.vocabulary, w) for w in (1, arguments.workers)}
        ratios.append(found[1][0] / found[arguments.workers][0])
        times = ", ".join(f"{w}: {t:.1f} s ({c:.1f} s CPU)" for w, (t, c) in found.items())
        load = os.getloadavg()[0]
        print(f"round {number}, workers {times}, {ratios[-1]:.2f} x, load {load:.1f}", flush=True)
    print(f"median {statistics.median(ratios):.2f} x, best {max(ratios):.2f} x")


if __name__ == "__main__":
    main()
