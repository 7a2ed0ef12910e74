"""Prints bits per byte of compressors and of an n-gram on a folder of text files, as CSV.

    python docs/results/baselines.py code    # code/train/*.txt, code/validation/*.txt

gzip, xz and deflate compress each document of the validation split by itself. The n-gram
interpolates orders 0 to 4 (Witten-Bell) and counts 16 stretches of 192,000 bytes of the training
split, at equal distances: as many bytes as a run of 3,000 steps reads.
"""

import gzip
import lzma
import math
import sys
import zlib
from collections import defaultdict
from pathlib import Path

ORDER, STRETCHES, STRETCH = 4, 16, 192_000
WINDOWS = {9: "512 B", 11: "2 kB", 13: "8 kB"}


def main() -> None:
    folder = Path(sys.argv[1])
    train, validation = (
        [file.read_bytes() for file in sorted((folder / split).glob("*.txt"))]
        for split in ("train", "validation")
    )
    methods = {
        "gzip -9": lambda text: 8 * len(gzip.compress(text)),
        "xz -9": lambda text: 8 * len(lzma.compress(text, preset=9)),
        f"{ORDER}-gram": _ngram(b"".join(train)),
    }
    for wbits, size in WINDOWS.items():
        methods[f"deflate, window {size}"] = lambda text, wbits=wbits: _deflated(text, wbits)
    total = sum(map(len, validation))
    for name, bits in methods.items():
        print(f'{folder.name},"{name}",{sum(map(bits, validation)) / total:.3f}', flush=True)


def _deflated(text, wbits):
    compressor = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return 8 * len(compressor.compress(text) + compressor.flush())


def _ngram(train):
    counts: defaultdict[bytes, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    row = len(train) // STRETCHES
    for start in range(0, row * STRETCHES, row):
        stretch = train[start : start + STRETCH]
        for end in range(ORDER, len(stretch)):
            for order in range(ORDER + 1):
                counts[stretch[end - order : end]][stretch[end]] += 1
    totals = {context: sum(seen.values()) for context, seen in counts.items()}

    def bits(text):
        found = 0.0
        for end, byte in enumerate(text):
            probability = 1 / 256
            for order in range(min(ORDER, end) + 1):
                context = text[end - order : end]
                if context not in totals:
                    break
                seen, total = counts[context], totals[context]
                probability = (seen.get(byte, 0) + len(seen) * probability) / (total + len(seen))
            found -= math.log2(probability)
        return found

    return bits


if __name__ == "__main__":
    main()
