"""Paths in buckets: files appear whole, and errors name the path."""

from pathlib import Path

import fsspec
import pytest

from brt.storage import paths
from brt.storage.paths import RemotePath, StorageError, as_path


@pytest.fixture
def bucket(request):
    """An empty folder of fsspec's memory, and all objects of it by name."""
    storage = fsspec.filesystem("memory")
    url = f"memory://{request.node.name.replace('[', '-').replace(']', '')}"

    def objects():
        own = url.removeprefix("memory:/")
        return {
            name.removeprefix(own + "/"): file.getvalue()
            for name, file in storage.store.items()
            if name.startswith(own + "/")
        }

    yield RemotePath(url), objects
    storage.store.clear()


def test_only_a_path_with_a_scheme_is_remote(tmp_path):
    assert as_path(str(tmp_path)) == tmp_path
    assert as_path("runs/gs:/x") == Path("runs/gs:/x")
    assert isinstance(as_path("gs://bucket/runs"), RemotePath)
    assert paths.absolute("gs://bucket/runs/") == "gs://bucket/runs"
    assert paths.absolute("runs/a") == str(Path.cwd() / "runs/a")
    with pytest.raises(ValueError, match="runs/a"):
        RemotePath("runs/a")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        *(("memory://", "memory://"), ("memory://x", "memory://"), ("://x", "://")),
        *(("file://", "file:///"), ("file://x/y", "file:///"), ("~nouser/x", "~nouser")),
        *(("gs://", "gs://"), ("gs:///", "gs://")),
    ],
)
def test_what_names_no_folder_is_refused(given, named):
    with pytest.raises(ValueError, match=named):
        paths.folder_of(given)
    if "://" in given and not given.endswith(("x", "y")):
        with pytest.raises(ValueError, match=given):
            RemotePath(given)


def test_what_is_written_is_there_for_others(bucket):
    folder, objects = bucket
    assert not folder.is_dir()
    (folder / "a/config.gin").write_text("x = 1\n")
    with (folder / "b.txt").open("w") as file:
        file.write("ä")
    assert objects() == {"a/config.gin": b"x = 1\n", "b.txt": "ä".encode()}
    assert (folder / "a").is_dir() and not (folder / "a").is_file()
    assert (folder / "b.txt").is_file() and (folder / "b.txt").size() == 2
    assert [path.name for path in folder.iterdir()] == ["a", "b.txt"]
    (folder / "a/a/c").write_text("")  # a folder in one of its name
    assert [path.name for path in (folder / "a").iterdir()] == ["a", "config.gin"]
    (folder / "a/a/c").unlink()
    assert [path.relative_to(folder) for path in folder.files()] == ["a/config.gin", "b.txt"]


def test_folders_are_copied_both_ways_and_moved(bucket, tmp_path):
    folder, objects = bucket
    (tmp_path / "from/deep").mkdir(parents=True)
    (tmp_path / "from/one").write_bytes(b"1")
    (tmp_path / "from/deep/two").write_bytes(b"22")
    paths.upload(tmp_path / "from", folder / "up")
    assert objects() == {"up/one": b"1", "up/deep/two": b"22"}
    paths.move(folder / "up", folder / "moved")
    assert objects() == {"moved/one": b"1", "moved/deep/two": b"22"}
    paths.download(folder / "moved", tmp_path / "to")
    assert (tmp_path / "to/deep/two").read_bytes() == b"22"
    paths.remove(folder / "moved")
    assert objects() == {} and folder.files() == []


def test_the_last_file_comes_after_all_others(bucket, tmp_path, monkeypatch):
    folder, objects = bucket
    for name in ("a.json", "tokens.bin", "z.bin"):
        (tmp_path / name).write_text(name)
    usual, seen = RemotePath.put, []

    def put(self, file):
        seen.append(file.name)
        if len(seen) == 3:
            raise StorageError("The line is cut.")
        usual(self, file)

    monkeypatch.setattr(RemotePath, "put", put)
    with pytest.raises(StorageError):
        paths.upload(tmp_path, folder, last="a.json")
    assert seen == ["tokens.bin", "z.bin", "a.json"] and set(objects()) == {"tokens.bin", "z.bin"}


def test_an_upload_that_was_cut_short_is_noticed(bucket, tmp_path, monkeypatch):
    folder, _ = bucket
    (tmp_path / "file").write_bytes(b"whole")
    monkeypatch.setattr(RemotePath, "size", lambda self: 3)
    with pytest.raises(StorageError, match=r"has 3 bytes and .* has 5"):
        (folder / "file").put(tmp_path / "file")


@pytest.mark.parametrize("name", ["a/../../outside", "{tmp_path}/outside"], ids=["up", "root"])
def test_names_that_lead_out_of_a_folder_are_refused(bucket, tmp_path, monkeypatch, name):
    folder, _ = bucket
    hostile = folder / name.format(tmp_path=tmp_path)
    monkeypatch.setattr(RemotePath, "files", lambda self: [hostile])
    with pytest.raises(StorageError, match="leads out"):
        paths.download(folder, tmp_path / "deep/er")
    assert not list(tmp_path.iterdir())


def test_what_is_missing_and_what_is_unreachable_are_told_apart(bucket):
    folder, _ = bucket
    with pytest.raises(FileNotFoundError, match="There is no memory://"):
        (folder / "none").read_bytes()
    with pytest.raises(StorageError, match=r"nowhere://x/y cannot be read \("):
        RemotePath("nowhere://x/y").read_bytes()
