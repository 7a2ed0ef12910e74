"""Archives of run folders: what a run was told and what it reported, without what it learned."""

import gzip
import io
import tarfile
import zlib
from pathlib import Path

from brt.reporting.runs import OLD_STANDS_FOR_FILE, STANDS_FOR_FILE

KEPT = (
    "config.gin",
    "operative_config.gin",
    "command.txt",
    "environment.json",
    "metrics.jsonl",
    STANDS_FOR_FILE,
    OLD_STANDS_FOR_FILE,
    "evaluation_*.json",
    "studies/*.json",
)
"""Files of a run folder that an archive holds; TensorBoard's are written from the records."""
ENDING = ".tar.gz"


def pack(run: Path, archive: Path) -> None:
    """Writes a run folder's records as an archive; of equal records, equal bytes.

    Args:
        run: a run folder, finished or not.
        archive: the file to write, NAME.tar.gz; the run is called NAME when it is unpacked.

    Raises:
        FileNotFoundError: the folder holds no run.
    """
    if not (run / "config.gin").is_file():
        raise FileNotFoundError(f"{run} is not a run folder: it has no config.gin.")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(path for pattern in KEPT for path in run.glob(pattern)):
            entry = tarfile.TarInfo(path.relative_to(run).as_posix())  # no owner and no time
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpacks an archive into a new folder below `folder`; returns that run folder.

    Raises:
        ValueError: the file's name does not end as an archive's does, or it is damaged.
    """
    if not archive.name.endswith(ENDING):
        raise ValueError(f"{archive} is no archive of a run: its name ends in {ENDING}.")
    run = folder / archive.name.removesuffix(ENDING)
    try:
        # Decompressed to its end first: the checksum stands there.
        content = gzip.decompress(archive.read_bytes())
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(run, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} cannot be read ({error}): fetch it anew.") from error
    return run
