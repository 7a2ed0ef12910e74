"""Nothing is removed that brt did not write, and no split is a path."""

import os

import pytest

from brt.data.sources.base import Document
from brt.data.splits import check_split
from brt.data.stores.own_folders import check_claimable, claim, remove
from brt.data.stores.store_writer import write_store
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import ByteVocabulary
from brt.training.evaluation_settings import Evaluation

PATHS = ("", "..", "../escaped", "a/b", "/tmp/a", "a\\b", "a\nb", "a..b", "~", "-a", " a")


def files_below(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def write(folder):
    return write_store(folder, [Document("a", b"text")], ByteVocabulary(), {}, quiet=True)


# Names of splits


@pytest.mark.parametrize("split", [*PATHS, "train.partial", None, 1, {}])
def test_a_path_is_no_split(split):
    with pytest.raises(ValueError, match=r"^Evaluation\.split = "):
        Evaluation(split=split)
    with pytest.raises(ValueError, match="split"):
        check_split(split)


# Folders


GROWN = "shard-00012.0123456789ab.growing", f"{'0f' * 16}.failed", f".brt-{'0' * 16}.new"


@pytest.mark.parametrize("names", [None, [], *([name] for name in GROWN), ["thesis", *GROWN]])
def test_a_store_continues_in_an_empty_folder_or_one_it_began(tmp_path, names):
    folder = tmp_path / "deep" / "made"
    for name in names or ():
        (folder / name).mkdir(parents=True)
    check_claimable(folder)
    claim(folder)
    assert sorted(os.listdir(folder)) == sorted(names or ())


@pytest.mark.parametrize("strange", ["thesis.txt", "a.bin.old", "folder"])
def test_a_folder_with_something_else_in_it_stays_whole(tmp_path, strange):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a.bin").write_text("made by brt")
    if strange == "folder":
        (folder / strange).mkdir()
    else:
        (folder / strange).write_text("mine")
    before = files_below(folder)
    with pytest.raises(ValueError, match=rf"{folder} holds {strange}"):
        remove(folder, ["a.bin", "b.bin"])
    assert files_below(folder) == before and (folder / strange).exists()


# Stores


OTHERS = "thesis.txt", "weights.bin", "shard-1/a.txt", "shard-00000.tar"
LIKE_OURS = "job7.failed", "index.failed.json", "shard-00000", "shard-00000/tokens.bin"


@pytest.mark.parametrize("name", [*OTHERS, *LIKE_OURS])
def test_a_folder_of_somebody_else_is_no_place_for_a_store(tmp_path, name):
    mine = tmp_path / "train" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("years of work")
    for make in (check_claimable, write):
        with pytest.raises(ValueError, match=f"{tmp_path}/train"):
            make(tmp_path / "train")
    assert files_below(tmp_path / "train") == {name: b"years of work"}


@pytest.mark.parametrize("name", ["thesis.txt", "shard-00000.txt", "shard-00007/notes.txt"])
def test_what_somebody_put_into_a_growing_store_outlives_it(tmp_path, name):
    mine = tmp_path / "train" / name
    (tmp_path / "train" / GROWN[0]).mkdir(parents=True)
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    write(tmp_path / "train")
    assert TokenStore(tmp_path / "train").num_tokens == 4
    assert mine.read_text() == "years of work"
