"""Gin files read as data say what gin itself would bind."""

import gin
import pytest
from paths import ROOT

from brt import config
from brt.experiment import Experiment  # noqa: F401  (registers with gin)
from brt.reporting.gin_text import reachable, read_gin, read_gin_file, write_gin

CONFIGS = sorted((ROOT / "configs").glob("*.gin"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_read_as_data_and_written_back_binds_the_same(path):
    config.parse([str(path)])
    expected = gin.config_str()
    gin.clear_config()
    gin.parse_config(write_gin(read_gin_file(path)))
    assert gin.config_str() == expected


def test_what_the_corpus_depends_on_is_found_through_all_references():
    text = """
Trainer.corpus = @Corpus()
Trainer.steps = 3
Corpus.source = @FirstTokens()
Corpus.store = "s"
FirstTokens.source = @TextFiles()
TextFiles.path = "p"
BlockRecurrentTransformer.width = 8
"""
    found = reachable(read_gin(text), "Trainer.corpus")
    corpus = {"Corpus.source", "Corpus.store", "FirstTokens.source", "TextFiles.path"}
    assert found == {"Trainer.corpus"} | corpus
