"""Changes each published number of configs/, and counts the changes that checks notice.

    python scripts/mutate_configs.py
    python scripts/mutate_configs.py --only=rmt,sweeps/rmt_table_5 --seed=1 --json=FILE

Each constant of a published experiment or of a sweep's row is changed once in a copy of configs/.
The config is parsed, built and compared with the published numbers, as
tests/commands/test_published_numbers.py does. Exit status 0 if 97 % of the changes are noticed.
"""

import argparse
import ast
import collections
import functools
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("tests/support", "")
sys.path[:0] = [str(ROOT / place) for place in PLACES]

from header_commands import COMMANDS  # noqa: E402
from published_checks import (  # noqa: E402
    EXPERIMENTS,
    SWEEPS,
    entries,
    experiment_problems,
    position_of,
    row_problems,
)

from brt.host.progress import Progress  # noqa: E402
from brt.sweeps.scales import SweepError  # noqa: E402

OWN = (
    *("Trainer.log_every", "Trainer.remat_segments", "CheckpointPolicy.every"),
    *("BlockRecurrentTransformer.remat", "TransformerXL.remat", "constant_rate.value"),
    *("Corpus.store", "Corpus.vocabulary"),
    "weights",
    *("RecurrentMemoryTransformer.allow_long_memory", "TransformerXL.position_rows"),
)
"""Excluded bindings that no paper gives."""
WANTED = 0.97
"""Share of changes that must be noticed."""
OTHER_STRINGS = {
    "fixed": "lstm", "lstm": "fixed", "skip": "dual", "dual": "single", "single": "skip",
    "bucketed": "exact", "dense": "exact", "layer": "none", "contiguous": "shuffled",
    "shuffled": "contiguous", "samples": "documents", "bfloat16": "float32", "width": "vocabulary",
    "float32": "bfloat16", "identical": "independent", "shaw": "relative", "absolute": "learned",
    "learned": "absolute", "half": "full", "book_text": "book_title", "book_title": "book_text",
}  # fmt: skip
"""Another valid choice, if any."""


class Change(NamedTuple):
    """A changed binding."""

    file: str
    row: int | None
    name: str
    old: str
    new: str


def bindings_of(text: str) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """Yields name, constant and span of each binding of a gin text, without references."""
    for found in re.finditer(r"^([\w./]+) *= *(?=[^@%\s])", text, re.M):
        end = found.end()
        while (end := text.find("\n", end + 1)) != -1:
            try:
                yield found[1], ast.literal_eval(text[found.end() : end]), (found.end(), end)
                break
            except SyntaxError:  # a value of several lines, or with references
                continue


