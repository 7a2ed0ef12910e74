"""Measures preparing, opening and reading a corpus of many small documents.

python scripts/scale/many_documents.py [--documents 1000000]
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from brt.data.sources.base import Document
from brt.data.stores.inspection import verify
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentPass, DocumentStream
from brt.data.vocabularies.base import ByteVocabulary

ROWS, LENGTH, STEPS = 32, 512, 1000


def documents(count: int) -> Iterator[Document]:
    for number in range(count):
        text = f"{number} " * (number % 8 + 1)
        yield Document(f"document {number}", text.ljust(8).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=10**6)
    count = parser.parse_args().documents
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "store"
        begun = time.process_time()

        def done(what: str) -> None:
            nonlocal begun
            now = time.process_time()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{what:44} {now - begun:7.1f} s  {peak:7,.0f} MB at most", flush=True)
            begun = time.process_time()

        write_store(folder, documents(count), ByteVocabulary(), {}, quiet=True)
        done(f"{count:,} documents prepared")
        store = TokenStore(folder)
        done("opened")
        verify(store)
        done("verified")
        stream = DocumentStream(store, ROWS, LENGTH)
        for step in range(STEPS):
            stream.batch(step)
        done(f"{STEPS:,} batches of {ROWS} rows read")
        evaluation = DocumentPass(store, ROWS, LENGTH)
        for step in range(STEPS):
            evaluation.batch(step)
            evaluation.positions(step)
        done(f"{STEPS:,} batches of evaluation read")
    return 0


if __name__ == "__main__":
    sys.exit(main())
