"""Refuses compressed files, tables, JSON lines, UTF-16 and binary data."""

import json

from brt.storage.file_parts import FileBytes

HEAD = 2**13
"""First bytes of a file that are checked."""
LINE = 2**24
"""A longer line is not parsed as JSON."""
JSON_LINES = 3
"""First lines of a file that are checked."""

UNPACK = "unpack it first, with `{}`"
ROWS = "write the text of each row to a text file of its own"
EXTRACT = "extract its text first"
MAGIC = {
    b"\x1f\x8b": ("a gzip file", UNPACK.format("gunzip")),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", UNPACK.format("unzstd")),
    b"\x04\x22\x4d\x18": ("an LZ4 file", UNPACK.format("unlz4")),
    b"\xfd7zXZ\0": ("an xz file", UNPACK.format("unxz")),
    b"BZh91AY&SY": ("a bzip2 file", UNPACK.format("bunzip2")),
    b"PK\x03\x04": ("a zip file (as .docx and .epub are)", EXTRACT),
    b"7z\xbc\xaf\x27\x1c": ("a 7z file", UNPACK.format("7z x")),
    b"%PDF-": ("a PDF file", EXTRACT),
    b"PAR1": ("a Parquet table", ROWS),
    b"ARROW1\0\0": ("an Arrow table", ROWS),
    b"\xff\xff\xff\xff": ("an Arrow stream, as `save_to_disk` of datasets writes it", ROWS),
    b"\xff\xfe\0\0": ("UTF-32 text", "convert it with `iconv -f UTF-32 -t UTF-8`"),
    b"\0\0\xfe\xff": ("UTF-32 text", "convert it with `iconv -f UTF-32 -t UTF-8`"),
    b"\xff\xfe": ("UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    b"\xfe\xff": ("UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
}
"""First bytes of formats, with their names and what to do; the first match counts."""


class NotPlainText(ValueError):
    """A file has another format."""


def check_plain_text(data: bytes | FileBytes, path: str, source: str) -> None:
    """Raises `NotPlainText` for another format; `path` and `source` are for the message."""
    if other := _other_format(data, path):
        form, advice = other
        raise NotPlainText(
            f"{path} is {form}, and {source} reads plain text: {advice}, or write a "
            "source of your own (docs/data.md)."
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
        at = f"NUL at byte {head.index(0)}"
        return f"binary data ({at})", "leave it out, or convert it to UTF-8 text"
    if _is_json_lines(data, path):
        return "JSON lines", (
            "write the text of each record to a text file of its own, or read texts with a label "
            "by @LabelledTexts()"
        )
    return None


def _is_json_lines(data: bytes | FileBytes, path: str) -> bool:
    """Returns whether the first lines are JSON objects; one line counts if the suffix agrees."""
    start = 3 if data[:3] == b"\xef\xbb\xbf" else 0
    objects = 0
    while objects < JSON_LINES and start < len(data):
        if data[start : start + 1] != b"{":
            return False
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if end - start > LINE:
            return False
        try:
            record = json.loads(data[start:end])
        except (ValueError, RecursionError):
            return False
        if not record:  # "{}" is LaTeX, too
            return False
        objects += 1
        start = end + 1
    return objects > 1 or (objects == 1 and path.endswith((".jsonl", ".ndjson")))
