"""Kills and repeats a preparation at random moments, and compares the token store.

    python scripts/kill_preparation.py [--kills 10] [--workers 2] [--seed 0]

Exit status 0 if all files equal those of an undisturbed preparation by one process, and no finished
shard was made twice. Makes text and a SentencePiece model.
"""

import argparse
import filecmp
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from time_preparation import PREPARE


def make_text(folder: Path, megabytes: int, rng: random.Random) -> tuple[str, str]:
    from sentencepiece import SentencePieceTrainer

    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(2000)]
    folder.mkdir()
    for number in range(20 * megabytes):
        text = " ".join(rng.choices(words, k=rng.randint(5_000, 12_000)))
        (folder / f"{number:04}.txt").write_text(text, encoding="utf-8")
    model = folder.parent / "pieces.model"
    with open(model, "wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=(" ".join(rng.choices(words, k=20)) for _ in range(1000)),
            model_writer=file,
            vocab_size=500,
            model_type="bpe",
            minloglevel=2,
        )
    return f"{folder}/*.txt", str(model)


def begin(store: Path, workers: int, settings: Sequence[str]) -> subprocess.Popen:
    command = [sys.executable, "-c", PREPARE, str(store), *settings[:2], str(workers), settings[2]]
    with open(f"{store}.log", "a", encoding="utf-8") as log:
        return subprocess.Popen(command, stderr=log)


def finish(store: Path, workers: int, settings: Sequence[str]) -> None:
    if begin(store, workers, settings).wait():
        sys.exit(Path(f"{store}.log").read_text(encoding="utf-8"))


def shards(store: Path) -> dict[str, int]:
    found = {}
    for path in (store / "train").glob("shard-?????/tokens.bin"):
        found[path.parent.name] = path.stat().st_mtime_ns
    return found


def killed(
    store: Path,
    workers: int,
    settings: Sequence[str],
    count: float,
    wait: float,
    rng: random.Random,
) -> bool:
    """Kills the preparation after `count` shards; false if it ended before."""
    process = begin(store, workers, settings)
    time.sleep(rng.uniform(0, wait))  # which may be before anything is imported
    while len(shards(store)) < count and process.poll() is None:
        time.sleep(rng.uniform(0, wait / 5))
    if process.poll() is not None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # workers end with their parent
    return True


def kill_often(
    store: Path, kills: int, workers: int, settings: Sequence[str], rng: random.Random
) -> bool:
    """Kills the preparation often, then lets it finish; false if a shard was made twice."""
    size = sum(path.stat().st_size for path in map(Path, glob.glob(settings[0])))
    total = size // int(settings[2])
    moments = sorted(rng.uniform(0, 0.9) for _ in range(kills))
    finished: dict[str, int] = {}
    once = True
    for number, moment in enumerate(moments, 1):
        wait = 0.5
        while not killed(store, workers, settings, moment * total, wait, rng):
            shutil.rmtree(store)  # a fast machine: again, with an earlier kill
            finished = {}
            wait /= 2
            if wait < 0.01:
                sys.exit(f"The preparation ended before kill {number}; use more --megabytes.")
        now = shards(store)
        once &= all(now.get(name) == when for name, when in finished.items())
        finished = now
        print(f"kill {number:2} of {kills}: {len(now):3} of about {total} shards", flush=True)
    finish(store, workers, settings)
    return once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard_bytes", type=int, default=2**18)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = make_text(folder / "text", arguments.megabytes, rng)
        settings = *texts, str(arguments.shard_bytes)
        finish(folder / "whole", 1, settings)
        once = kill_often(folder / "killed", arguments.kills, arguments.workers, settings, rng)
        whole, killed = folder / "whole" / "train", folder / "killed" / "train"
        files, others = (
            sorted(p.relative_to(store) for p in store.rglob("*") if p.is_file())
            for store in (whole, killed)
        )
        same = files == others and all(
            filecmp.cmp(whole / file, killed / file, shallow=False) for file in files
        )
        left = [path.name for path in killed.parent.iterdir() if path.name[0] != "."]
        print(f"{len(files)} files compared:", "equal" if same else "NOT equal", "byte for byte")
        if not once:
            print("a finished shard was made again")
        return 0 if same and once and left == ["train"] else 1


if __name__ == "__main__":
    sys.exit(main())
