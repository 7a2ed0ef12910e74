"""Figures of Adding Recurrence to Pretrained Transformers, and its counts of operations."""

import functools

import pytest
from fabricated_runs import ROOT, make_entry_run
from flax import nnx
from stores import make_store
from tiny_models import OneKey

from brt.data.streams.shifted import ShiftedPass
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.reporting.collect import collect
from brt.reporting.paper_positions import flops_per_token
from brt.reporting.papers.fill import frontier, paper_plots
from brt.reporting.papers.published_tables import read_paper
from brt.reporting.runs import open_runs
from brt.sweeps.entries import read_sweep
from brt.sweeps.scales import SCALES

ADDING_RECURRENCE = read_paper("adding_recurrence")
FLOPS = {int(row.where["evaluation_overlap"]): float(row.labels[1])
         for row in ADDING_RECURRENCE.table("arpt_table_2").rows}  # fmt: skip


@pytest.mark.parametrize("overlap", FLOPS)
def test_the_model_counts_the_printed_flops_within_one_percent(overlap):
    sizes = dict(vocabulary_size=50257, num_layers=12, width=768, num_heads=12, num_positions=1024)

    def build():
        return PretrainedLanguageModel(
            OneKey(), body=functools.partial(GPT2, **sizes), overlap=overlap
        )

    model = nnx.eval_shape(build).for_segments(300 - overlap)
    # Logits are not counted there.
    assert model.flops_per_position() == pytest.approx(FLOPS[overlap], rel=0.01)


@pytest.mark.parametrize("overlap", [0, 3, 9])
def test_wasted_computation_is_what_an_evaluation_reads_twice(tmp_path, overlap):
    store, window = make_store(tmp_path / "store", [2001]), 10
    shifted = ShiftedPass(store, 1, window, window - overlap, contiguous=True)
    read = shifted.num_steps * window
    assert read == (1 + -(-(2000 - window) // (window - overlap))) * window  # section 4.1
    scored = sum(int(shifted.batch(step).weights_KBT.sum()) for step in range(shifted.num_steps))
    assert (read - scored) / read == pytest.approx(overlap / window, abs=0.005)
    share = 1 - flops_per_token(300) / flops_per_token(300, 30 * overlap)
    assert share == pytest.approx(overlap / window)


def test_a_frontier_has_what_nothing_beats_in_both():
    points = [(2.0, 5.0), (1.0, 9.0), (3.0, 6.0), (1.5, 9.0), (4.0, 4.0), (2.0, 7.0)]
    assert frontier(points) == [(1.0, 9.0), (2.0, 5.0), (4.0, 4.0)]


def perplexity_of(settings):
    """Falls with the window and the overlap; lower with recurrence."""
    overlap = settings.get("evaluation/PretrainedLanguageModel.overlap", 0)
    overlap = settings.get("PretrainedLanguageModel.overlap", overlap)
    window = settings["Trainer.segment_length"] + settings.get("PretrainedLanguageModel.overlap", 0)
    recurrent = "PretrainedLanguageModel.memories" in settings
    return 200 - window / 20 - overlap / 5 - 20 * recurrent


WINDOWS = [200, 300, 400, 500, 600]


def test_windows_give_a_curve_of_each_model_and_overlap(tmp_path):
    """Of evaluations of the validation split, though the test split has others."""
    path, folders = ROOT / "configs/sweeps/arpt_windows.txt", []
    for number, entry in enumerate(read_sweep(path, SCALES["paper"], None, [], None)):
        shown = {"validation": perplexity_of(entry.settings), "test": 1.0}
        evaluations = {split: {"word_level_perplexity": x} for split, x in shown.items()}
        folders.append(make_entry_run(tmp_path / f"{number}", entry, evaluations=evaluations))
    plots = paper_plots(ADDING_RECURRENCE, collect(open_runs(folders)))
    found = {line.name: line for line in plots["arpt_figure_4"].lines if "PG-19" in line.name}
    assert {name: (line.x, line.y) for name, line in found.items()} == {
        "baseline, PG-19": (WINDOWS, [200 - w / 20 for w in WINDOWS]),
        "recurrent, PG-19": (WINDOWS, [180 - w / 20 for w in WINDOWS]),
    }
    found = {line.name: line for line in plots["arpt_figure_5"].lines if "PG-19" in line.name}
    for overlap in (0, 10, 30, 50):
        line = found.pop(f"baseline, o = {overlap}, PG-19")
        costs = [flops_per_token(window, overlap) / 1e8 for window in WINDOWS]
        points = zip(costs, (200 - w / 20 - overlap / 5 for w in WINDOWS))  # joined by window
        assert list(zip(line.x, line.y)) == [pytest.approx(point) for point in points]
    recurrent = found.pop("recurrent, o = 0, PG-19")
    assert recurrent.y == [180 - w / 20 for w in WINDOWS]
    assert [*found] == ["frontier, PG-19"]
    drawn = list(zip(found["frontier, PG-19"].x, found["frontier, PG-19"].y))
    measured = [
        point
        for line in plots["arpt_figure_5"].lines
        if line.style == "points"
        for point in zip(line.x, line.y)
    ]
    assert drawn == frontier(measured) == list(zip(recurrent.x, recurrent.y))
