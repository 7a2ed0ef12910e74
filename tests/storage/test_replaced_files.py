"""Files are replaced whole, and nothing is written through a link that somebody left there."""

import os
import stat

import pytest

from brt.data.stores.own_folders import claim
from brt.data.stores.store_cache import one_at_a_time
from brt.report import _write
from brt.storage.replaced_files import LEFT, new_file, replace_file, replacing
from brt.training.records.record_file import RecordFile
from brt.training.records.run_folder import RunFolder


@pytest.fixture
def precious(tmp_path):
    """A file outside of the folder in which brt writes."""
    path = tmp_path / "precious"
    path.write_text("years of work")
    yield path
    assert path.read_text() == "years of work"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


def write_lock(path):
    with one_at_a_time(path):
        pass


WRITERS = {
    "replace_file": lambda path: replace_file(path.parent, path.name, b"new"),
    "report": lambda path: _write(path, "new"),
    "run folder": lambda path: RunFolder(str(path.parent), writes=False)._write(path.name, "new"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link_next_to_a_file(writer, folder, precious):
    for name in ("a", "a.new", ".a.new", "a.tmp", "a.partial"):
        (folder / name).symlink_to(precious)
    WRITERS[writer](folder / "a")
    assert (folder / "a").read_bytes() == b"new" and not (folder / "a").is_symlink()


@pytest.mark.parametrize("open_file", [new_file, write_lock, RecordFile])
def test_no_file_is_opened_for_writing_through_a_link(open_file, folder, precious):
    (folder / "a").symlink_to(precious)
    with pytest.raises(OSError):
        open_file(folder / "a")


def test_a_folder_to_fill_is_not_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ValueError, match="link is a link"):
        claim(tmp_path / "link")
    assert not any(folder.iterdir())


def test_a_replaced_file_has_the_mode_of_the_umask(folder):
    before = os.umask(0o027)
    try:
        replace_file(folder, "a", b"old")
        replace_file(folder, "a", b"new")
    finally:
        os.umask(before)
    assert (folder / "a").read_bytes() == b"new"
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o640


def test_an_error_leaves_the_old_file_and_no_other(folder):
    replace_file(folder, "a", b"old")
    with pytest.raises(KeyboardInterrupt), replacing(folder / "a") as file:
        file.write(b"half")
        (growing,) = (path.name for path in folder.iterdir() if path.name != "a")
        raise KeyboardInterrupt
    assert LEFT.fullmatch(growing)
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert (folder / "a").read_bytes() == b"old"


def test_a_system_error_names_the_file_and_not_the_growing_one(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        replace_file(tmp_path / "gone", "a", b"new")
    assert refused.value.filename == str(tmp_path / "gone" / "a")


@pytest.mark.parametrize("kind", ["FIFO", "folder", "device"])
def test_only_a_regular_file_is_replaced(kind, folder):
    path = folder / "a"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(OSError, match=kind):
        replace_file(folder, "a", b"new")
    assert not path.is_file()
