"""Measures processor time and memory of commands by the length of one document.

    python scripts/scale/long_document.py [--tokens 100000 10000000] [--rounds 3]

Each document is prepared, evaluated, recorded and continued. Exit status 0 if no command but the
recording, which holds the scores of a whole document, needs more than 5 % more memory than for the
first document.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

CONFIG = """
include "configs/recipes/small.gin"
include "configs/corpora/text.gin"
Evaluation.max_steps = None
Trainer.eval_every = 0
Trainer.steps = 1
Trainer.segment_length = 8192
Trainer.tokens_per_step = 8192
Evaluation.cleared = False
Corpus.store = "{folder}/store"
TextFiles.path = "{folder}/text/{{split}}"
BlockRecurrentTransformer.vocabulary_size = %vocabulary_size
BlockRecurrentTransformer.num_layers = 1
BlockRecurrentTransformer.width = 16
BlockRecurrentTransformer.num_heads = 2
BlockRecurrentTransformer.head_size = 8
BlockRecurrentTransformer.feed_forward_size = 32
BlockRecurrentTransformer.window = 256
BlockRecurrentTransformer.recurrent_layers = (0,)
RecurrentCell.num_states = 16
"""


def make_text(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(0)
    with open(path, "wb") as file:
        for start in range(0, size, 2**20):
            letters = rng.integers(97, 123, min(2**20, size - start), np.uint8)
            letters[::7] = ord(" ")
            file.write(letters.tobytes())


def peak_of(module: str, *arguments: str) -> tuple[float, float]:
    log = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    command = [sys.executable, "-m", module, *arguments]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=log)
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}.")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = folder / "config.gin"
        config.write_text(CONFIG.format(folder=folder))
        make_text(folder / "text" / "train" / "short.txt", 20_000)
        run = f"--workdir={folder}/run"
        peak_of("brt.train", f"--gin_file={config}", run)
        first: dict[str, float] = {}
        # The first length twice: the first time compiles the programs.
        for number, size in enumerate([arguments.tokens[0], *arguments.tokens]):
            split = f"number_{number}"
            text = folder / "text" / split / "long.txt"
            make_text(text, size)
            evaluated = run, f"--gin.Evaluation.split='{split}'"
            commands = {
                "prepared": (
                    "brt.prepare",
                    *(f"--gin_file={config}", f"--splits={split}", "--workers=1"),
                ),
                "evaluated": ("brt.evaluate", *evaluated),
                "recorded": ("brt.evaluate", *evaluated, "--record"),
                "continued": ("brt.generate", *(run, f"--prompt_file={text}", "--max_tokens=16")),
            }
            for name, command in commands.items():
                if not number:
                    peak_of(*command)
                    continue
                measured = []
                for _ in range(arguments.rounds):
                    # Preparation would not repeat existing files.
                    if name == "prepared":
                        shutil.rmtree(folder / "store" / split, ignore_errors=True)
                    elif name == "recorded":
                        shutil.rmtree(folder / "run" / "recordings", ignore_errors=True)
                    measured.append(peak_of(*command))
                # The compiler's threads add to the peak by chance.
                seconds, peak = (min(figures) for figures in zip(*measured))
                peaks = [figures[1] for figures in measured]
                first.setdefault(name, peak)
                above = peak / first[name] - 1
                if name != "recorded":
                    worst = max(worst, above)
                print(
                    f"{size:>12,} tokens {name:9}  {seconds:7.1f} s  {peak:5.0f} MB "
                    f"({min(peaks):.0f} to {max(peaks):.0f})  {above:+.1%}",
                    flush=True,
                )
    return int(worst > 0.05)


if __name__ == "__main__":
    sys.exit(main())
