"""Times preparation with one worker, with several, and with --beam on Apache Beam.

python scripts/time_preparation.py --text='books/test/*.txt' --vocabulary=spiece.model [--beam]
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
from brt.data.stores.distributed import BeamRunner

folder, text, vocabulary, workers, shard_bytes, *options = sys.argv[1:]
Corpus(folder, TextFiles(text), vocabulary).prepare(
    "train",
    quiet=True,
    workers=int(workers),
    shard_bytes=int(shard_bytes) or None,
    runner=BeamRunner("FnApiRunner", options) if options else None,
)
"""

BEAM = ("--direct_running_mode=multi_processing", "--direct_num_workers={}")


def timed(
    text: str, vocabulary: str, workers: int, shard_bytes: int, beam: bool
) -> tuple[float, float]:
    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        begun, before = time.monotonic(), cpu()
        command = [sys.executable, "-c", PREPARE, folder, text, vocabulary, str(workers)]
        command += [str(shard_bytes), *[word.format(workers) for word in BEAM if beam]]
        subprocess.run(command, check=True)
        return time.monotonic() - begun, cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="pattern of text files")
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard_bytes", type=int, default=0, help="0 for as many as brt takes")
    parser.add_argument("--beam", action="store_true", help="time Beam's local runner too")
    arguments = parser.parse_args()
    ratios = []
    of_beam = []
    for number in range(1, arguments.rounds + 1):
        ways = {"1": (1, False), f"{arguments.workers}": (arguments.workers, False)}
        if arguments.beam:
            ways[f"Beam, {arguments.workers}"] = arguments.workers, True
        found = {
            name: timed(arguments.text, arguments.vocabulary, w, arguments.shard_bytes, beam)
            for name, (w, beam) in ways.items()
        }
        one, pool, *beam = found.values()
        ratios.append(one[0] / pool[0])
        of_beam += [(wall / pool[0], cpu / pool[1]) for wall, cpu in beam]
        times = ", ".join(f"{name}: {t:.1f} s ({c:.1f} s CPU)" for name, (t, c) in found.items())
        load = os.getloadavg()[0]
        print(f"round {number}, workers {times}, {ratios[-1]:.2f} x, load {load:.1f}", flush=True)
    print(f"median {statistics.median(ratios):.2f} x, best {max(ratios):.2f} x")
    for number, what in enumerate(["wall", "CPU"] if of_beam else []):
        median = statistics.median(pair[number] for pair in of_beam)
        print(f"Beam takes {median:.2f} x the {what} seconds of the pool, median")


if __name__ == "__main__":
    main()
