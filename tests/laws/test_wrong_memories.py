"""The table of wrong memories fits the code; `scripts/mutate_memories.py` runs the laws on it."""

import ast
import shutil

import pytest
from architectures import ARCHITECTURES
from paths import ROOT
from wrong_memories import MUTATIONS, Change, Mutation, Rename, apply


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    shutil.copytree(ROOT / "brt" / "models", folder / "brt" / "models")
    return folder


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_wrong_memory_can_be_made_of_the_present_code(mutation, original):
    assert set(mutation.architectures) <= ARCHITECTURES.keys()
    changed = {}
    try:
        for path in apply(mutation, original):
            changed[path] = path.read_text(encoding="utf-8")
            right = (ROOT / path.relative_to(original)).read_text(encoding="utf-8")
            assert ast.dump(ast.parse(changed[path])) != ast.dump(ast.parse(right))
    finally:
        for path in changed:
            shutil.copy2(ROOT / path.relative_to(original), path)
    assert changed


def test_names_are_told_apart():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) and not any(" " in name for name in names)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            Change("brt/models/caches.py", "nobody wrote this", ""),
            "is 0 times in brt/models/caches",
        ),
        (Change("brt/models/caches.py", "import", ""), r"is \d\d? times in brt/models/caches"),
        (Rename("nothing_BXYZ", "nothing_B"), "nothing in brt/ is called nothing_BXYZ"),
    ],
)
def test_a_text_that_is_not_there_exactly_once_is_refused(edit, said, original):
    with pytest.raises(ValueError, match=f"^stale: .*{said}"):
        apply(Mutation("stale", (edit,), ("xl",)), original)
