"""Measures how long a run folder with many records takes until a run can go on in it.

    python scripts/scale/many_records.py [--lines 1000000]

The folder has that many lines of 20 numbers in metrics.jsonl, and the events of TensorBoard. It is
opened to go on from its last step twice: with its events as they are, and after they were lost.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from brt.training.records.event_files import EventFile
from brt.training.records.run_folder import RunFolder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=10**6)
    lines = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        events = EventFile(place)
        begun = time.process_time()
        with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
            for step in range(1, lines + 1):
                scalars = {f"train/number_{n}": n + 1 / step for n in range(20)}
                file.write(json.dumps({"step": step, **scalars}) + "\n")
                events.write(step, scalars)
        events.close()
        print(f"{lines:,} records written in {time.process_time() - begun:.1f} s")
        for what in ("events as they are", "events lost"):
            if what == "events lost":
                for path in folder.glob("events.*"):
                    path.unlink()
            begun = time.process_time()
            run = RunFolder(place)
            run.open_metrics(lines)
            run.close()
            seconds = time.process_time() - begun
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"opened in {seconds:.1f} s of processor time, {what}; {peak:,.0f} MB at most",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
