"""Settings of any model are found, and combinations of memories fill no published row."""

import pytest
from fabricated_runs import make_run
from paths import CONFIGS

from brt.reporting.collect import collect
from brt.reporting.gin_text import read_gin, read_gin_file
from brt.reporting.model_settings import model_name, owners
from brt.reporting.paper_positions import system_and_size
from brt.reporting.run_tables import overview
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


@pytest.mark.parametrize(
    ("name", "bindings"),
    [
        ("pg19_rec_fixed_skip", ["BlockRecurrentTransformer.memorizing_layers = (9,)"]),
        ("pg19_slide_12l", ["BlockRecurrentTransformer.memories = ((@Mine, (3,)),)"]),
        ("transformer_xl/wt103_base", ["TransformerXL.memory = @CompressiveMemory"]),
        ("rmt/rmt_wt103_150", ["RecurrentMemoryTransformer.body = @BlockRecurrentTransformer"]),
    ],
)
def test_memories_combined_anew_are_no_published_system(name, bindings):
    settings = read_gin_file(CONFIGS / f"{name}.gin")
    published, size = system_and_size(settings)
    assert size is not None
    model = model_name(settings)
    assert published != model
    assert system_and_size(settings | read_gin("\n".join(bindings))) == (model, None)


@pytest.mark.parametrize(
    ("name", "bindings", "memories"),
    [
        (
            "pg19_rec_fixed_skip",
            ["BlockRecurrentTransformer.memories = ((@a/my.Own, 3), (@Other, (1,)))"],
            ["RecurrentCell", "Own", "Other"],
        ),
        (
            "transformer_xl/wt103_base",
            ["TransformerXL.memory = @CompressiveMemory", "TransformerXL.vocabulary_size = 256"],
            ["CompressiveMemory"],
        ),
    ],
)
def test_unpublished_memories_have_their_class_names(tmp_path, name, bindings, memories):
    runs = open_runs([make_run(tmp_path / "run", name, *bindings)])
    (group,) = collect(runs)
    assert group.position.memory_shown == ", ".join(memories)
    assert " + ".join([group.position.model, *memories]) in group.label
    (row,) = overview(runs).rows
    assert ", ".join(memories) in [cell.text for cell in row]
