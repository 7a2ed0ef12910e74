"""Corpora: a source, the vocabulary it is read with, and the folder of its token stores."""

import json
import os
from pathlib import Path

import gin
from absl import logging

from brt.checks import Name
from brt.data.sources.base import Source, check_source
from brt.data.splits import check_split
from brt.data.stores import store_cache
from brt.data.stores.growth import RemoteGrowth
from brt.data.stores.shards import ListedDocuments, ShardRunner, StreamedDocuments, key_of
from brt.data.stores.token_store import TokenStore, write_store
from brt.data.stores.writer import vocabulary_entry
from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.named import as_vocabulary
from brt.storage.paths import AnyPath, RemotePath, as_path


class StoreMissing(FileNotFoundError):
    """The token store of a split has not been prepared."""


@gin.configurable
class Corpus:
    """Prepares and opens the token stores of a source, one a split.

    Args:
        store: folder that holds the stores, `<store>/<split>`; `~` and environment variables are
            expanded. One in a bucket, `gs://bucket/stores`, is read through a copy on each host
            (`brt.data.stores.store_cache`).
        source: where documents come from; only `prepare` reads them.
        vocabulary: how they become ids: a vocabulary, or a string that names one, such as "bytes",
            "pieces.model" or "words:list.txt" (`named_vocabulary`). None takes the vocabulary the
            source brings along.

    Raises:
        ValueError: neither a vocabulary nor a source that has one, or a string that names none.
    """

    def __init__(
        self,
        store: Name = gin.REQUIRED,
        source: Source = gin.REQUIRED,
        vocabulary: Vocabulary | str | None = None,
    ):
        check_source(source, "Corpus.source")
        made_with = source.vocabulary if vocabulary is None else as_vocabulary(vocabulary)
        if made_with is None:
            raise ValueError(
                f"{type(source).__name__} yields text and needs a vocabulary: bind "
                'Corpus.vocabulary, to "bytes" for example.'
            )
        self.store: AnyPath = as_path(os.path.expanduser(os.path.expandvars(store)))
        self.source = source
        self.vocabulary: Vocabulary = made_with

    @property
    def corpora(self) -> list["Corpus"]:
        """A list of itself; a `Mixture` has several."""
        return [self]

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids; may open the vocabulary's file."""
        return self.vocabulary.size

    def path(self, split: str) -> AnyPath:
        """Returns the folder of a split's store, whether it exists or not.

        Raises:
            ValueError: the split's name is a path, or empty; so do all methods that take one.
        """
        return self.store / check_split(split)

    def exists(self, split: str) -> bool:
        """Returns whether a split has been prepared."""
        path = self.path(split)
        # In a bucket the manifest comes last.
        return path.is_dir() if isinstance(path, Path) else (path / "manifest.json").is_file()

    def prepare(
        self,
        split: str,
        quiet: bool = False,
        workers: int | None = None,
        shard_bytes: int | None = None,
        runner: ShardRunner | None = None,
    ) -> None:
        """Makes a split's store, unless there is one that fits.

        When several processes ask at once, one works and the others wait for its store. After a
        kill, the next call goes on from the shards that were finished.

        Args:
            split: its name.
            quiet: no progress display.
            workers: number of processes that read and encode; None for one a CPU.
            shard_bytes: as of `write_store`.
            runner: reads and encodes instead of them, such as `distributed.BeamRunner`.

        Raises:
            ValueError: there is a store, but of another source or vocabulary; the source makes its
                tokens with another vocabulary, or does not list its documents for the runner; or as
                `write_store`.
            OSError: the source cannot be read, or the store not be written.
        """
        if workers is None:
            workers = len(os.sched_getaffinity(0))
        if not self.exists(split):
            vocabulary = _named(vocabulary_entry(self.vocabulary))  # fails before any work
            self._check_source_vocabulary(vocabulary)
            if runner is not None and not self.source.listed:
                raise ValueError(
                    f"{type(self.source).__name__} gives its documents one after another, and a "
                    "runner needs a source that lists them, so that workers can read them: prepare "
                    "this split without --runner, or from a source of files."
                )
            made, lock = self._place_to_prepare(split, shard_bytes)
            with store_cache.one_at_a_time(lock):
                if not self.exists(split):
                    logging.info("preparing %s with %s", self.path(split), vocabulary)
                    store = self.path(split)
                    growth = None
                    if isinstance(store, RemotePath) and runner is not None:
                        growth = RemoteGrowth(store, made)
                    if not made.exists():
                        write_store(
                            made,
                            self._documents(split),
                            self.vocabulary,
                            self.source.description(split),
                            quiet=quiet,
                            workers=workers,
                            shard_bytes=shard_bytes,
                            runner=runner,
                            growth=growth,
                        )
                    if isinstance(store, RemotePath) and made.exists():
                        store_cache.publish(made, store)
                    return
        manifest = self.open(split).manifest
        logging.info("%s is prepared: %d tokens", self.path(split), manifest["tokens"])
        self.warn_of_changes(split)

    def _place_to_prepare(self, split: str, shard_bytes: int | None) -> tuple[Path, Path]:
        """Returns where a split's store is made on this disk, and the lock of who makes it."""
        store = self.path(split)
        if isinstance(store, Path):
            return store, store.with_name(f".{split}.lock")
        made_with = key_of(self.vocabulary, self.source.description(split))
        if shard_bytes is not None:
            made_with["shard_bytes"] = shard_bytes
        made = store_cache.place_to_prepare(store, made_with)
        return made, made.parent.with_name(f".{made.parent.name}.lock")

    def warn_of_changes(self, split: str) -> None:
        """Logs a warning if the files behind a store have changed since it was made.

        Their times and the number of documents tell; files on another machine tell nothing.

        Raises:
            ValueError, FileNotFoundError: as `open`.
        """
        # Checking the content of files takes long, and refuses those that have changed anyway.
        # A bucket's times are another clock's.
        folder = self.path(split)
        if not self.source.listed or self.source.checks_content or isinstance(folder, RemotePath):
            return
        made = os.stat(folder / "manifest.json").st_mtime_ns
        documents = self.open(split).num_documents
        try:
            parts = self.source.parts(split)
            files = (file for part in parts for file in self.source.files(part))
            changed = next((f"{f} is newer" for f in files if os.stat(f).st_mtime_ns > made), None)
        except (OSError, ValueError):  # the source is elsewhere, or is no longer one
            return
        if len(parts) != documents:
            changed = f"the source has {len(parts):,} documents now, and not {documents:,}"
        if changed:
            logging.warning(
                "%s may no longer be what its source is: %s. To make it anew, delete it, or bind "
                "Corpus.store to a new folder.",
                self.path(split),
                changed,
            )

    def _check_source_vocabulary(self, ours: str) -> None:
        theirs = self.source.vocabulary or self.vocabulary
        if theirs.fingerprint != self.vocabulary.fingerprint:
            raise ValueError(
                f"{type(self.source).__name__} makes its tokens with "
                f"{_named(vocabulary_entry(theirs))}, and Corpus.vocabulary is {ours}: bind "
                "Corpus.vocabulary = None to take the source's."
            )

    def _documents(self, split: str) -> ListedDocuments | StreamedDocuments:
        if self.source.listed:
            return ListedDocuments(self.source, split)
        return StreamedDocuments(self.source.documents(split), self.source.count(split))

    def open(self, split: str) -> TokenStore:
        """Opens a split's store. The source itself need not be on this machine.

        Raises:
            StoreMissing: the split has not been prepared.
            ValueError: the store was made with another vocabulary or from another source, or it
                is damaged.
            FileNotFoundError: a file of the store, or of the vocabulary, is missing.
        """
        if not self.exists(split):
            raise StoreMissing(
                f"No token store is at {self.path(split).absolute()}: make it with `python -m "
                "brt.prepare` and the --gin_file and --gin flags of this run, or go to the folder "
                "that Corpus.store is relative to."
            )
        store = TokenStore(self.path(split))
        made_with = store.manifest["vocabulary"]
        have = vocabulary_entry(self.vocabulary)
        if any(made_with[name] != have[name] for name in ("fingerprint", "size")):
            raise ValueError(
                f"{store.folder} was made with another tokenizer, {_named(made_with)}, and the "
                f"config has {_named(have)}: bind the one it was made with, or Corpus.store to a "
                "new folder."
            )
        changes = _changes(store.manifest["source"], self.source.description(split))
        if changes:
            raise ValueError(
                f"{store.folder} was made from another source, as {changes}: restore these "
                "settings, or bind Corpus.store to a new folder."
            )
        return store


def _named(entry: dict) -> str:
    return "{name} of size {size} ({fingerprint:.12})".format(**entry)


def _changes(stored: dict, configured: dict) -> str:
    """Says what differs between two descriptions; empty when nothing does."""
    configured = json.loads(json.dumps(configured))  # as a manifest would have it
    return ", ".join(
        f"{key} is {stored.get(key)!r} in the store and {configured.get(key)!r} in the config"
        for key in sorted(stored.keys() | configured.keys())
        if stored.get(key) != configured.get(key)
    )
