"""Folders in which stores grow: first as shards, which a later preparation takes up again.

A store is written whole or not at all. On a disk it grows in `<folder>.partial`, and gets its name
when its files are safely there. In a bucket, where nothing can be renamed, workers put shards into
`<store>.partial`, and the manifest is written last.
"""

import abc
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from absl import logging

from brt.data.sources.base import Source
from brt.data.stores.joining import join_shards
from brt.data.stores.own_folders import claim, remove
from brt.data.stores.sharded import remove_store, write_shards
from brt.data.stores.shards import RemoteShardMaker, ShardMaker
from brt.data.stores.writer import SHARD_FILES
from brt.data.vocabularies.base import Vocabulary
from brt.storage.paths import AnyPath, RemotePath
from brt.storage.paths import remove as remove_remote

NOTE = ".failed"
"""How the name of a file ends in which a worker says why it could not make a shard."""


class Growth(abc.ABC):
    """The folder of a new store's shards, and what becomes of them.

    Attributes:
        partial: the folder.
    """

    partial: AnyPath

    @abc.abstractmethod
    def begin(self) -> None:
        """Makes the folder, or takes up the one of an earlier preparation, without its half files.

        Raises:
            ValueError: the folder is somebody else's.
        """

    @abc.abstractmethod
    def maker(self, vocabulary: Vocabulary, source: Source | None) -> ShardMaker:
        """Returns what makes shards in the folder; `source` as of `ShardMaker`."""

    @abc.abstractmethod
    def finish(
        self,
        shards: Sequence[AnyPath],
        vocabulary: Vocabulary,
        source_description: dict,
        sharded: bool,
    ) -> dict:
        """Makes the store of its shards, and returns its manifest.

        Args:
            shards, vocabulary, source_description: as of `join_shards`.
            sharded: leave the shards as they are.
        """

    @abc.abstractmethod
    def leave(self) -> str:
        """Removes what is half done; returns a sentence about what stays, empty for nothing."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes the folder, as the store is made; what others left in it stays."""


class LocalGrowth(Growth):
    """A store that grows on a disk.

    Args:
        folder: the store to make; folders above it are made too.
    """

    partial: Path

    def __init__(self, folder: Path):
        self.folder = folder
        self.partial = folder.with_name(folder.name + ".partial")

    def begin(self) -> None:
        # Earlier versions marked nothing; their finished shards show whose the folder is.
        claim(self.partial, is_own=any(self.partial.glob("shard-*/shard.json")))
        self._remove_unfinished()

    def maker(self, vocabulary: Vocabulary, source: Source | None) -> ShardMaker:
        # Absolute, as workers may run in other folders.
        return ShardMaker(self.partial.absolute(), vocabulary, source)

    def finish(
        self,
        shards: Sequence[AnyPath],
        vocabulary: Vocabulary,
        source_description: dict,
        sharded: bool,
    ) -> dict:
        store = self.partial / "store"
        store.mkdir()
        write = write_shards if sharded else join_shards
        manifest = write(store, shards, vocabulary, source_description)
        os.replace(store, self.folder)
        _sync(self.folder.parent)
        return manifest

    def leave(self) -> str:
        finished = self._remove_unfinished()
        if finished:
            return f" {finished} finished shards stay in {self.partial} for the next try."
        self.clear()
        return ""

    def clear(self) -> None:
        try:
            self._remove_unfinished()
            for shard in self.partial.glob("shard-*"):
                remove(shard, SHARD_FILES)
            remove(self.partial, ())
        except (OSError, ValueError) as error:
            logging.warning("%s stays: %s", self.partial, error)

    def _remove_unfinished(self) -> int:
        """Removes what brt has begun and not finished; returns the number of finished shards."""
        for path in self.partial.glob("*.growing"):
            with suppress(OSError):  # a worker that outlives its driver may be at work on it
                remove(path, SHARD_FILES)
        for path in self.partial.glob(f"*{NOTE}*"):
            path.unlink(missing_ok=True)
        if (self.partial / "store").is_dir():
            remove_store(self.partial / "store")
        return len(list(self.partial.glob("shard-*")))


class RemoteGrowth(Growth):
    """A store whose shards grow in a bucket, put there by workers anywhere.

    Args:
        store: the store to make.
        made: where it is joined on this disk, unless its shards stay as they are.
    """

    partial: RemotePath

    def __init__(self, store: RemotePath, made: Path):
        self.store = store
        self.partial = store.with_name(store.name + ".partial")
        self._joined = LocalGrowth(made)

    def begin(self) -> None:
        for path in self.partial.iterdir():
            if path.name.endswith(NOTE):
                path.unlink(missing_ok=True)

    def maker(self, vocabulary: Vocabulary, source: Source | None) -> ShardMaker:
        return RemoteShardMaker(self.partial, vocabulary, source)

    def finish(
        self,
        shards: Sequence[AnyPath],
        vocabulary: Vocabulary,
        source_description: dict,
        sharded: bool,
    ) -> dict:
        if sharded:
            return write_shards(self.store, shards, vocabulary, source_description)
        self._joined.begin()
        return self._joined.finish(shards, vocabulary, source_description, sharded)

    def leave(self) -> str:
        with suppress(OSError, ValueError):
            if self._joined.partial.is_dir():
                self._joined.leave()
        return f" Finished shards stay in {self.partial} for the next try."

    def clear(self) -> None:
        if self._joined.partial.is_dir():
            self._joined.clear()
        remove_remote(self.partial)


def _sync(folder: Path) -> None:
    """Makes a rename inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
