"""The recordings of published implementations, where they are."""

import pytest
from paths import GOLDEN

RECORDINGS = sorted(GOLDEN.rglob("*.npz"))
SLOW = "lact_muon", *(path.stem for path in RECORDINGS if path.parent.name == "pretrained")
needs_recordings = pytest.mark.skipif(not RECORDINGS, reason=f"no recordings under {GOLDEN}")


def every(*starts):
    """Parametrises a test by the recordings whose names start so."""
    files = [path for path in RECORDINGS if path.stem.startswith(starts)]
    marks = {True: [pytest.mark.slow], False: []}
    cases = [pytest.param(path, id=path.stem, marks=marks[path.stem in SLOW]) for path in files]
    return pytest.mark.parametrize("file", cases or [pytest.param("none", marks=needs_recordings)])
