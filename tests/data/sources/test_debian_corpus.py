"""The corpus of source packages: which files, and which folders are documents."""

import hashlib
import io
import tarfile

import pytest
from corpora import debian

FILES = {
    "README": b"not source",
    "main.c": b"m" * 40,
    "core/a.py": b"a" * 30,
    "core/deep/b.py": b"b" * 30,
    "core/deep/copy_of_a.py": b"a" * 30,
    "large/one/c.go": b"c" * 90 + b"\n",
    "large/two/d.go": b"d" * 90,
    "large/e.go": b"e" * 50,
    "large/tiny/f.go": b"f",
    "table.c": b"t" * 101,
    "binary.c": b"\0" * 50,
    "latin.c": b"\xe9" * 50,
}


def packed(files, top="package-1.0"):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo(f"{top}/link.c")
        link.type, link.linkname = tarfile.SYMTYPE, "main.c"
        tar.addfile(link)
        outside = tarfile.TarInfo("../outside.c")
        outside.size = 50
        tar.addfile(outside, io.BytesIO(b"o" * 50))
    return archive.getvalue()


@pytest.fixture
def row(monkeypatch):
    monkeypatch.setattr(debian, "LARGEST_FILE", 100)
    monkeypatch.setattr(debian, "LARGEST_DOCUMENT", 200)
    monkeypatch.setattr(debian, "SMALLEST_DOCUMENT", 20)
    return {"package": "package", "split": "train"}


@pytest.mark.parametrize("inside", [False, True])
def test_documents_are_the_largest_folders_that_fit(row, tmp_path, inside):
    archive = tmp_path / "package.orig.tar.xz"
    archive.write_bytes(packed({"source.tar.xz": packed(FILES)}) if inside else packed(FILES))
    (tmp_path / "out" / "train").mkdir(parents=True)
    (tmp_path / "out" / "train" / "package~old.txt").write_text("of another version")
    built = debian.build(row, archive, tmp_path / "out")

    def joined(*names):
        ends = {name: b"" if FILES[name].endswith(b"\n") else b"\n" for name in names}
        return b"".join(
            b"# file: %s\n%s%s" % (name.encode(), FILES[name], ends[name]) for name in names
        )

    expected = {
        "package.txt": joined("main.c"),
        "package~core.txt": joined("core/a.py", "core/deep/b.py"),
        "package~large.txt": joined("large/e.go"),
        "package~large~one.txt": joined("large/one/c.go"),
        "package~large~two.txt": joined("large/two/d.go"),
    }
    found = {file.name: file.read_bytes() for file in (tmp_path / "out" / "train").iterdir()}
    assert found == expected
    assert [*(tmp_path / "out").iterdir()] == [tmp_path / "out" / "train"]
    text = b"".join(expected.values())
    assert built["documents"] == str(len(expected)) and built["text_bytes"] == str(len(text))
    assert built["text_sha256"] == hashlib.sha256(text).hexdigest()


def test_an_archive_of_another_content_is_refused(tmp_path):
    (tmp_path / "p.orig.tar.xz").write_bytes(b"changed")
    row = {"path": "pool/p.orig.tar.xz", "sha256": hashlib.sha256(b"published").hexdigest()}
    with pytest.raises(ValueError, match=r"p\.orig\.tar\.xz has sha256"):
        debian.download(row, "file:///nowhere", tmp_path)


def test_a_version_that_a_mirror_has_no_more_is_named(tmp_path):
    row = {"path": "pool/gone.tar.xz", "sha256": ""}
    with pytest.raises(ValueError, match=r"gone\.tar\.xz.*--help"):
        debian.download(row, (tmp_path / "mirror").as_uri(), tmp_path / "downloads")


def test_an_archive_is_downloaded_once(tmp_path):
    mirror, folder = tmp_path / "mirror", tmp_path / "downloads"
    (mirror / "pool").mkdir(parents=True)
    (mirror / "pool" / "p.tar.gz").write_bytes(b"published")
    row = {"path": "pool/p.tar.gz", "sha256": hashlib.sha256(b"published").hexdigest()}
    for _ in range(2):
        assert debian.download(row, mirror.as_uri(), folder).read_bytes() == b"published"
        (mirror / "pool" / "p.tar.gz").write_bytes(b"changed")
