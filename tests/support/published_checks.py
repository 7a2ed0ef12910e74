"""Compares configs with the published numbers: what differs, and what no number covers."""

import functools
from pathlib import Path

import gin
import jax
import numpy as np
import published_block_recurrent
import published_pretrained
import published_readers
import published_tasks
import published_transformer_xl
from published_numbers import Numbers
from sweeps import SCALES, LadderError, read_sweep

from brt import config
from brt.experiment import Experiment
from brt.reporting.gin_text import read_gin, resolved, write_gin
from brt.training.settings import Trainer

SWEEPS = (
    published_block_recurrent.SWEEPS
    | published_transformer_xl.SWEEPS
    | published_tasks.SWEEPS
    | published_pretrained.SWEEPS
    | published_readers.SWEEPS
)
"""Sweep of configs/sweeps/ to the numbers of its rows."""
EXPERIMENTS = (
    published_block_recurrent.FLAT
    | {
        "systems/memorizing_dense_64k.gin+recipes/arxiv.gin": published_block_recurrent.ON_ARXIV[
            "memorizing_dense_64k"
        ]
    }
    | published_block_recurrent.ON_CORPORA
    | published_transformer_xl.TESTED
    | published_transformer_xl.HEADERS
    | published_tasks.HEADERS
    | published_tasks.OWN_MODELS
    | published_pretrained.HEADERS
    | published_readers.HEADERS
)
"""Gin files below configs/, joined by `+`, with bindings after them, to their numbers."""


class Read(dict):
    """Name to value as text, of every binding a full build has read.

    Attributes:
        bound: names of those the config binds.
        experiment: what was built.
    """

    bound: frozenset[str]
    experiment: Experiment


def read(files: tuple[str, ...], bindings: tuple[str, ...] = ()) -> Read:
    """What gin binds once the model and the schedule are built, each macro's value in its place.

    Tracing the loss reads nothing more; tests/configs/test_every_build.py does it.
    """
    config.parse(files, bindings)
    experiment = Experiment(Trainer())
    jax.eval_shape(experiment.schedule, jax.ShapeDtypeStruct((), np.int32))
    config.check_all_read()
    texts = config.read_bindings()
    macros = {name: text for name, text in texts.items() if "." not in name}
    found = Read(
        {
            name: macros.get(text.removeprefix("%"), text) if text.startswith("%") else text
            for name, text in texts.items()
            if "." in name
        }
    )
    found.experiment = experiment
    found.bound = frozenset(name for name in resolved(read_gin(gin.config_str())))
    return found


read_once = functools.cache(read)


def differences(found: Read, numbers: Numbers) -> list[str]:
    """Sentences on what differs from the published numbers, and on bindings that have none."""
    wrong = [
        f"{name} is {found.get(name, 'not read')}, not {number.value!r} ({number.source})"
        for name, number in numbers.items()
        if found.get(name) != repr(number.value) and not _absent(name, number, found)
    ]
    return wrong + [f"{name} has no published number" for name in found.bound - numbers.keys()]


def _absent(name, number, found):
    """A value of a scope or class that the experiment does not use, given as not used."""
    return name not in found and number.value in (None, False, ()) and name not in found.bound


def experiment_problems(root: Path, line: str, once=True) -> list[str]:
    """Differences of one of `EXPERIMENTS`, its configs below `root`/configs."""
    files, *bindings = line.split()
    paths = tuple(f"{root}/configs/{file}" for file in files.split("+"))
    found = (read_once if once else read)(paths, tuple(bindings))
    return differences(found, EXPERIMENTS[line])


def sweep_problems(root: Path, name: str, once=True, most: int | None = None) -> list[str]:
    """Differences of the rows of a sweep, at the paper's scale, from the published ones.

    most: how many rows to build, spread over the sweep; None for all.
    """
    entries = read_sweep(root / f"configs/sweeps/{name}.txt", SCALES["paper"], None, [], None)
    if len(entries) != len(SWEEPS[name]):
        return [f"{name} has {len(entries)} rows, not {len(SWEEPS[name])}"]
    numbers = np.linspace(0, len(entries) - 1, min(most or len(entries), len(entries)))
    return [
        f"row {number + 1}: {text}"
        for number in sorted({*numbers.astype(int).tolist()})
        for text in row_problems(entries[number], name, number, once)
    ]


def row_problems(entry, name: str, number: int, once=True) -> list[str]:
    """Differences of one entry from a row of a sweep."""
    reading = (read_once if once else read)((), (write_gin(entry.settings),))
    return differences(reading, SWEEPS[name][number])


PROBLEMS = (ValueError, TypeError, LadderError, OSError)
"""What a config that does not build raises."""
