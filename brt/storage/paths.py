"""Paths on a disk (`pathlib.Path`) or in a bucket (`RemotePath`), which fsspec reaches.

`RemotePath` adds errors that name the path, uncached listings, a check of uploads, and
`only_buckets_of`, all of which universal_pathlib lacks. Buckets cannot rename or append to objects.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from brt.storage.shipped import install_command

if TYPE_CHECKING:
    import fsspec

SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")

OF_ONE_PROCESS = ("memory",)

VERSIONS = ("generation", "etag", "ETag", "mtime", "LastModified", "updated", "created")
"""Fields of a listing that change when an object is written, by service."""

_allowed: set[str] | None = None


@contextmanager
def only_buckets_of(paths: Iterable[str]) -> Iterator[None]:
    """Refuses all buckets and hosts but those of `paths`, so that a URL in a file opens no
    connection.
    """
    global _allowed
    before, _allowed = _allowed, {_bucket(path) for path in paths if is_remote(path)}
    try:
        yield
    finally:
        _allowed = before


def _bucket(url: str) -> str:
    return url if "::" in url else "/".join(url.split("/", 3)[:3])


class StorageError(OSError):
    """A bucket cannot be reached, read or written; the message has path and reason."""


class RemotePath:
    """A path with a scheme, `gs://bucket/runs/books`, with methods of `pathlib.Path`.

    A folder exists if there is an object below it. Methods raise `StorageError` if the storage
    cannot be reached, and `FileNotFoundError` for a missing object.
    """

    def __init__(self, url: str | os.PathLike):
        self._url = os.fspath(url).rstrip("/")
        if not SCHEME.match(self._url):
            raise ValueError(
                f"{os.fspath(url)} is not a path with a scheme, such as gs://BUCKET/x."
            )

    def __str__(self) -> str:
        return self._url

    __fspath__ = __str__

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str | os.PathLike) -> "RemotePath":
        return RemotePath(f"{self._url}/{os.fspath(name)}")

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        above = self._url.rpartition("/")[0]
        return self if above.endswith("/") else RemotePath(above)

    def absolute(self) -> "RemotePath":
        return self

    def relative_to(self, folder: "RemotePath") -> str:
        return self._url.removeprefix(f"{folder}/")

    def is_file(self) -> bool:
        with _storage(self, "looked up") as storage:
            return storage.isfile(self._url)

    def is_dir(self) -> bool:
        with _storage(self, "looked up") as storage:
            return storage.isdir(self._url)

    def exists(self) -> bool:
        with _storage(self, "looked up") as storage:
            return storage.exists(self._url)

    def size(self) -> int:
        with _storage(self, "looked up") as storage:
            return int(storage.size(self._url))

    def iterdir(self) -> Iterator["RemotePath"]:
        """Yields the folder's content, sorted; nothing if it is missing."""
        try:
            with _storage(self, "listed") as storage:
                folder = storage._strip_protocol(self._url)
                paths = {str(path).rstrip("/") for path in storage.ls(self._url, detail=False)}
        except FileNotFoundError:
            return
        names = (path.rpartition("/")[2] for path in paths - {folder})
        yield from (self / name for name in sorted(names))

    def files(self) -> list["RemotePath"]:
        with _storage(self, "listed") as storage:
            folder = storage._strip_protocol(self._url)
            paths = storage.find(self._url)
        inside = (str(path).removeprefix(f"{folder}/") for path in paths if path != folder)
        return [self / name for name in sorted(inside)]

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Returns size and version of each object in the folder, by name; for a path with `*`, of
        all matches by path. New content has a new version.
        """
        with _storage(self, "listed") as storage:
            if "*" in self._url:
                root = self._url.partition("*")[0].rpartition("/")[0]
                inside = storage._strip_protocol(root)
                entries = list(storage.glob(self._url, detail=True).values())
            else:
                entries = storage.ls(self._url, detail=True)
        stamps = {}
        for entry in entries:
            if entry["type"] == "file":
                name = entry["name"].rpartition("/")[2]
                if "*" in self._url:
                    name = root + entry["name"].removeprefix(inside)
                versions = repr([(key, entry.get(key)) for key in VERSIONS]).encode()
                version = int(hashlib.sha256(versions).hexdigest()[:12], 16)
                stamps[name] = int(entry["size"]), version
        return stamps

    def open(self, mode: str = "r", encoding: str = "utf-8") -> IO[Any]:
        """Opens an object; a new one exists once it is closed."""
        with _storage(self, "opened") as storage:
            options = {} if "b" in mode else {"encoding": encoding}
            return storage.open(self._url, mode, **options)

    def read_bytes(self) -> bytes:
        with _storage(self, "read") as storage:
            return storage.cat_file(self._url)

    def read_part(self, start: int, size: int) -> bytes:
        """Returns bytes start ... start + size - 1, fewer where the object ends."""
        with _storage(self, "read") as storage:
            return storage.cat_file(self._url, start=start, end=start + size)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> int:
        with _storage(self, "written") as storage:
            storage.pipe_file(self._url, content)
        return len(content)

    def write_text(self, content: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(content.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        with _storage(self, "removed") as storage:
            try:
                storage.rm_file(self._url)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a bucket has no folders."""

    def copy_to(self, target: "RemotePath") -> None:
        with _storage(self, "copied") as storage:
            storage.cp_file(self._url, str(target))

    def fetch(self, file: Path) -> None:
        with _storage(self, "read") as storage:
            storage.get_file(self._url, str(file))

    def put(self, file: Path) -> None:
        """Uploads a file and compares the sizes."""
        with _storage(self, "written") as storage:
            storage.put_file(str(file), self._url)
        if (size := self.size()) != file.stat().st_size:
            raise StorageError(
                f"{self} has {size:,} bytes and {file} has {file.stat().st_size:,}: run the same "
                "command again."
            )


