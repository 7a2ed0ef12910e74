"""An entry of the list of architectures, and the sizes of the tiny models."""

from collections.abc import Callable
from dataclasses import dataclass, field

import optax

from brt.experiment import Experiment
from brt.training.optimization.schedules import constant_rate
from brt.training.settings import Trainer

WINDOW, SEGMENT, VOCABULARY, STATES = 4, 8, 17, 3

SIZES = dict(
    vocabulary_size=VOCABULARY,
    num_layers=3,
    width=12,
    num_heads=2,
    head_size=4,
    feed_forward_size=10,
    window=WINDOW,
)
DIVISIBLE = dict(vocabulary_size=256, width=16, num_heads=4, head_size=8, feed_forward_size=32)
"""Sizes that a mesh of eight devices divides."""
OF_RMT = (
    *("num_memory", "memory_at_end", "read_memory_from_cache", "initial_rows"),
    *("auxiliary_weight", "allow_long_memory"),
)
"""Arguments of memory tokens, the others being of the body around which they stand."""


@dataclass(frozen=True)
class Architecture:
    """How an architecture is built, what it must agree with, and which laws it keeps.

    Attributes:
        build: from `rngs` and overrides of its settings to a model, for segments of any length.
        reference: from a nested dictionary of float64 NumPy parameters to a reader of documents
            in plain loops: `begin()` is the memory of a document, and `read(tokens_T, memory)`
            returns logits (T, V) and the memory after the segment. None for a drawn model.
        settings: arguments of the model, for tests of one architecture.
        segment: tokens of its segments; the law of cuts takes others.
        window: of which a segment has one or several; documents of awkward lengths follow from it.
        vocabulary: number of the input ids.
        cut_invariant: whether cutting a document at block boundaries changes nothing.
        cleared: indices of the caches that clearing the state changes.
        within: whether, inside a segment of four blocks, a token sees all blocks before its own,
            through a memory; otherwise exactly `windows_reach()` tokens.
        reach: tokens back from which a state can hold something, where that is bounded.
        various: axis names with several sizes, such as those of layers that differ.
        divisible: overrides that make its sizes divisible by a mesh of eight devices.
    """

    build: Callable
    reference: Callable | None
    settings: dict = field(default_factory=dict)
    segment: int = SEGMENT
    window: int = WINDOW
    vocabulary: int = VOCABULARY
    cut_invariant: bool = False
    cleared: tuple[int, ...] = ()
    within: bool = False
    reach: int | None = None
    various: str = ""
    divisible: dict = field(default_factory=lambda: DIVISIBLE)

    def experiment(self, rows, sizes, segments=1, rate=0.01, **settings) -> Experiment:
        """Three plain gradient steps, where `settings` say nothing else, of a model of `sizes`."""
        settings = dict(optimizer=optax.sgd, steps=3, segment_length=self.segment) | settings
        trainer = Trainer(
            corpus=object(),
            schedule=lambda total_steps: constant_rate(total_steps, rate, 0),
            segments_per_step=segments,
            tokens_per_step=rows * segments * settings["segment_length"],
            model=lambda rngs: self.build(rngs, **sizes),
            **settings,
        )
        return Experiment(trainer)
