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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

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
    """Another value for a constant, from `start` to `stop` in a file of configs/.

    readers: names of `EXPERIMENTS`, and (sweep, row) of `SWEEPS`, that read it.
    """

    file: str
    name: str
    start: int
    stop: int
    old: str
    new: str
    readers: list


def constants(file: str, text: str) -> Iterator[tuple[str, Any, int, int]]:
    """Yields name, value, start and stop of the constants in a gin file or the rows of a sweep."""
    begin, end = (r"^([\w./]+) *= *", "\n") if file.endswith(".gin") else (r" ([\w./]+)=", r"\s")
    for found in re.finditer(rf"{begin}(?=[^@%\s])", text, re.M):
        if "#" in text[text.rfind("\n", 0, found.start()) + 1 : found.start()]:
            continue
        for stop in re.compile(end).finditer(text, start := found.end()):
            try:
                yield found[1], ast.literal_eval(text[start : stop.start()]), start, stop.start()
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
    for name in re.findall(r'^include "configs/(.*)"', text_of(file), re.M):
        found += included(name)
    return found


def text_of(file: str) -> str:
    return (ROOT / "configs" / file).read_text(encoding="utf-8")


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split("#")[0].strip()]


def readers() -> dict[str, list]:
    """Returns the readers of each file; those of a sweep are its rows, in order."""
    found = collections.defaultdict(list)

    def add(files, reader):
        for file in {part for first in files for part in included(first)}:
            found[file].append(reader)

    for name in EXPERIMENTS:
        add((str(Path(f).relative_to(ROOT / "configs")) for f in COMMANDS[name][0]), name)
    for sweep in SWEEPS:
        for number, row in enumerate(rows(text_of(f"sweeps/{sweep}.txt"))):
            add(row.split()[0].split("+"), (sweep, number))
            found[f"sweeps/{sweep}.txt"].append((sweep, number))
    return found


def changes(only: Sequence[str], seed: int) -> Iterator[Change]:
    """Yields a change of each constant in the files whose names begin so, or in all."""
    rng = random.Random(seed)
    for file, read_by in sorted(readers().items()):
        text = text_of(file)
        for name, value, start, stop in constants(file, text):
            changed = other(value, rng)
            if changed is None or name in OWN or (only and not file.startswith(tuple(only))):
                continue
            new, reading = repr(changed), read_by
            if file.endswith(".txt"):
                number = len(rows(text[:start])) - 1
                new, reading = new.replace(" ", ""), read_by[number : number + 1]
            yield Change(file, name, start, stop, repr(value), new, reading)


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
        return "refused: " + str(error).split("\n")[0]
    return f"differs: {problems[0]}" if problems else None


def campaign(chosen: Sequence[Change]) -> list[tuple[Change, str | None]]:
    """Judges every change; returns (change, sentence or None) pairs."""
    results, progress = [], Progress("changing configs", len(chosen))
    for sweep in SWEEPS:
        original_positions(sweep)  # while the working directory has the original files
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "configs", folder / "configs")
        for part in (folder / "configs").iterdir():  # rows of sweeps name files without configs/
            (folder / part.name).symlink_to(part)
        os.chdir(folder)  # includes are looked up from here
        for number, change in enumerate(chosen, 1):
            path, text = folder / "configs" / change.file, text_of(change.file)
            changed = f"{text[: change.start]}{change.new}{text[change.stop :]}"
            path.write_text(changed, encoding="utf-8")
            said = next((said for r in change.readers if (said := judged(folder, r))), None)
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
    only = list(filter(None, arguments.only.split(",")))
    results = campaign(list(changes(only, arguments.seed)))
    if not results:
        print("No binding of a published config is in these files.")
        return 1
    survivors = [change for change, said in results if said is None]
    refused = sum(said is not None and said.startswith("refused") for _, said in results)
    for change in survivors:
        line = text_of(change.file).count("\n", 0, change.start) + 1
        print(
            f"not noticed: {change.file}, line {line}: {change.name} = {change.old} -> {change.new}"
        )
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