AnyPath = Path | RemotePath


def is_remote(path: str | os.PathLike) -> bool:
    return bool(SCHEME.match(os.fspath(path)))


def as_path(path: str | os.PathLike) -> AnyPath:
    return RemotePath(path) if is_remote(path) else Path(path)


def file_size(path: str | os.PathLike) -> int:
    return RemotePath(path).size() if is_remote(path) else os.path.getsize(path)


def absolute(path: str | os.PathLike) -> str:
    return str(RemotePath(path)) if is_remote(path) else os.path.abspath(path)


def folder_of(text: str) -> str:
    """Returns a folder's path, with `~` and `file://` resolved."""
    if not is_remote(text):
        path = os.path.expanduser(text)
        if path.startswith("~"):
            raise ValueError(f"there is no user {path.split('/')[0]}: write ./{path} for a folder.")
        if path.startswith("://"):
            raise ValueError("there is no scheme before ://.")
        return path
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError("write file:///ABSOLUTE/PATH, or the path alone.")
        return rest
    if scheme in OF_ONE_PROCESS:
        raise ValueError(f"what {scheme}:// holds is gone when the process ends: name a folder.")
    if not rest.strip("/"):
        raise ValueError(f"a bucket is missing after {scheme}://.")
    return text


def is_remote_file(path: str) -> bool:
    return is_remote(path) and RemotePath(path).is_file()


@contextmanager
def on_disk(path: str | os.PathLike) -> Iterator[str]:
    """Yields a local path: of the file, or of a temporary copy of a remote one."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "file")
        RemotePath(os.fspath(path)).fetch(copy)
        yield str(copy)


def upload(folder: Path, target: RemotePath, last: str | None = None) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for file in sorted(files, key=lambda path: path.name == last):
        (target / file.relative_to(folder).as_posix()).put(file)


def download(source: RemotePath, folder: Path) -> None:
    for remote in source.files():
        name = remote.relative_to(source)
        if name.startswith("/") or ".." in Path(name).parts:
            raise StorageError(f"{remote} has a name that leads out of its folder: remove it.")
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        remote.fetch(file)


def move(folder: RemotePath, target: RemotePath, first: str | None = None) -> None:
    """Moves all objects below a remote folder; `first` as of `remove`."""
    for file in folder.files():
        file.copy_to(target / file.relative_to(folder))
    remove(folder, first)


def remove(folder: RemotePath, first: str | None = None) -> None:
    """Removes all objects below a remote folder, those named `first` first."""
    for file in sorted(folder.files(), key=lambda path: path.name != first):
        file.unlink(missing_ok=True)


@contextmanager
def _storage(path: RemotePath, done: str) -> Iterator["fsspec.AbstractFileSystem"]:
    if _allowed is not None and _bucket(str(path)) not in _allowed:
        raise StorageError(
            f"{path} is not {done}: no flag of this command names its bucket or host, and no "
            "connection is opened because a file names one. Copy it to this disk."
        )
    try:
        import fsspec.core  # slow, and only for buckets

        # Other processes write meanwhile, so listings are not cached.
        yield fsspec.core.url_to_fs(str(path), use_listings_cache=False)[0]
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no {path}.") from error
    except StorageError:
        raise
    except ImportError as error:
        raise StorageError(
            f"{path} cannot be {done}, as a library is missing ({error}): install it with "
            f"`{install_command('storage')}`, or the one that fsspec names for this scheme."
        ) from error
    except Exception as error:  # each service has errors of its own
        reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
        raise StorageError(f"{path} cannot be {done} ({reason}).") from error
