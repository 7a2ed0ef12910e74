"""Counts a corpus of text files without brt, and compares the counts with a store's manifest.

    python scripts/count_corpus.py --vocabulary=bytes --store=stores/books/train books/train/*.txt

One file is one document, in the order of their names. The vocabulary is "bytes" or the path of a
SentencePiece model. Exit status 0 if every count and hash in the manifest is the one found here.
"""

import argparse
import array
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def count(paths: Iterable[str], vocabulary: str) -> dict[str, Any]:
    """Returns counts and hashes under the manifest's names."""
    processor = None
    if vocabulary != "bytes":
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor(model_file=vocabulary)
    totals = dict.fromkeys(("documents", "tokens", "bytes", "words", "characters", "unknown"), 0)
    hashed = hashlib.sha256()
    for path in paths:
        data = Path(path).read_bytes()
        text = data.decode("utf-8")
        ids = list(data) if processor is None else processor.encode(text)
        stored = array.array("H" if processor is None or len(processor) <= 2**16 else "I", ids)
        if sys.byteorder == "big":
            stored.byteswap()
        hashed.update(stored.tobytes())
        totals["documents"] += 1
        totals["tokens"] += len(ids)
        totals["bytes"] += len(data)
        totals["words"] += len(text.split())
        totals["characters"] += len(text)
        if processor is not None:
            totals["unknown"] += ids.count(processor.unk_id())
    unknown = None if processor is None else totals["unknown"]
    return {**totals, "unknown": unknown, "tokens.bin": hashed.hexdigest()}


def stored_counts(store: Path) -> dict[str, Any]:
    """Returns the counts of a store's manifest, and the hash of its tokens."""
    hashed = hashlib.sha256()
    for path in sorted(store.rglob("tokens.bin")):
        hashed.update(path.read_bytes())
    return {**json.loads((store / "manifest.json").read_text()), "tokens.bin": hashed.hexdigest()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--store", help="folder of the store to compare with")
    arguments = parser.parse_args()
    found = count(sorted(arguments.files), arguments.vocabulary)
    manifest = found
    if arguments.store:
        manifest = stored_counts(Path(arguments.store))
    wrong = [name for name in found if manifest[name] != found[name]]
    for name, value in found.items():
        print(f"{name:<12} {value}" + (f"  but {manifest[name]} in the store" * (name in wrong)))
    print("different" if wrong else "equal" if arguments.store else "counted")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
