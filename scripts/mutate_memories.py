"""Makes every memory wrong in several ways, and shows that a test notices each.

    python scripts/mutate_memories.py
    python scripts/mutate_memories.py --only=compressive,window_off_by_one

Each mutation of wrong_memories.py is made in a copy of the repository, where tests/laws run for the
architectures with that memory until one fails. The tests that caught a mutation must pass on the
unchanged copy. Exit status 0 if every mutation is caught.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

from wrong_memories import MUTATIONS, Mutation, apply  # noqa: E402

from brt.progress import Progress  # noqa: E402

LAWS = ("test_axis_rules", "test_cache_laws", "test_references", "test_laws")
"""Files of tests/laws, the quickest first."""


class Result(NamedTuple):
    """The test that caught a mutation, or None."""

    mutation: Mutation
    caught_by: str | None
    seconds: float


def copied(folder: Path) -> Path:
    """Copies the files that git does not ignore."""
    kinds = ["--cached", "--others", "--exclude-standard"]
    command = ["git", "ls-files", "-z", *kinds, "--", "brt", "tests", "configs", ".pytest.ini"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, programs: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs pytest in a copy; runs share the compiled `programs`."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done


def judged(mutation: Mutation, folder: Path, programs: Path) -> Result:
    """Makes a mutation, runs the tests of its architectures, and reverts it."""
    begun = time.monotonic()
    changed = apply(mutation, folder)
    selected = " or ".join(f"[{name}] or [{name}-" for name in mutation.architectures)
    files = [f"tests/laws/{law}.py" for law in LAWS]
    done = run_tests(folder, programs, "-k", selected, *files)
    for path in changed:
        shutil.copy2(ROOT / path.relative_to(folder), path)
    found = re.search(r"^(?:FAILED|ERROR) tests/laws/(\S+\.py::.+?)(?: - .*)?$", done.stdout, re.M)
    if done.returncode and not found:
        raise RuntimeError(f"{mutation.name}: pytest names no failed test:\n{done.stdout}")
    return Result(mutation, found and found[1], time.monotonic() - begun)


def table(results: list[Result]) -> str:
    """Returns aligned lines."""
    rows = [("mutation", "verdict", "by", "seconds")]
    for mutation, test, seconds in results:
        verdict = "SURVIVED" if test is None else "caught"
        rows.append((mutation.name, verdict, test or "", f"{seconds:.0f}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row[:-1], widths)]
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1])]))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Names or beginnings of names, by commas.")
    wanted = tuple(name for name in parser.parse_args().only.split(",") if name)
    chosen = [m for m in MUTATIONS if not wanted or m.name.startswith(wanted)]
    if not chosen:
        names = ", ".join(mutation.name for mutation in MUTATIONS)
        print(f"No mutation is called {','.join(wanted)}: choose of {names}.")
        return 1
    results, progress = [], Progress("wrong memories", len(chosen))
    with tempfile.TemporaryDirectory() as name:
        folder, programs = copied(Path(name) / "copy"), Path(name) / "programs"
        for number, mutation in enumerate(chosen, 1):
            results.append(judged(mutation, folder, programs))
            test = results[-1].caught_by
            verdict = "SURVIVED" if test is None else f"caught by {test}"
            progress.update(number, f"{mutation.name}: {verdict}")
        progress.close()
        tests = {f"tests/laws/{result.caught_by}" for result in results if result.caught_by}
        unchanged = run_tests(folder, programs, *sorted(tests)) if tests else None
    print(table(results))
    survivors = [result.mutation.name for result in results if result.caught_by is None]
    print(f"{len(results) - len(survivors)} of {len(results)} wrong memories are caught.")
    if unchanged and unchanged.returncode:
        print(f"A test that caught one fails on the unchanged code too:\n{unchanged.stdout}")
        return 1
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
