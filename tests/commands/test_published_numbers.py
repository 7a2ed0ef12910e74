"""Every published config binds the published numbers, and nothing that has no number."""

import re

import pytest
from paths import ROOT
from published_checks import EXPERIMENTS, SWEEPS, experiment_problems, read_once, sweep_problems

CONFIGS = ROOT / "configs"
OWN = {
    "quickstart.gin": "first steps on a laptop",
    "quickstart_slide.gin": "what the quickstart is measured against",
    "benchmark/*.gin": "sizes for timing on a CPU",
    "small/*.gin": "models of minutes; docs/benchmarks/training.md has what they reach",
    "short/*.gin": "models beside Table 1 at its short scale, of minutes",
    "recipes/small*.gin": "how those are trained",
    "recipes/context_group.gin": "how those are trained",
    "task_models/minutes_*.gin": "tasks in minutes",
    "recipes/algorithmic_minutes.gin": "how those are trained",
    "tasks/quadratic_30.gin": "a smaller task, in minutes",
    "task_models/recall_*.gin": "a task of this project",
    "tasks/recall*.gin": "a task of this project",
    "pretrained/gpt2_memory_tokens.gin": "a comparison of this project",
    "pretrained/gpt2_cell.gin": "a comparison of this project",
    "pretrained/smollm2_*.gin": "a comparison of this project",
    "bodies/smollm2_135m.gin": "the body of these",
    "bodies/*_of_folder.gin": "sizes that a folder says",
    "labelled/texts.gin": "texts of one's own",
    "labelled/ecthr.gin": "a corpus that no paper here reports",
    "corpora/books_pieces.gin": "books in pieces of one's own",
    "corpora/code_pieces.gin": "source code in pieces of one's own",
    "corpora/books_unwrapped.gin": "books without what counting characters gains",
    "pretrained_tasks/*.gin": "a task of this project",
    "tasks/marked*.gin": "a task of this project",
    "recipes/recall.gin": "how that is trained",
}
"""Configs that no paper has, and what they are for."""
UNPUBLISHED = {"gate_biases", "pretrained_recall", "pretrained_marked", "pretrained_small"}
"""Sweeps of no published rows."""


@pytest.mark.parametrize("line", EXPERIMENTS)
def test_a_config_binds_the_published_numbers(line):
    assert not experiment_problems(ROOT, line)


@pytest.mark.parametrize(
    "rows", [pytest.param(3, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_has_the_published_rows_with_their_numbers(name, rows):
    assert not sweep_problems(ROOT, name, most=rows)


def included(file):
    """A gin file and those it includes, relative to configs/."""
    found = {file}
    for name in re.findall(r'^include "configs/(.*)"', (CONFIGS / file).read_text(), re.M):
        found |= included(name)
    return found


def test_every_config_has_published_numbers_or_is_said_to_have_none():
    lines = [*EXPERIMENTS]
    for name in SWEEPS:
        lines += (CONFIGS / "sweeps" / f"{name}.txt").read_text().splitlines()
    named = {file for line in lines if line[:1] != "#" for file in line.split()[0].split("+")}
    compared = set().union(*(included(file) for file in named))
    excepted = {str(path.relative_to(CONFIGS)) for glob in OWN for path in CONFIGS.glob(glob)}
    every = {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.gin")}
    assert every - compared - excepted == set()
    assert {path.stem for path in (CONFIGS / "sweeps").glob("*.txt")} - UNPUBLISHED == {*SWEEPS}


def test_every_number_says_where_it_was_read():
    for numbers in (*EXPERIMENTS.values(), *(row for rows in SWEEPS.values() for row in rows)):
        assert all(number.source.strip() for number in numbers.values())


def test_a_number_that_differs_and_a_binding_without_a_number_are_named():
    line = "pg19_rec_fixed_skip.gin"
    files = (str(CONFIGS / line),)
    bindings = "rsqrt.multiplier = 0.5", "Trainer.skip_nonfinite = True"
    from published_checks import differences

    wrong, unknown = differences(read_once(files, bindings), EXPERIMENTS[line])
    assert wrong.startswith("rsqrt.multiplier is 0.5, not 1.0")
    assert unknown == "Trainer.skip_nonfinite has no published number"
