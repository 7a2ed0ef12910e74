"""The longest segment that fits a budget: on made-up costs, and on tiny models."""

import pytest
from gin_settings import bound
from tiny_run import TXL, one_device, write_config

from brt.benchmarks.memory_budget import longest_fitting, longest_segment, parse_bytes, step_bytes
from brt.experiment import Configuration


@pytest.fixture(autouse=True)
def on_one_device(monkeypatch):
    monkeypatch.setattr("brt.benchmarks.memory_budget.make_mesh", lambda shape: one_device())


@pytest.mark.parametrize("period", [1, 4, 64])
@pytest.mark.parametrize("budget", [0, 99, 100, 101, 5000, 123_456])
def test_what_is_found_fits_and_one_period_more_does_not(budget, period):
    def bytes_of(length):
        return 50 + length // 2

    found = longest_fitting(bytes_of, budget, period)
    length = found.segment_length
    assert length % period == 0
    assert not length or bytes_of(length) <= budget
    assert bytes_of(length + period) > budget
    assert found.tried == {tried: bytes_of(tried) for tried in found.tried}
    assert len(found.tried) <= 2 * max(length // period, 1).bit_length() + 2


@pytest.mark.parametrize("curve", [1.0, 0.9, 1.1])
@pytest.mark.parametrize("fitting", [1, 2, 3, 4, 9, 28, 1000])
def test_costs_near_a_line_need_few_tries(curve, fitting):
    def bytes_of(length):
        return int(1_000 + 100_000 * length**curve)

    found = longest_fitting(bytes_of, bytes_of(fitting), 1)
    assert found.segment_length == fitting
    assert len(found.tried) <= (4 if curve == 1.0 else 2 * fitting.bit_length() + 2)


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * 2**30), ("900 MB", 900_000_000), ("1.5KiB", 1536), ("2e9", 2_000_000_000)],
)
def test_bytes_are_read_with_their_unit(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "0", "-3GB", "3 apples"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(ValueError, match="--memory_budget"):
        parse_bytes(text)


@pytest.fixture(scope="module")
def txl(folder):
    return write_config(folder, *TXL)


def bytes_at(path, length):
    """Of the compiled step with segments and a memory of that length, four rows."""
    lengths = (
        *bound("Trainer", segment_length=length, tokens_per_step=4 * length),
        f"TransformerXL.memory_length = {length}",
    )
    return step_bytes(Configuration([str(path)], lengths).experiment())


def test_the_longest_segment_fits_and_the_next_does_not(txl):
    lines, budget, also = [], bytes_at(txl, 24) + 1, ["TransformerXL.memory_length"]
    found = longest_segment(Configuration([str(txl)]).experiment, budget, also, report=lines.append)
    assert found.segment_length >= 24 and found.tried[24] == budget - 1
    assert found.tried[found.segment_length] <= budget
    assert found.tried[found.segment_length + 4] > budget
    assert list(found.tried.values()) == sorted(found.tried.values())
    assert len(lines) == len(found.tried) and "MiB" in lines[0]


def test_lengths_are_multiples_of_a_window(tmp_path, monkeypatch):
    lines = "BlockRecurrentTransformer.window = 12", "Trainer.segment_length = 12"
    path = write_config(tmp_path, *lines, "Trainer.tokens_per_step = 48")
    tokens = "brt.benchmarks.memory_budget.step_bytes"
    monkeypatch.setattr(tokens, lambda experiment: experiment.trainer.tokens_per_step)
    found = longest_segment(Configuration([str(path)]).experiment, 4 * 64, report=lambda line: None)
    assert found == (60, {length: 4 * length for length in (12, 24, 60, 72)})


def test_the_step_that_is_measured_is_divided_over_time(tmp_path):
    settings = "Trainer.segments_per_step = 2", "Trainer.devices_over_time = 2"
    experiment = Configuration([write_config(tmp_path, *settings)]).experiment()
    with pytest.raises(ValueError, match=r"devices_over_time = 2 must divide the 1 devices"):
        step_bytes(experiment)
