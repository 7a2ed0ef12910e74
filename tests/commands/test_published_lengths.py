"""Transformer-XL's configs are tested with the lengths of the released scripts."""

import gin
import pytest
from paths import ROOT

from brt import config

# Segment, memory, clamp and rows. Source: the `test` branches of the released run_*.sh, and
# --batch_size there. Of One Billion Word the large model has 8 rows, which change no figure.
LENGTHS = {
    "wt103_base": (64, 640, 400, 10),
    "wt103_large": (128, 1600, 1000, 10),
    "characters_base": (80, 2100, 820, 10),
    "characters_large": (128, 3800, 1000, 10),
    "lm1b": (32, 128, None, None),
}
TESTED = {
    "txl_wt103_base": "wt103_base",
    "txl_wt103_large": "wt103_large",
    "txl_enwik8_12l": "characters_base",
    "txl_text8_base": "characters_base",
    "txl_enwik8_18l": "characters_large",
    "txl_enwik8_24l": "characters_large",
    "txl_text8_large": "characters_large",
    "txl_lm1b_base": "lm1b",
    "txl_lm1b_large": "lm1b",
}


def path_of(name):
    """The config of this name, whichever folder it lies in."""
    (path,) = (ROOT / "configs").rglob(f"{name}.gin")
    return path


@pytest.mark.parametrize("name", TESTED)
def test_a_transformer_xl_is_tested_with_the_published_segment_memory_and_clamp(name):
    part = path_of(f"txl_test_{TESTED[name]}")
    # The header tells the reader to give that file.
    assert str(part.relative_to(ROOT)) in path_of(name).read_text(encoding="utf-8")
    config.parse([str(path_of(name)), str(part)])
    segment, memory, clamp, rows = LENGTHS[TESTED[name]]
    evaluated = {
        setting: gin.query_parameter(f"evaluation/TransformerXL.{setting}")
        for setting in ("memory_length", "same_length", *["clamp_length"] * bool(clamp))
    }
    expected = {"memory_length": memory, "same_length": True}
    assert evaluated == expected | ({"clamp_length": clamp} if clamp else {})
    assert gin.query_parameter("Evaluation.model").selector.endswith("TransformerXL")
    assert gin.query_parameter("Evaluation.segment_length") == segment
    assert rows in (None, gin.query_parameter("Evaluation.tokens_per_step") / segment)
    for setting in ("same_length", "clamp_length"):  # training has neither
        with pytest.raises(ValueError, match="no value bound"):
            gin.query_parameter(f"TransformerXL.{setting}")
