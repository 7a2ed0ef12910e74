"""Files read by parts: the bytes of the file, and a sentence where it is cut short meanwhile."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from paths import ROOT
from stores import make_store

from brt.storage import file_parts
from brt.storage.file_parts import CutShort, FileArray, FileBytes


@pytest.fixture
def content(tmp_path, monkeypatch):
    """Some bytes, and a file with them that is gone through in small pieces."""
    monkeypatch.setattr(file_parts, "PIECE", 12)
    monkeypatch.setattr(file_parts, "SEARCHED", 5)
    data = np.random.default_rng(0).integers(97, 100, 80, np.uint8).tobytes()
    (tmp_path / "file").write_bytes(data)
    return data, tmp_path / "file"


def test_slices_and_pieces_are_those_of_the_bytes(content):
    data, path = content
    found = FileBytes(path, "")
    assert len(found) == len(data)
    for start in (None, 0, 3, 79, 80, 99, -7, -99):
        for stop in (None, 0, 3, 4, 80, 200, -7):
            assert found[start:stop] == data[start:stop]
    assert list(file_parts.pieces(found)) == list(file_parts.pieces(data))
    assert b"".join(file_parts.pieces(found)) == data
    assert pickle.loads(pickle.dumps(found)) == data
    part = found.part(20, 60).part(7, 33)
    assert (part[:], part[3:-3], len(part)) == (data[27:53], data[30:50], 26)
    assert part.find(data[50:53]) == data[27:53].find(data[50:53])


def test_what_is_looked_for_is_found_where_it_is_first(content):
    data, path = content
    found = FileBytes(path, "")
    wanted = [data[a : a + n] for a in range(80) for n in (0, 1, 2, 5, 6, 7, 20)]
    for text in {*wanted, b"x", b"ax"}:
        for start in range(82):
            assert found.find(text, start) == data.find(text, start)


def test_an_array_has_the_items_of_the_file(content):
    data, path = content
    expected = np.frombuffer(data, "<u4")
    found = FileArray(path, np.dtype("<u4"), "")
    for part in (slice(None), slice(3, 9), slice(9, 3), slice(-2, None), slice(30, 40)):
        assert found[part].dtype == found.dtype and found[part].tolist() == expected[part].tolist()


def test_a_file_cut_short_is_named_with_both_sizes(content):
    data, path = content
    found = FileBytes(path, "Make it anew.")
    os.truncate(path, 50)
    assert found[:50] == data[:50]
    with pytest.raises(CutShort) as caught:
        found[40:60]
    assert all(part in str(caught.value) for part in (str(path), "80 bytes", "50"))


READS = """
import sys
from brt.data.stores.token_store import TokenStore
from brt.data.sources.files import TextFiles
kind, path = sys.argv[1:]
if kind == "store":
    store = TokenStore(path)
    read = lambda: store.tokens(2, 5000, 5010).sum() + store.weights(2, 5000, 5010).sum()
else:
    from brt.data.sources import files
    files.WHOLE = 100
    (document,) = TextFiles(path, suffix=".bin").documents("train")
    read = lambda: document.data[20000:20010]
read()
print("open", flush=True)
sys.stdin.readline()
try:
    read()
except ValueError as error:
    sys.exit(f"sentence: {error}")
"""


@pytest.mark.parametrize("kind", ["store", "text"])
def test_a_process_whose_file_is_cut_short_ends_without_signal(kind, tmp_path):
    make_store(tmp_path / "store", [3, 9, 12_000], weighted=True)
    path = tmp_path / "store" / "shard-00000"
    source = path.parent if kind == "store" else path / "*.bin"
    line = [sys.executable, "-c", READS, kind, str(source)]
    if kind == "text":
        (path / "weights.bin").unlink()
        (path / "tokens.bin").write_bytes(b"word " * 5000)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(line, cwd=ROOT, env=environment, text=True, **pipes)
    assert process.stdout.readline() == "open\n"
    os.truncate(path / "tokens.bin", 4096)
    _, err = process.communicate("\n", timeout=60)
    assert process.returncode == 1, err
    assert f"sentence: {path / 'tokens.bin'}" in err
