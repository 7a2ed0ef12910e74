"""Archives of run folders, without checkpoints."""

import bz2
import io
import json
import tarfile
from pathlib import Path

from brt.reporting.runs import STANDS_FOR_FILE
from brt.storage.regular_files import open_regular
from brt.storage.replaced_files import replace_file
from brt.training.records.run_folder import check_run_folder

METRICS, DIGITS = "metrics.jsonl", 7
"""File whose numbers are rounded to the digits of a float32."""
PATTERNS = (
    "config.gin",
    "operative_config.gin",
    "command.txt",
    "environment.json",
    METRICS,
    STANDS_FOR_FILE,
    "evaluation_*.json",
    "studies/*.json",
    "studies/answers.npz",  # small, as the next, unlike the arrays of other studies
    "studies/recl.npz",
)
ENDING = ".tar.bz2"

DAMAGE = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError)


def pack(run: Path, archive: Path) -> None:
    """Writes a run folder's records as NAME.tar.bz2; equal records give equal bytes.

    Numbers of metrics are rounded to `DIGITS`.
    """
    if not (run / "config.gin").is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it has no config.gin.")
    check_run_folder(run)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for pattern in PATTERNS for path in run.glob(pattern)):
            entry = tarfile.TarInfo(path.relative_to(run).as_posix())  # no owner and no time
            data = path.read_bytes()
            if path.name == METRICS:
                data = b"".join(map(_rounded, data.splitlines(keepends=True)))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    archive.parent.mkdir(parents=True, exist_ok=True)
    replace_file(archive.parent, archive.name, bz2.compress(content.getvalue()))


def _rounded(line: bytes) -> bytes:
    try:
        return json.dumps(json.loads(line, parse_float=_short)).encode() + b"\n"
    except ValueError:  # of a run that was killed
        return line


def _short(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive into a new run folder below `folder`, and returns that."""
    name = archive.name.removesuffix(ENDING)
    if name == archive.name or name in ("", ".", ".."):
        raise ValueError(f"{archive} is not the archive of a run: rename it to RUN{ENDING}.")
    run = folder / name
    try:
        with (
            open_regular(archive) as file,
            bz2.BZ2File(file) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            tar.extractall(run, filter="data")  # refuses devices, and links and paths that lead out
            while stream.read(2**20):  # to the end, where the checksum is
                pass
    except DAMAGE as error:
        raise ValueError(f"{archive} cannot be read ({error}): fetch it again.") from error
    return run
