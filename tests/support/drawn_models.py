"""Models drawn at random: every family, sizes that nobody chose, and what goes inside what.

A draw is a tree of `functools.partial`s, so that what it is made of can be shown and counted.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from architecture import Architecture

from brt.models.block_recurrent.associative_memory import AssociativeMemory
from brt.models.block_recurrent.cached_states import CachedStates
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.delta_layers import (
    GatedDeltaLayer,
    KimiDeltaLayer,
    LinearAttentionLayer,
)
from brt.models.block_recurrent.external_memory import ExternalMemory
from brt.models.block_recurrent.gated_delta import GatedDeltaMemory
from brt.models.block_recurrent.kimi_delta import KimiDeltaMemory
from brt.models.block_recurrent.lact import LactMemory
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.block_recurrent.titans import TitansMemory
from brt.models.melodi.model import Melodi
from brt.models.memory_tokens.associative import AssociativeRecurrentMemoryTransformer
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.recurrent_networks import LSTM, QRNN
from brt.models.transformer_xl.compressive_memory import CompressiveMemory
from brt.models.transformer_xl.model import TransformerXL

PRIMES = (7, 11, 13, 17, 23, 31, 53, 97, 127)
LAYER_MEMORIES = (RecurrentCell, ExternalMemory, AssociativeMemory, GatedDeltaMemory)
DELTA_LAYERS = (GatedDeltaLayer, KimiDeltaLayer, LinearAttentionLayer)
RECENT_MEMORIES = (KimiDeltaMemory, LactMemory, TitansMemory, CachedStates, *DELTA_LAYERS)
"""Drawn by seeds of their own, so that the others keep their models."""


class Dice:
    """Draws from a seed; parts: what divides widths, heads, MLPs and vocabularies, for a mesh."""

    def __init__(self, seed, parts=1):
        self.rng = np.random.default_rng(seed)
        self.parts = parts

    def chance(self, share):
        return bool(self.rng.random() < share)

    def unused(self):
        """True, after a draw for a setting that is gone: seeds keep the models that they had."""
        return self.chance(1.0)

    def choice(self, *options):
        return options[self.rng.integers(len(options))]

    def whole(self, low, high):
        """A number from `low` to `high`, small ones as often as large ones."""
        return min(int(np.exp(self.rng.uniform(np.log(low), np.log(high + 1)))), high)

    def divided(self, low, high):
        return -(-self.whole(low, high) // self.parts) * self.parts

    def several(self, *options):
        """One or more of the options, in any order."""
        count = self.rng.integers(1, len(options) + 1)
        return tuple(options[i] for i in self.rng.permutation(len(options))[:count])

    def indices(self, layers):
        """Layers, some counted from the last."""
        chosen = self.several(*range(layers))
        return tuple(i - layers if self.chance(0.3) else i for i in chosen)

    def vocabulary(self):
        return self.choice(*PRIMES) if self.parts == 1 else 8 * self.whole(1, 12)

    def layers(self):
        return self.whole(2, 3)

    def blocks(self, longest=40):
        """Window, and the tokens of a segment of one to five windows."""
        window = self.whole(1, longest)
        return window, window * self.whole(1, max(1, min(5, 80 // window)))


class Drawn(NamedTuple):
    """A draw. segment: its tokens. window: gives the documents of tests awkward lengths."""

    build: functools.partial
    segment: int
    window: int
    cut_invariant: bool = False

    @property
    def family(self):
        return self.build.func.__name__

    def architecture(self) -> Architecture:
        return Architecture(
            build=self.build,
            reference=None,
            segment=self.segment,
            window=self.window,
            vocabulary=next(vocabularies(self.build)),
            cut_invariant=self.cut_invariant,
        )


# Parts of a drawn model.


def parts_of(value) -> Iterator[functools.partial]:
    if isinstance(value, functools.partial):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from parts_of(part)


def chains(build, above=()) -> Iterator[tuple[str, ...]]:
    """The names of each part and of those around it, the outermost first."""
    here = (*above, build.func.__name__)
    yield here
    for value in build.keywords.values():
        for part in parts_of(value):
            yield from chains(part, here)


def vocabularies(build) -> Iterator[int]:
    if "vocabulary_size" in build.keywords:
        yield build.keywords["vocabulary_size"]
    for value in build.keywords.values():
        for part in parts_of(value):
            yield from vocabularies(part)


def told(value) -> str:
    """One line with all settings of a draw."""
    if isinstance(value, functools.partial):
        settings = (f"{name}={told(setting)}" for name, setting in value.keywords.items())
        return f"{value.func.__name__}({', '.join(settings)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(told, value))})"
    return repr(value)


# Block-Recurrent stacks.


def attention_sizes(dice):
    return dict(
        width=dice.divided(5, 20),
        num_heads=dice.divided(1, 20),
        head_size=dice.whole(1, 6),
        feed_forward_size=dice.divided(4, 24),
    )


def layer_memory(dice, kind, window, least=1):
    """A layer memory of that class; least: windows that an external one holds."""
    if kind is RecurrentCell:
        arrangement = dice.choice("dual", "single", "skip")
        return functools.partial(
            kind,
            num_states=dice.divided(1, 40),
            gate=dice.choice("fixed", "lstm"),
            arrangement=arrangement,
            gate_form=dice.choice("paper", "meliad"),
            gate_biases=dice.choice("small", "zero", "one"),
            order=dice.choice("parallel", "sequential") if arrangement != "single" else "parallel",
            state_ids=dice.chance(0.7),
        )
    if kind is ExternalMemory:
        size = window * max(least, dice.whole(1, 6))
        search = dice.choice("exact", "bucketed", "dense")
        divisors = [n for n in range(1, window + 1) if window % n == 0]
        neighbours = dice.choice(*divisors) if search == "bucketed" else dice.whole(1, size)
        return functools.partial(kind, size=size, neighbours=neighbours, search=search)
    if kind is AssociativeMemory:
        return functools.partial(kind, rule=dice.choice("linear", "delta"))
    if kind is LactMemory:
        switches = dict(momentum=dice.chance(0.5), muon=dice.chance(0.3))
        return functools.partial(kind, hidden_size=dice.choice(None, dice.whole(1, 6)), **switches)
    if kind is TitansMemory:
        hidden, decay_to = dice.choice(None, dice.whole(1, 6)), dice.choice("initial", "zero")
        return functools.partial(kind, hidden_size=hidden, decay_to=decay_to)
    if kind is CachedStates:
        most = dice.whole(1, 5)
        return functools.partial(
            kind,
            memory=dice.choice(*DELTA_LAYERS),
            most=most,
            every=dice.whole(1, 3),
            kept=dice.choice("last", "merged"),
            chosen=dice.choice(0, dice.whole(1, most)),
        )
    return functools.partial(kind)


def stack(dice, must, window, least=1, **settings):
    """A Block-Recurrent stack that has a layer memory of the class `must`, and perhaps others."""
    layers = dice.layers()
    others = dice.several(*LAYER_MEMORIES) if dice.chance(0.5) else ()
    kinds = dict.fromkeys((must, *others))
    at = {kind: dice.indices(layers) for kind in kinds}
    memories = []
    for kind, indices in at.items():
        built = layer_memory(dice, kind, window, least)
        if kind is RecurrentCell and dice.chance(0.5):
            settings |= dict(cell=built, recurrent_layers=indices)
        elif kind is ExternalMemory and dice.chance(0.5):
            settings |= dict(memory=built, memorizing_layers=indices)
        else:
            memories.append((built, indices))
    feedback = RecurrentCell in kinds and dice.chance(0.35)
    return functools.partial(
        BlockRecurrentTransformer,
        vocabulary_size=dice.vocabulary(),
        num_layers=layers,
        window=window,
        **attention_sizes(dice),
        memories=tuple(memories),
        qk_norm=dice.chance(0.7) & dice.unused(),
        feedback=feedback,
        logits_divisor=dice.choice("vocabulary", "width"),
        remat=dice.choice("none", "layer", "layer"),
        **settings,
    )


def recent_stack(dice, must, window, least=1):
    """A stack that has a recent memory of the class `must`; each layer is drawn by itself."""
    layers, memories = dice.layers(), []
    of_must = int(dice.rng.integers(layers))
    for layer in range(layers):
        kinds = dice.several(*LAYER_MEMORIES, *RECENT_MEMORIES)[:2] if dice.chance(0.6) else ()
        kinds = dict.fromkeys((must, *kinds) if layer == of_must else kinds)
        alone = [kind for kind in kinds if kind.replaces_attention]
        for kind in alone[:1] or kinds:
            memories.append((layer_memory(dice, kind, window, least), (layer,)))
    return functools.partial(
        BlockRecurrentTransformer,
        vocabulary_size=dice.vocabulary(),
        num_layers=layers,
        window=window,
        **attention_sizes(dice),
        memories=tuple(memories),
        remat=dice.choice("none", "layer", "layer"),
    )


def recent_blocks(dice, turn):
    window, segment = dice.blocks(24)
    must = RECENT_MEMORIES[turn % len(RECENT_MEMORIES)]
    return Drawn(recent_stack(dice, must, window), segment, window, cut_invariant=True)


def blocks(dice, turn):
    window, segment = dice.blocks()
    must = LAYER_MEMORIES[turn % len(LAYER_MEMORIES)]
    return Drawn(stack(dice, must, window), segment, window, cut_invariant=True)


def plain_blocks(dice, turn):
    window, segment = dice.blocks()
    build = functools.partial(
        BlockRecurrentTransformer,
        vocabulary_size=dice.vocabulary(),
        num_layers=dice.layers(),
        window=window,
        **attention_sizes(dice),
        qk_norm=dice.chance(0.7) & dice.unused(),
    )
    return Drawn(build, segment, window, cut_invariant=True)


# Transformer-XL and its wrappers.


def adaptive(dice, vocabulary, width, projections=True):
    """Settings of an adaptive softmax, or of a plain one."""
    if dice.chance(0.5) or vocabulary <= dice.parts:
        return {}
    edges = np.arange(dice.parts, vocabulary, dice.parts)
    count = min(dice.whole(1, 3), len(edges))
    cutoffs = sorted(dice.rng.choice(edges, count, replace=False))
    settings = dict(
        cutoffs=tuple(map(int, cutoffs)),
        div_val=2 if width // 2**count >= 1 and dice.chance(0.5) else 1,
        tied=dice.chance(0.7),
    )
    if projections and dice.chance(0.5):
        settings["tied_projections"] = tuple(dice.chance(0.5) for _ in range(count + 1))
    return settings


def transformer_xl_body(dice, memory_length=None, encodings=("relative",), **settings):
    vocabulary = dice.vocabulary()
    if memory_length is None:
        memory_length = dice.choice(0, dice.whole(1, 40))
    sizes = attention_sizes(dice)
    sizes["width"] += sizes["width"] % 2
    encoding = dice.choice(*encodings)
    if encoding in ("shaw", "learned"):
        settings["position_rows"] = dice.whole(1, 60)
    return functools.partial(
        TransformerXL,
        vocabulary_size=vocabulary,
        num_layers=dice.unused() and dice.layers(),
        **sizes,
        memory_length=memory_length,
        encoding=encoding,
        clamp_length=dice.choice(None, dice.whole(1, 20)),
        untie_biases=dice.chance(0.5),
        norm=dice.choice("post", "pre"),
        remat=dice.choice("none", "layer"),
        **adaptive(dice, vocabulary, sizes["width"]),
        **settings,
    )


ENCODINGS = ("relative", "relative", "shaw", "absolute", "learned")


def transformer_xl(dice, turn):
    window, segment = dice.blocks(20)
    memory_length, same_length = dice.whole(1, 40) if turn % 4 else 0, turn % 4 > 1
    build = transformer_xl_body(dice, memory_length, ENCODINGS, same_length=same_length)
    invariant = same_length and build.keywords["encoding"] in ("relative", "shaw")
    return Drawn(build, segment, window, invariant)


def compressing(dice):
    """Rate, length of the memory of inputs, and the memory."""
    rate = dice.whole(1, 4)
    memory = functools.partial(
        CompressiveMemory,
        compressed=dice.whole(1, 8),
        rate=rate,
        compression=dice.choice("mean", "max", "convolution"),
    )
    return rate, rate * dice.whole(1, 6), memory


def compressive(dice, turn):
    rate, length, memory = compressing(dice)
    segment = rate * dice.whole(max(1, length // (3 * rate)), 6)
    same_length = dice.chance(0.2)
    build = transformer_xl_body(dice, length, ENCODINGS, memory=memory, same_length=same_length)
    return Drawn(build, segment, rate)


def around(dice, body, num_memory, at_end=True, special=True, **settings):
    return functools.partial(
        RecurrentMemoryTransformer,
        num_memory=num_memory,
        body=body,
        memory_at_end=at_end,
        initial_rows=dice.choice("independent", "identical"),
        auxiliary_weight=dice.choice(0.0, 0.3) if special else 0.0,
        allow_long_memory=True,
        **settings,
    )


BEHIND = 6
"""Windows of an external memory that the tokens behind the memory tokens still see."""


def fitting(dice, window, at_end):
    """Memory tokens and tokens of a segment that together are whole windows."""
    num_memory = dice.whole(1, 5)
    around_it = num_memory * (1 + at_end)
    blocks = dice.whole(1, 4)
    while blocks * window <= around_it:
        blocks += 1
    return num_memory, blocks * window - around_it


def memory_tokens(dice, turn):
    """Around a Transformer-XL, also one that compresses."""
    at_end, num_memory = dice.chance(0.7), dice.whole(1, 5)
    settings = dict(read_memory_from_cache=dice.chance(0.5))
    if turn % 3 == 2:
        rate, length, memory = compressing(dice)
        body = transformer_xl_body(dice, length, memory=memory)
        segment = rate * dice.whole(1, 8)
        while (segment + num_memory * (1 + at_end)) % rate:
            segment += 1
    else:
        body, segment = transformer_xl_body(dice), dice.whole(1, 24)
    return Drawn(around(dice, body, num_memory, at_end, **settings), segment, segment)


def memory_tokens_around_blocks(dice, turn, of=stack, memories=LAYER_MEMORIES):
    at_end, window = dice.chance(0.7), dice.whole(1, 12)
    num_memory, segment = fitting(dice, window, at_end)
    body = of(dice, memories[turn % len(memories)], window, BEHIND)
    return Drawn(around(dice, body, num_memory, at_end), segment, segment)


def associative_tokens(dice, turn):
    segment = dice.whole(1, 24)
    build = functools.partial(
        AssociativeRecurrentMemoryTransformer,
        num_memory=dice.whole(1, 6),
        key_size=dice.whole(1, 16),
        body=transformer_xl_body(dice, 0),
    )
    return Drawn(build, segment, segment)


# MELODI, and networks that move with every token.


def melodi(dice, turn):
    window, segment = dice.blocks(20)
    layers, long_memory = dice.layers(), dice.whole(1, 20)
    build = functools.partial(
        Melodi,
        vocabulary_size=dice.vocabulary(),
        num_layers=layers,
        window=window,
        **attention_sizes(dice),
        summary=dice.whole(1, 6),
        short_memory=dice.whole(1, 6),
        long_layers=dice.choice((), dice.indices(layers)),
        long_memory=long_memory,
        long_increment=dice.whole(1, long_memory),
        remat=dice.choice("none", "layer"),
    )
    return Drawn(build, segment, window, cut_invariant=True)


def network(dice, turn):
    window, segment = dice.blocks(12)
    vocabulary, width = dice.vocabulary(), dice.divided(5, 20)
    build = functools.partial(
        (LSTM, QRNN)[turn % 2],
        vocabulary_size=vocabulary,
        width=width,
        num_layers=dice.unused() and dice.layers(),
        hidden_size=dice.divided(1, 20),
        **adaptive(dice, vocabulary, width, projections=False),
    )
    return Drawn(build, segment, window, cut_invariant=True)
