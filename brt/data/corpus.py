"""A corpus: a source, its vocabulary, and the folder of its token stores."""

import hashlib
import json
import os

from absl import logging

from brt.checks import Name, configurable
from brt.data.extras import MissingExtra
from brt.data.sources.base import Source, check_source
from brt.data.splits import check_split
from brt.data.stores import store_cache
from brt.data.stores.distributed import JobRunner
from brt.data.stores.layout import FILES, vocabulary_entry, vocabulary_text
from brt.data.stores.shards import documents_of
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary
from brt.storage.paths import AnyPath, RemotePath, as_path, file_size

ABSENT = (OSError, ValueError, MissingExtra)
"""Errors of a source whose files or library this machine lacks."""


class StoreMissing(FileNotFoundError): ...


@configurable
class Corpus:
    """Prepares and opens the token stores of a source, one per split.

    Args:
        store: folder of the stores, `<store>/<split>`, on a disk or in a bucket.
        source: of the documents; only `prepare` reads it.
        vocabulary: a vocabulary or its name (`named_vocabulary`). None for that of the source.
    """

    def __init__(
        self,
        store: Name,
        source: Source,
        vocabulary: Vocabulary | str | None = None,
    ):
        check_source(source, "Corpus.source")
        encoder = as_vocabulary(source.vocabulary if vocabulary is None else vocabulary)
        if encoder is None:
            raise ValueError(
                f"{type(source).__name__} yields text and needs a vocabulary: bind "
                'Corpus.vocabulary, to "bytes" for example.'
            )
        self.store: AnyPath = as_path(os.path.expanduser(os.path.expandvars(store)))
        self.source = source
        self.vocabulary: Vocabulary = encoder

    @property
    def corpora(self) -> list["Corpus"]:
        return [self]

    def path(self, split: str) -> AnyPath:
        return self.store / check_split(split)

    def exists(self, split: str) -> bool:
        return (self.path(split) / "manifest.json").is_file()

    def prepare(
        self,
        split: str,
        quiet: bool = False,
        workers: int | None = None,
        shard_bytes: int | None = None,
        runner: JobRunner | None = None,
    ) -> None:
        """Makes a split's store, unless a fitting one exists; arguments as of `write_store`.

        The other processes of a host wait.
        """
        store = self.path(split)
        if not self.exists(split):
            self._check_source(runner)
            with store_cache.one_at_a_time(store_cache.lock_of(store)):
                if not self.exists(split):
                    logging.info("preparing %s with %s", store, self.vocabulary.name)
                    write_store(
                        store,
                        documents_of(self.source, split),
                        self.vocabulary,
                        self._described(split),
                        quiet=quiet,
                        workers=_cpus() if workers is None else workers,
                        shard_bytes=shard_bytes,
                        runner=runner,
                    )
                    return
        logging.info("%s is prepared: %d tokens", store, self.open(split).manifest["tokens"])
        self.warn_of_changes(split)

    def warn_of_changes(self, split: str) -> None:
        """Warns if local files behind a store have changed since it was made."""
        # Sources that check the content refuse changed files anyway, and take long.
        # A bucket has another clock.
        folder = self.path(split)
        if not self.source.listed or self.source.checks_content or isinstance(folder, RemotePath):
            return
        modified = os.stat(folder / "manifest.json").st_mtime_ns
        documents = self.open(split).num_documents
        try:
            parts = None
            if (files := self.source.split_files(split)) is None:
                parts = self.source.parts(split)
                files = [file for part in parts for file in self.source.files(part)]
            changed = next(
                (f"{f} is newer" for f in files if os.stat(f).st_mtime_ns > modified), None
            )
        except ABSENT:
            return
        if parts is not None and len(parts) != documents:
            changed = f"the source has {len(parts):,} documents now, and not {documents:,}"
        if changed:
            logging.warning(
                "%s may no longer be what its source is: %s. To make it again, delete it, or bind "
                "Corpus.store to a new folder.",
                self.path(split),
                changed,
            )

    def _described(self, split: str) -> dict:
        description = self.source.description(split)
        if self.source.listed and isinstance(description.get("path"), str):
            return {**description, FILES: self._files(split)}
        return description

    def _files(self, split: str) -> str:
        files = {file for part in self.source.parts(split) for file in self.source.files(part)}
        entries = sorted((os.path.basename(file), file_size(file)) for file in files)
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()

    def _has_files(self, split: str, files: str) -> bool:
        try:
            return self.source.listed and self._files(split) == files
        except ABSENT:
            return False

    def _check_source(self, runner: JobRunner | None) -> None:
        ours = vocabulary_entry(self.vocabulary)  # fails before any work
        theirs = vocabulary_entry(as_vocabulary(self.source.vocabulary) or self.vocabulary)
        name = type(self.source).__name__
        if theirs["fingerprint"] != ours["fingerprint"]:
            raise ValueError(
                f"{name} makes its tokens with {vocabulary_text(theirs)}, and Corpus.vocabulary is "
                f"{vocabulary_text(ours)}: bind Corpus.vocabulary = None to take the source's."
            )
        if runner is not None and not self.source.listed:
            raise ValueError(
                f"{name} gives its documents one after another, and a runner needs a source that "
                "lists them, so that workers can read them: prepare this split without --runner, "
                "or from a source of files."
            )

    def open(self, split: str) -> TokenStore:
        """Opens a split's store; does not need the source.

        Raises:
            StoreMissing: the split has not been prepared.
        """
        if not self.exists(split):
            raise StoreMissing(
                f"No token store is at {self.path(split).absolute()}: make it with `python -m "
                "brt.prepare` and the --gin_file and --gin flags of this run, or go to the folder "
                "that Corpus.store is relative to."
            )
        store = TokenStore(self.path(split))
        stored = store.manifest["vocabulary"]
        configured = vocabulary_entry(self.vocabulary)
        if any(stored[name] != configured[name] for name in ("fingerprint", "size")):
            raise ValueError(
                f"{store.folder} was made with another tokenizer, {vocabulary_text(stored)}, and "
                f"the config has {vocabulary_text(configured)}: bind the one it was made with, or "
                "Corpus.store to a new folder."
            )
        old = dict(store.manifest["source"])
        new = json.loads(json.dumps(self.source.description(split)))  # as in a manifest
        files = old.pop(FILES, None)
        if files and old.get("path") != new.get("path") and self._has_files(split, files):
            old["path"] = new.get("path")
        if changes := ", ".join(
            f"{key} is {old.get(key)!r} in the store and {new.get(key)!r} in the config"
            for key in sorted(old | new)
            if old.get(key) != new.get(key)
        ):
            raise ValueError(
                f"{store.folder} was made from another source, as {changes}: restore these "
                "settings, or bind Corpus.store to a new folder."
            )
        return store


def _cpus() -> int:
    known = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


@configurable
def corpus_vocabulary_size() -> int:
    return Corpus().vocabulary.size  # type: ignore[call-arg]  # bound by gin
