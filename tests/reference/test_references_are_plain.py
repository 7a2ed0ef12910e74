"""The transcriptions of equations are independent of the code that they are compared with."""

from pathlib import Path

import pytest

REFERENCES = sorted(Path(__file__).parent.rglob("*_numpy.py"))


@pytest.mark.parametrize("file", REFERENCES, ids=lambda file: file.stem)
def test_a_transcription_is_written_in_plain_numpy(file):
    text = file.read_text()
    assert "import numpy as np" in text
    assert "jax" not in text and "from brt" not in text and "import brt" not in text
