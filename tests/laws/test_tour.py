"""The core is small and independent: the files of docs/tour.md."""

import ast
import re
import subprocess
import sys

import pytest
from paths import ROOT

NAMES = re.findall(r"^\d+\. .*", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), re.M)
TOUR = [name for line in NAMES for name in re.findall(r"`(brt/[\w/]+\.py)`", line)]
MAXIMUM = 3_110
"""Lines of all files together: lower this number, never raise it."""
EXTENSIONS = ("brt.pretrained", "brt.studies", "brt.reporting", "brt.benchmarks", "brt.sweeps")


def test_the_tour_has_its_files_and_their_size():
    assert len(NAMES) == 16
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in TOUR)
    assert lines <= MAXIMUM


@pytest.mark.parametrize("name", TOUR)
def test_a_core_file_imports_no_extension(name):
    for node in ast.parse((ROOT / name).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not ast.unparse(node).split()[1].startswith(EXTENSIONS)


def test_training_never_imports_tensorflow():
    code = "import sys, brt.train; assert not {'tensorflow', 'seqio'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
