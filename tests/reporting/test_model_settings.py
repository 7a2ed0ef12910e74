"""Settings of any model are found, and combinations of memories fill no published row."""

import pytest
from fabricated_runs import make_run

from brt.reporting.collect import collect
from brt.reporting.model_settings import model_setting, owners
from brt.reporting.paper_positions import system_and_size
from brt.reporting.papers.all import PAPERS
from brt.reporting.papers.fill import paper_tables
from brt.reporting.runs import open_runs

RMT = {"Trainer.model": "@RecurrentMemoryTransformer"}
AROUND_BLOCKS = RMT | {"RecurrentMemoryTransformer.body": "@BlockRecurrentTransformer"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("BlockRecurrentTransformer",)),
        ({"Trainer.model": "@LSTM"}, ("LSTM",)),
        (RMT, ("RecurrentMemoryTransformer", "TransformerXL")),
        (AROUND_BLOCKS, ("RecurrentMemoryTransformer", "BlockRecurrentTransformer")),
        ({"Trainer.model": "@MyModel"}, ("MyModel",)),  # of a module that is not here
    ],
)
def test_a_models_arguments_are_bound_by_it_and_by_its_body(settings, expected):
    assert owners(settings) == expected


def test_the_width_of_a_wrapped_body_is_found():
    settings = AROUND_BLOCKS | {"BlockRecurrentTransformer.width": 24, "TransformerXL.width": 7}
    assert model_setting(settings, "width") == 24
    assert model_setting(settings, "num_memory", 5) == 5


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        ("pg19_rec_fixed_skip", ["BlockRecurrentTransformer.memorizing_layers = (9,)"]),
        ("pg19_slide_12l", ["BlockRecurrentTransformer.memories = ((@Mine, (3,)),)"]),
        ("transformer_xl/wt103_base", ["TransformerXL.memory = @CompressiveMemory"]),
        (
            "rmt/rmt_wt103_150",
            ["RecurrentMemoryTransformer.body = @BlockRecurrentTransformer"],
        ),
    ],
)
def test_memories_combined_anew_fill_no_row_of_a_paper(tmp_path, name, bindings):
    def filled(folder, *bindings):
        scalars = {"bits_per_token": 2.0, "word_level_perplexity": 20.0}
        run = make_run(folder, name, *bindings, evaluations={"test": scalars})
        groups = collect(open_runs([run]))
        tables = [table for paper in PAPERS for table in paper_tables(paper, groups, None)]
        cells = [cell for table in tables for row in table.rows for cell in row]
        return sum(bool(cell.values) for cell in cells)

    assert filled(tmp_path / "published") > 0
    assert filled(tmp_path / "combined", *bindings) == 0


def test_a_combination_is_filed_under_its_models_name():
    settings = AROUND_BLOCKS | {"Trainer.segment_length": 8}
    assert system_and_size(settings) == ("RecurrentMemoryTransformer", None)
