"""Describes and verifies a token store: `brt.prepare --inspect`."""

from itertools import islice

import numpy as np

from brt.data.stores.token_store import HOW_TO_REPEAT, TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.host.terminal import printable
from brt.storage.json_files import DamagedFile

LISTED = 10

COLUMNS = ("tokens", "words", "bytes", "characters")
LISTED_FILES = 30

SHOWN = 64


def describe(store: TokenStore) -> str:
    manifest = store.manifest
    rows = [("store", store.folder), ("format", manifest["format"])]
    for part in ("source", "vocabulary"):
        rows += [(f"{part}: {key}", value) for key, value in manifest[part].items()]
    rows += [(name, f"{manifest[name]:,}") for name in ("documents", *COLUMNS)]
    unknown = manifest["unknown"]
    share = "none: the vocabulary has no such id"
    if unknown is not None:
        share = f"{unknown:,} ({unknown / manifest['tokens']:.4%})"
    rows.append(("unknown tokens", share))
    for above, below in [("bytes", "tokens"), ("tokens", "words")]:
        if manifest[above] and manifest[below]:
            ratio = manifest[above] / manifest[below]
            rows.append((f"{above} per {below.removesuffix('s')}", f"{ratio:.4f}"))
    rows.append(("token files", f"{len(manifest['shards']):,}"))
    rows += [("ids are", manifest["dtype"]), ("loss weights", store.has_weights)]
    rows.append(("sha256: source", manifest["source_hash"]))
    hashes = list(manifest["hashes"].items())
    rows += [(f"sha256: {name}", value) for name, value in hashes[:LISTED_FILES]]
    if len(hashes) > LISTED_FILES:
        rows.append(("and more files", f"{len(hashes) - LISTED_FILES:,}"))
    rows = [(printable(name), value) for name, value in rows]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {printable(str(value))}" for name, value in rows]
    return "\n".join([*lines, "", *_document_table(store)])


def verify(store: TokenStore) -> None:
    """Compares all files of a store with its manifest, and with one another.

    Raises:
        DamagedFile: a file is another one.
    """
    store.read_all()
    lengths = []
    counts = dict.fromkeys(COLUMNS, 0)
    for entry in store.entries():
        lengths.append(entry["tokens"])
        for name in COLUMNS:
            counts[name] += entry[name]
    fits = lengths == store.lengths_D.tolist()
    if not fits or any(store.manifest[name] != count for name, count in counts.items()):
        raise DamagedFile(
            f"{store.folder}/manifest.json is damaged, as its counts are not those of the "
            f"documents: {HOW_TO_REPEAT}."
        )


def document_ends(store: TokenStore, document: str, vocabulary: Vocabulary | None) -> str:
    """Returns the first and last tokens of a document, as ids and as text, in lines."""
    number, entry = _find(store, document)
    tokens = store.tokens(number)
    lines = [f"document {number}, {entry['title']!r}: {len(tokens):,} tokens"]
    ends = [("first", tokens[:SHOWN]), ("last", tokens[max(len(tokens) - SHOWN, 0) :])]
    for name, ids in ends if len(tokens) > SHOWN else [("all", tokens)]:
        lines += ["", f"{name} {len(ids)}: {' '.join(map(str, ids))}"]
        if vocabulary is not None:
            lines.append(repr(vocabulary.decode(ids)))
    return "\n".join(lines)


def _document_table(store):
    rows: list[tuple[str, ...]] = [("", *COLUMNS, "title")]
    for number, entry in enumerate(islice(store.entries(), LISTED)):
        counts = (f"{entry[name]:,}" for name in COLUMNS)
        rows.append((str(number), *counts, printable(entry["title"])))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for *numbers, title in rows:
        yield "  ".join([*map(str.rjust, numbers, widths), title])
    if store.num_documents > LISTED:
        low, middle, high = np.percentile(store.lengths_D, [0, 50, 100]).astype(int)
        yield (
            f"and {store.num_documents - LISTED:,} more; the shortest has {low:,} tokens, the "
            f"median {middle:,}, the longest {high:,}"
        )


def _find(store, document):
    entries = list(enumerate(store.entries()))
    titled = [entry for entry in entries if entry[1]["title"] == document]
    if matches := titled or [entry for entry in entries if str(entry[0]) == document]:
        return matches[0]
    raise ValueError(
        f"{store.folder} has no document {document!r}: give a title of documents.jsonl, or a "
        f"number from 0 to {store.num_documents - 1}."
    )
