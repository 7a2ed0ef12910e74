"""Describes a token store: `brt.prepare --inspect`."""

from itertools import islice

import numpy as np

from brt.data.stores.layout import shards_of
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.storage.regular_files import printable

LISTED = 10
"""Documents in the table."""

LISTED_FILES = 30
"""Files with their hashes."""

SHOWN = 64
"""Tokens of each end of a document."""


def describe(store: TokenStore) -> str:
    """Returns the manifest and the first documents, as aligned lines."""
    manifest = store.manifest
    vocabulary = manifest["vocabulary"]
    counts = ("documents", "tokens", "bytes", "words", "characters")
    rows = [
        ("store", store.folder),
        ("format", manifest["format"]),
        *((f"source: {key}", value) for key, value in manifest["source"].items()),
        *((f"vocabulary: {key}", value) for key, value in vocabulary.items()),
        *((name, f"{manifest[name]:,}") for name in counts),
    ]
    if manifest["unknown"] is None:
        rows.append(("unknown tokens", "none: the vocabulary has no such id"))
    else:
        share = manifest["unknown"] / manifest["tokens"]
        rows.append(("unknown tokens", f"{manifest['unknown']:,} ({share:.4%})"))
    for above, below in [("bytes", "tokens"), ("tokens", "words")]:
        if manifest[above] and manifest[below]:
            ratio = manifest[above] / manifest[below]
            rows.append((f"{above} per {below.removesuffix('s')}", f"{ratio:.4f}"))
    rows.append(("token files", f"{len(shards_of(manifest)):,}"))
    rows += [("ids are", manifest["dtype"]), ("loss weights", manifest["weighted"])]
    rows.append(("sha256: source", manifest["source_hash"]))
    hashes = list(manifest["hashes"].items())
    rows += [(f"sha256: {name}", value) for name, value in hashes[:LISTED_FILES]]
    if len(hashes) > LISTED_FILES:
        rows.append(("and more files", f"{len(hashes) - LISTED_FILES:,}"))
    rows = [(printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {printable(str(value))}" for name, value in rows]
    return "\n".join([*lines, "", *_document_table(store)])


def document_ends(store: TokenStore, which: str, vocabulary: Vocabulary | None) -> str:
    """Returns the first and last tokens of a document, as ids and as text, in lines.

    Args:
        store: of the document.
        which: its title, or its number from 0.
        vocabulary: decodes the tokens; None shows ids only.
    """
    number, entry = _find(store, which)
    tokens = store.tokens(number)
    lines = [f"document {number}, {entry['title']!r}: {len(tokens):,} tokens"]
    ends = [("first", tokens[:SHOWN]), ("last", tokens[max(len(tokens) - SHOWN, 0) :])]
    for name, ids in ends if len(tokens) > SHOWN else [("all", tokens)]:
        lines += ["", f"{name} {len(ids)}: {' '.join(map(str, ids))}"]
        if vocabulary is not None:
            lines.append(repr(vocabulary.decode(ids)))
    return "\n".join(lines)


def _document_table(store):
    columns = ("tokens", "words", "bytes", "characters")
    rows: list[tuple[str, ...]] = [("", *columns, "title")]
    for number, entry in enumerate(islice(store.entries(), LISTED)):
        counts = (f"{entry[name]:,}" for name in columns)
        rows.append((str(number), *counts, printable(entry["title"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns) + 1)]
    for *numbers, title in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths)]
        yield "  ".join([*cells, title])
    if store.num_documents > LISTED:
        low, middle, high = np.percentile(store.lengths_D, [0, 50, 100]).astype(int)
        yield (
            f"and {store.num_documents - LISTED:,} more; the shortest has {low:,} tokens, the "
            f"median {middle:,}, the longest {high:,}"
        )


def _find(store, which):
    numbered = None
    for number, entry in enumerate(store.entries()):
        if entry["title"] == which:
            return number, entry
        if str(number) == which:
            numbered = number, entry
    if numbered is None:
        raise ValueError(
            f"{store.folder} has no document {which!r}: give a title of documents.jsonl, or a "
            f"number from 0 to {store.num_documents - 1}."
        )
    return numbered
