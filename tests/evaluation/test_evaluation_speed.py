"""What is timed is the same prediction, from a memory and from a window of its own."""

import pytest
from tiny_run import TXL, shared_programs, write_config  # noqa: F401

from brt.config import ConfigError
from brt.evaluation.evaluation_speed import Speed, measure, table
from brt.experiment import Configuration


def test_each_length_is_timed_with_both_models_in_turn(tmp_path):
    path = write_config(tmp_path, *TXL, without=("BlockRecurrentTransformer", "RecurrentCell"))
    configuration, built = Configuration([str(path)], ["TransformerXL.same_length = True"]), []

    def build(further):
        built.append(configuration.experiment(further))
        return built[-1]

    found = measure(build, (8, 40), rounds=5)
    assert [row.attention_length for row in found] == [8, 40]
    for row, memory, vanilla in zip(found, built[::2], built[1::2], strict=True):
        assert memory.model.memory_length == row.attention_length and memory.model.same_length
        assert vanilla.model.memory_length == 0 and vanilla.model.encoding == "learned"
        assert row.segment_length == 16 and row.rounds == 5 * 40 // row.attention_length
        assert row.memory_seconds > 0 and row.vanilla_seconds > 0 and row.ratio > 0


def test_the_table_sets_the_papers_ratios_beside():
    shown = table([Speed(800, 128, 5, 0.0001, 0.0431, 431.0), Speed(900, 128, 5, 0.1, 0.2, 2.0)])
    _, first, second = shown.splitlines()
    assert first.split() == ["800", "0.1000", "43.10", "431", "363"]
    assert second.split() == ["900", "100.0000", "200.00", "2"]


def test_a_model_that_cannot_be_compared_is_refused(tmp_path):
    path = write_config(tmp_path)
    with pytest.raises(ConfigError, match="nothing here uses TransformerXL"):
        measure(Configuration([str(path)]).experiment, (8,), rounds=1)
    with pytest.raises(ValueError, match="--attention_lengths"):
        measure(Configuration([str(path)]).experiment, (0,))
