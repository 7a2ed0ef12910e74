"""Gin files read as data have the bindings that gin itself would make."""

import gin
import pytest
from gin_settings import read_gin_files
from paths import ROOT

from brt import config
from brt.experiment import Experiment  # noqa: F401  (registers with gin)
from brt.reporting.gin_text import reachable, read_gin, resolved, write_gin

NAMES = [
    "pg19_rec_fixed_skip.gin",
    "rmt/rmt_txl_wt103_150.gin+recipes/wikitext103.gin+transformer_xl/test_wt103_base.gin",
    "task_models/rmt_4x128.gin+tasks/reverse_120.gin+recipes/long_samples.gin",
    "systems/memorizing_64k.gin+recipes/github.gin",
    "small/rec_fixed_skip.gin+corpora/pg19_first.gin",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_config_read_as_data_and_written_back_binds_the_same(name):
    paths = [str(ROOT / "configs" / part) for part in name.split("+")]
    config.parse(paths)
    expected = gin.config_str()
    gin.clear_config()
    gin.parse_config(write_gin(read_gin_files(paths)))
    assert gin.config_str() == expected


def test_a_corpus_dependence_is_found_through_references():
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


def test_a_macros_value_replaces_it_where_it_has_one():
    text = """
size = 12
half = %size
A.all = (%size, [%half, 3])
A.b = {"x": %half}
A.c = %missing
"""
    found = resolved(read_gin(text))
    assert found == {"A.all": (12, [12, 3]), "A.b": {"x": 12}, "A.c": "%missing"}
    assert write_gin(found).splitlines()[-1] == "A.c = %missing"
