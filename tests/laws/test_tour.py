"""The core is small and independent: the files of docs/tour.md."""

import re
import subprocess
import sys

from paths import ROOT

NAMES = re.findall(r"^\d+\. .*", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), re.M)
TOUR = [name for line in NAMES for name in re.findall(r"`(brt/[\w/]+\.py)`", line)]
MAXIMUM = 3_110
"""Lines of all files together: lower this number, never raise it."""
EXTENSIONS = ("brt.pretrained", "brt.studies", "brt.reporting", "brt.benchmarks", "brt.sweeps")
PREPARATION = ("tensorflow", "seqio")


def test_the_tour_has_its_files_and_their_size():
    assert len(NAMES) == 16
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in TOUR)
    assert lines <= MAXIMUM


def test_training_loads_no_extension_and_no_tensorflow():
    command = [sys.executable, "-c", "import sys, brt.train; print(*sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "brt.run.loop" in loaded
    assert not [name for name in loaded if name.startswith((*EXTENSIONS, *PREPARATION))]