def other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([n for n in (2 * value, value // 2, value + 1, value - 1) if n != value])
    if isinstance(value, float):
        return rng.choice([2 * value, value / 2, 1.1 * value]) if value else rng.choice([1e-5, 0.1])
    if isinstance(value, str):
        return OTHER_STRINGS.get(value, f"{value}_2" if value else "# {path}")
    if isinstance(value, dict):
        return {name: other(entry, rng) for name, entry in value.items()}
    if isinstance(value, tuple) and value:
        place = rng.randrange(len(value))
        if isinstance(value[place], str):
            return value[:place] + value[place + 1 :]
        return (*value[:place], other(value[place], rng), *value[place + 1 :])
    return ("changed",) if value == () else None


def included(file: str) -> list[str]:
    found = [file]
    text = (ROOT / "configs" / file).read_text(encoding="utf-8")
    for name in re.findall(r'^include "configs/(.*)"', text, re.M):
        found += included(name)
    return found


def rows_of(text: str) -> list[int]:
    return [n for n, line in enumerate(text.splitlines()) if line.split("#")[0].strip()]


def readers() -> dict[str, list]:
    """Returns, by file, the names of `EXPERIMENTS` and (sweep, row) of `SWEEPS` that read it."""
    found = collections.defaultdict(list)
    for name in EXPERIMENTS:
        files = [str(Path(file).relative_to(ROOT / "configs")) for file in COMMANDS[name][0]]
        for file in {f for part in files for f in included(part)}:
            found[file].append(name)
    for sweep in SWEEPS:
        lines = (ROOT / "configs/sweeps" / f"{sweep}.txt").read_text("utf-8").splitlines()
        rows = [line for line in lines if line.split("#")[0].strip()]
        for number, line in enumerate(rows):
            for file in {f for part in line.split()[0].split("+") for f in included(part)}:
                found[file].append((sweep, number))
    return found


def changes(files: Iterable[str], rng: random.Random) -> list[Change]:
    found = []
    for file in sorted(files):
        text = (ROOT / "configs" / file).read_text(encoding="utf-8")
        for name, value, _ in bindings_of(text):
            changed = other(value, rng)
            if changed is not None and name not in OWN:
                found.append(Change(file, None, name, repr(value), repr(changed)))
    for sweep in sorted(SWEEPS):
        file = f"sweeps/{sweep}.txt"
        lines = (ROOT / "configs" / file).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(line for line in lines if line.split("#")[0].strip()):
            for word in line.split()[1:]:
                name, value = word.split("=", 1)
                if value.startswith(("@", "%")) or name in OWN:  # a reference is no constant
                    continue
                changed = repr(other(ast.literal_eval(value), rng)).replace(" ", "")
                found.append(Change(file, number, name, value, changed))
    return found


def changed_text(text: str, change: Change) -> str:
    if change.row is not None:
        lines = text.splitlines()
        place = rows_of(text)[change.row]
        lines[place] = " ".join(
            f"{change.name}={change.new}" if word == f"{change.name}={change.old}" else word
            for word in lines[place].split()
        )
        return "\n".join(lines) + "\n"
    for name, value, (start, end) in bindings_of(text):
        if (name, repr(value)) == (change.name, change.old):
            return f"{text[:start]}{change.new}{text[end:]}"
    raise AssertionError(change)


@functools.cache
def original_positions(sweep: str) -> list:
    """Returns the position of each entry of an unchanged sweep in the papers."""
    return [position_of(entry.settings)[1] for entry in entries(sweep)]


def judged(folder: Path, reader: str | tuple[str, int]) -> str | None:
    """Returns a sentence of the checks on a reader of the changed file, or None."""
    try:
        if isinstance(reader, str):
            problems = experiment_problems(reader, folder / "configs")
        else:
            sweep, number = reader
            entry = entries(sweep, folder / "configs")[number]
            problems = row_problems(entry, sweep)
            if position_of(entry.settings)[1] != original_positions(sweep)[number]:
                problems = ["it stands for another row or point"]
    except (ValueError, TypeError, SweepError, OSError) as error:
        return f"refused: {str(error).splitlines()[0]}"
    return f"differs: {problems[0]}" if problems else None


def campaign(only: Sequence[str], seed: int) -> list[tuple[Change, str | None]]:
    """Judges every change; returns (change, sentence or None) pairs."""
    read_by, rng = readers(), random.Random(seed)
    chosen = [c for c in changes(read_by, rng) if not only or c.file.startswith(tuple(only))]
    results, progress = [], Progress("changing configs", len(chosen))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "configs", folder / "configs")
        os.chdir(folder)  # includes are looked up from here
        for number, change in enumerate(chosen, 1):
            path = folder / "configs" / change.file
            text = path.read_text(encoding="utf-8")
            path.write_text(changed_text(text, change), encoding="utf-8")
            sweep = Path(change.file).stem
            reading = [(sweep, change.row)] if change.row is not None else read_by[change.file]
            said = next((said for r in reading if (said := judged(folder, r))), None)
            path.write_text(text, encoding="utf-8")
            results.append((change, said))
            progress.update(number)
        os.chdir(ROOT)
    progress.close()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Files or folders of configs/, by commas.")
    parser.add_argument("--seed", type=int, default=0, help="Decides what becomes of each value.")
    parser.add_argument("--json", help="Also write every change and what was said of it here.")
    arguments = parser.parse_args()
    results = campaign([name for name in arguments.only.split(",") if name], arguments.seed)
    if not results:
        print("No binding of a published config is in these files.")
        return 1
    survivors = [change for change, said in results if said is None]
    refused = sum(said is not None and said.startswith("refused") for _, said in results)
    for change in survivors:
        where = change.file if change.row is None else f"{change.file}, row {change.row + 1}"
        print(f"not noticed: {where}: {change.name} = {change.old} -> {change.new}")
    share = 1 - len(survivors) / len(results)
    print(
        f"{len(results) - len(survivors):,} of {len(results):,} changes noticed, {share:.1%}: "
        f"{len(results) - len(survivors) - refused:,} differ from the published numbers, "
        f"{refused:,} are refused by brt."
    )
    if arguments.json:
        content = [{**change._asdict(), "said": said} for change, said in results]
        Path(arguments.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
