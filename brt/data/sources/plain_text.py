"""Refuses compressed files, tables, JSON lines, UTF-16 and binary data."""

import json

from brt.storage.file_parts import FileBytes

HEAD = 2**13
"""First bytes of a file that are checked."""
LINE = 2**24
"""First bytes searched for JSON lines."""

UNPACK = "unpack it first, with `{}`"
ROWS = "read its rows with @Text(), or @{}()"
EXTRACT = "extract its text first"
MAGIC = {
    b"\x1f\x8b": ("a gzip file", UNPACK.format("gunzip")),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", UNPACK.format("unzstd")),
    b"\xfd7zXZ\0": ("an xz file", UNPACK.format("unxz")),
    b"BZh91AY&SY": ("a bzip2 file", UNPACK.format("bunzip2")),
    b"PK\x03\x04": ("a zip file (as .docx and .epub are)", EXTRACT),
    b"%PDF-": ("a PDF file", EXTRACT),
    b"PAR1": ("a Parquet table", ROWS.format("Parquet")),
    b"ARROW1\0\0": ("an Arrow table", ROWS.format("SavedDataset")),
    b"\xff\xff\xff\xff": ("an Arrow stream", ROWS.format("SavedDataset")),
    b"\xff\xfe\0\0": ("UTF-32 text", "convert it with `iconv -f UTF-32 -t UTF-8`"),
    b"\xff\xfe": ("UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"\xfe\xff": ("UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
}
"""First bytes of formats, with names and advice; the first match counts."""


class NotPlainText(ValueError): ...


def check_plain_text(data: bytes | FileBytes, path: str, source: str) -> None:
    """Raises `NotPlainText` for another format; `path` and `source` are for the message."""
    if other := _other_format(data, path):
        form, advice = other
        raise NotPlainText(
            f"{path} is {form}, and {source} reads plain text: {advice}, or write a "
            "source of your own (docs/extending.md)."
        )


def _other_format(data: bytes | FileBytes, path: str) -> tuple[str, str] | None:
    head = data[:HEAD]
    for magic, other in MAGIC.items():
        if head.startswith(magic):
            return other
    if b"\0" in head:
        for zeros, order in ((head[1::2], "LE"), (head[::2], "BE")):
            if 4 * zeros.count(0) > len(zeros) and head.count(0) == zeros.count(0):
                return "UTF-16 text", f"convert it with `iconv -f UTF-16{order} -t UTF-8`"
        return "binary data (NUL)", "leave it out, or convert it to UTF-8 text"
    # The first three lines are objects, or one is and the suffix agrees; {} is LaTeX, too.
    lines = data[:LINE].split(b"\n", 3)[:3] if head.startswith(b"{") else []
    try:
        records = [json.loads(line) for line in lines if line]
    except (ValueError, RecursionError):
        return None
    is_rows = len(records) > 1 or path.endswith((".jsonl", ".ndjson"))
    if records and is_rows and all(isinstance(record, dict) and record for record in records):
        return "JSON lines", ROWS.format("JsonLines") + " (@LabelledTexts() if they have a label)"
    return None
