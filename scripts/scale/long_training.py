"""Trains for hours on several processes, and measures growth of memory, files and step time.

    source scripts/malloc.sh
    python scripts/scale/long_training.py --workdir soak --hours 6 [--processes 2]

A small model is evaluated every 200 steps and saved every 100. Samples of each process are written
to WORKDIR/samples.jsonl every half minute; the same command continues, and `--hours 0` prints the
table alone. Exit status 0 if after ten minutes memory and processor time per step grow by at most 5
%, and open files do not (docs/benchmarks/robustness.md).
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WARM_UP_SECONDS = 600
SAMPLE_SECONDS = 30
TENTHS = 10

CONFIG = """
include "configs/recipes/small.gin"
include "configs/corpora/text.gin"
CheckpointPolicy.every = 100
Evaluation.max_steps = 4
Trainer.steps = 1_000_000_000
Trainer.segment_length = 64
Trainer.tokens_per_step = 512
Corpus.store = "{folder}/store"
TextFiles.path = "{folder}/text/{{split}}"
BlockRecurrentTransformer.vocabulary_size = %vocabulary_size
BlockRecurrentTransformer.num_layers = 2
BlockRecurrentTransformer.width = 32
BlockRecurrentTransformer.num_heads = 2
BlockRecurrentTransformer.head_size = 16
BlockRecurrentTransformer.feed_forward_size = 64
BlockRecurrentTransformer.window = 16
BlockRecurrentTransformer.recurrent_layers = (1,)
RecurrentCell.num_states = 8
"""


def make_text(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("validation", 8)):
        (folder / split).mkdir(parents=True)
        for number in range(count):
            letters = rng.integers(97, 123, 50_000, np.uint8)
            letters[::7] = ord(" ")
            (folder / split / f"{number:02}.txt").write_bytes(letters.tobytes())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(folder: Path, count: int) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", "brt.train", f"--gin_file={folder}/config.gin"]
    command += [f"--workdir={folder}/run"]
    if count > 1:
        command += [f"--coordinator_address=localhost:{free_port()}", f"--num_processes={count}"]
    processes = []
    for number in range(count):
        own = [f"--process_id={number}"] if count > 1 else []
        with open(folder / f"process_{number}.log", "ab") as log:
            processes.append(subprocess.Popen([*command, *own], stdout=log, stderr=log))
    return processes


def sample(process: int) -> dict[str, float]:
    """Returns megabytes, open files and processor seconds of a process."""
    place = Path("/proc") / str(process)
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    times = (place / "stat").read_text().rsplit(")", 1)[1].split()
    return {
        "megabytes": int(status["VmRSS"].split()[0]) / 1024,
        "files": len(os.listdir(place / "fd")),
        "seconds": (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
    }


def last_step(metrics: Path) -> int:
    if not metrics.exists():
        return 0
    with open(metrics, "rb") as file:
        file.seek(max(0, metrics.stat().st_size - 16_384))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1])["step"] if lines else 0


def train(folder: Path, hours: float, count: int) -> None:
    processes = start(folder, count)
    begun, start_time = time.monotonic(), round(time.time())
    with open(folder / "samples.jsonl", "a", encoding="utf-8") as out:
        while time.monotonic() - begun < hours * 3600:
            time.sleep(SAMPLE_SECONDS)
            if any(process.poll() is not None for process in processes):
                for process in processes:
                    process.kill()
                sys.exit(f"A process ended too early: see {folder}/process_*.log")
            line = {
                "start": start_time,
                "elapsed": round(time.monotonic() - begun, 1),
                "step": last_step(folder / "run" / "metrics.jsonl"),
                "processes": [sample(process.pid) for process in processes],
            }
            print(json.dumps(line), file=out, flush=True)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    statuses = [process.wait(600) for process in processes]
    print(f"Stopped by SIGTERM; exit statuses {statuses}.")


def read_samples(path: Path) -> list[list[dict]]:
    starts: dict[int, list[dict]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        starts.setdefault(found["start"], []).append(found)
    return list(starts.values())


def tenths(samples: list[dict]) -> list[dict[str, float]]:
    """Returns memory, open files and time per step of the tenths of a start after the warm-up."""
    warm = [found for found in samples if found["elapsed"] >= WARM_UP_SECONDS]
    rows = []
    for number in range(TENTHS):
        part = warm[len(warm) * number // TENTHS : len(warm) * (number + 1) // TENTHS + 1]
        steps = part[-1]["step"] - part[0]["step"]
        seconds = [
            sum(process["seconds"] for process in found["processes"])
            for found in (part[0], part[-1])
        ]
        rows.append(
            {
                "hours": part[-1]["elapsed"] / 3600,
                "step": part[-1]["step"],
                "megabytes": max(p["megabytes"] for found in part for p in found["processes"]),
                "files": min(max(p["files"] for p in found["processes"]) for found in part),
                "milliseconds": (seconds[1] - seconds[0]) / max(steps, 1) * 1000,
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    folder = arguments.workdir.resolve()
    if not (folder / "config.gin").exists():
        make_text(folder / "text")
        (folder / "config.gin").write_text(CONFIG.format(folder=folder), encoding="utf-8")
    if arguments.hours:
        train(folder, arguments.hours, arguments.processes)
    if not (folder / "samples.jsonl").exists():
        sys.exit(f"There is no {folder}/samples.jsonl: nothing was trained there, give --hours.")
    grown = False
    for samples in read_samples(folder / "samples.jsonl"):
        if sum(found["elapsed"] >= WARM_UP_SECONDS for found in samples) < 2 * TENTHS:
            print("A start of less than 20 minutes: nothing to compare.")
            continue
        print("hours      step  MB at most  open files  processor ms a step")
        rows = tenths(samples)
        for row in rows:
            print(
                f"{row['hours']:5.2f}  {row['step']:>8,}  {row['megabytes']:>10.1f}  "
                f"{row['files']:>10}  {row['milliseconds']:>19.2f}"
            )
        first, last = rows[0], rows[-1]
        grown |= last["megabytes"] > 1.05 * first["megabytes"]
        grown |= last["milliseconds"] > 1.05 * first["milliseconds"]
        grown |= last["files"] > first["files"]
    return int(grown)


if __name__ == "__main__":
    sys.exit(main())
