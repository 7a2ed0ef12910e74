"""Collectives of training steps on clusters, from steps of few layers that are compiled for them."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gin

from brt.benchmarks import slices, topologies
from brt.benchmarks.gpus import Gpus
from brt.experiment import Configuration

LAYERS = ((2, 0), (2, 1), (3, 1))
"""Plain and recurrent layers of the steps that are compiled; bytes and times are linear in both."""


class Step(NamedTuple):
    """A step to compile: a config, with other numbers of plain and recurrent layers.

    rows: batch elements of a device.
    """

    config: str
    topology: str
    plain: int
    recurrent: int
    rows: int

    @property
    def bindings(self) -> list[str]:
        """The recurrent layers come after the first two."""
        found = topologies.find(self.topology)
        layers = self.plain + self.recurrent
        first = min(self.plain, 2)
        return [
            f"BlockRecurrentTransformer.num_layers = {layers}",
            f"BlockRecurrentTransformer.recurrent_layers = {(*range(first, first + self.recurrent),)}",
            "Trainer.segments_per_step = 1",
            f"Trainer.tokens_per_step = {4096 * self.rows * found.devices}",
            *['BlockRecurrentTransformer.attention_form = "kernel"'] * isinstance(found, Gpus),
        ]


def compiled(steps: Iterable[Step], file: str) -> list[dict[str, Any]]:
    """Returns figures of `slices.measure` of each step; those in a file of JSON lines are kept."""
    known = {}
    if os.path.exists(file):
        with open(file, encoding="utf-8") as lines:
            known = {Step(*row["step"]): row for row in map(json.loads, lines)}
    rows = []
    for step in steps:
        if step not in known:
            print(f"compiling {step}", flush=True)
            with slices.planned(step.topology) as topology:
                experiment = Configuration([step.config], step.bindings).experiment()
                known[step] = {"step": step} | slices.measure(experiment, topology)
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(known[step]) + "\n")
        rows.append(known[step])
    return rows
