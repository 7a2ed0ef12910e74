"""Models around pretrained bodies, drawn at random, and the list of all families."""

import functools

from drawn_models import (
    BEHIND,
    LAYER_MEMORIES,
    RECENT_MEMORIES,
    Dice,
    Drawn,
    around,
    associative_tokens,
    blocks,
    compressive,
    fitting,
    layer_memory,
    melodi,
    memory_tokens,
    memory_tokens_around_blocks,
    network,
    plain_blocks,
    recent_blocks,
    recent_stack,
    transformer_xl,
)

from brt.models.block_recurrent.cell import RecurrentCell
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.gpt_neox import GPTNeoX
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.encoders.bert import BERT, RoBERTa
from brt.pretrained.encoders.deberta import DeBERTa
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.memories.backbone_memory import BackboneMemory, CellMemory
from brt.pretrained.memories.pooled_memory import FinalLayerMemory, PooledMemory
from brt.pretrained.reader import PretrainedReader
from brt.pretrained.sliding_model import SlidingLanguageModel

NORMALISED = 4
"""Least width whose norm over features leaves more than signs."""


def decoder(dice, kind, positions, layers):
    """A decoder with so many positions."""
    heads, head_size = dice.divided(1, 8), dice.whole(1, 6)
    head_size = max(head_size, -(-NORMALISED // heads))
    settings = dict(
        vocabulary_size=dice.vocabulary(),
        num_layers=layers,
        num_heads=heads,
        feed_forward_size=dice.divided(4, 24),
        num_positions=positions,
        epsilon=1e-2,
        remat=dice.choice("none", "layer"),
    )
    settings["begin_id"] = dice.choice(None, int(dice.rng.integers(settings["vocabulary_size"])))
    if kind is GPT2:
        return functools.partial(
            kind,
            **settings,
            width=heads * head_size,
            activation=dice.choice("gelu_new", "relu", "gelu"),
            scale_scores=dice.chance(0.7),
            inverse_layer_scale=dice.chance(0.3),
            tied=dice.chance(0.5),
        )
    if kind is Llama:
        groups = [n for n in range(dice.parts, heads + 1, dice.parts) if heads % n == 0]
        return functools.partial(
            kind,
            **settings,
            width=dice.divided(5, 20),
            num_key_heads=dice.choice(None, *groups),
            head_size=head_size + head_size % 2,
            rotary_base=dice.choice(10_000.0, 50.0),
            biases=dice.choice("none", "heads", "all"),
            tied=dice.chance(0.5),
        )
    head_size = dice.choice(4, 8)
    return functools.partial(
        kind,
        **settings,
        width=heads * head_size,
        rotary_share=dice.choice(0.5, 1.0),
        parallel=dice.chance(0.5),
        biases=dice.chance(0.5),
        tied=dice.chance(0.5),
    )


def pooled(dice, layers):
    if dice.chance(0.3):
        hidden = (dice.whole(4, 12),)
        layer = dice.whole(1, layers) - 1
        return functools.partial(FinalLayerMemory, layer_index=layer, hidden=hidden)
    return functools.partial(
        PooledMemory,
        layer_index=dice.choice(None, dice.whole(1, layers) - 1),
        hidden=dice.choice((), (8,), (8, 6)),
        pooled=dice.choice("all", "unrepeated"),
        pooling=dice.choice("mean", "max", "attention"),
        num_vectors=dice.whole(1, 4),
    )


def at_a_layer(dice, kind, window, layers, least=1):
    """A layer memory of that class in `BackboneMemory`, or a cell in `CellMemory`."""
    if kind is CellMemory:
        cell = layer_memory(dice, RecurrentCell, window)
        layer = dice.choice(None, dice.whole(1, layers) - 1)
        return functools.partial(kind, cell=cell, layer_index=layer)
    (layer,) = dice.indices(layers)[:1]
    memory = layer_memory(dice, kind, window, least)
    return functools.partial(BackboneMemory, memory=memory, layer_index=layer)


AT_LAYERS = (CellMemory, *LAYER_MEMORIES)


def windows_of(dice, kind, segment, overlap, memory_kinds):
    positions, layers = overlap + segment + dice.choice(0, dice.whole(1, 10)), dice.layers()
    memories = tuple(
        pooled(dice, layers)
        if memory is PooledMemory
        else at_a_layer(dice, memory, positions, layers)
        for memory in memory_kinds
    )
    return functools.partial(
        PretrainedLanguageModel,
        body=decoder(dice, kind, positions, layers),
        memories=memories,
        overlap=overlap,
    )


def kinds_of_memory(dice, turn):
    """One kind in turn, and perhaps another of another name."""
    options = (*AT_LAYERS, PooledMemory)
    first = options[turn % len(options)]
    second = dice.choice(*options) if dice.chance(0.4) else first
    names = {getattr(kind, "name", "") for kind in (first, second)}
    return (first, second) if len(names) == 2 else (first,)


def windows(dice, turn, memories=()):
    segment = dice.whole(1, 24)
    overlap = dice.choice(0, dice.whole(1, 12))
    kind = (GPT2, Llama, GPTNeoX)[turn // 6 % 3]
    if memories:  # which change with every token, and may not read one twice
        overlap, kinds = 0, (memories[turn % len(memories)],)
    else:
        kinds = kinds_of_memory(dice, turn) if turn % 7 else ()
    return Drawn(windows_of(dice, kind, segment, overlap, kinds), segment, segment)


def sliding_of(dice, kind, window, memory_kind, least=1):
    layers = dice.layers()
    cell = at_a_layer(dice, memory_kind, window, layers, least) if memory_kind else None
    positions = 2 * window + dice.choice(0, dice.whole(1, 10))
    return functools.partial(
        SlidingLanguageModel, window=window, body=decoder(dice, kind, positions, layers), cell=cell
    )


def sliding(dice, turn, memories=(*AT_LAYERS, None)):
    window, segment = dice.blocks(16)
    memory = memories[turn % len(memories)]
    build = sliding_of(dice, (Llama, GPTNeoX)[turn // 6 % 2], window, memory)
    return Drawn(build, segment, window, cut_invariant=True)


def memory_tokens_around_pretrained(dice, turn, memories=AT_LAYERS):
    at_end = dice.chance(0.7)
    memory = memories[turn // 2 % len(memories)]
    if turn % 2:
        window = dice.whole(1, 10)
        num_memory, segment = fitting(dice, window, at_end)
        body = sliding_of(dice, dice.choice(Llama, GPTNeoX), window, memory, BEHIND)
    else:
        num_memory, segment = dice.whole(1, 4), dice.whole(1, 16)
        positions = segment + num_memory * (1 + at_end)
        kind = dice.choice(GPT2, Llama, GPTNeoX)
        body = windows_of(dice, kind, positions, 0, (memory,))
    return Drawn(around(dice, body, num_memory, at_end, special=False), segment, segment)


ENCODERS = (BERT, RoBERTa, DeBERTa, T5)


def reader(dice, turn):
    # Room for all targets: classes, or the three kinds of spans.
    segment, num_memory = dice.whole(5, 16), dice.choice(0, dice.whole(1, 4))
    kind, layers, heads = ENCODERS[turn % 4], dice.layers(), dice.divided(1, 6)
    settings = dict(
        vocabulary_size=dice.vocabulary(),
        num_layers=layers,
        num_heads=heads,
        feed_forward_size=dice.divided(4, 24),
        epsilon=1e-2,
    )
    if kind is T5:
        settings |= dict(
            width=dice.divided(5, 20),
            head_size=dice.whole(1, 6),
            buckets=dice.choice(4, 8, 12),
            longest_distance=dice.whole(7, 20),
            network=dice.choice("relu", "gated-gelu"),
            tied=dice.chance(0.5),
        )
    else:
        positions = segment + num_memory + dice.choice(0, dice.whole(1, 10))
        positions += 2 if kind is RoBERTa else 0
        settings |= dict(
            num_positions=positions, width=heads * max(dice.whole(1, 6), -(-NORMALISED // heads))
        )
    if kind is DeBERTa:
        settings |= dict(
            longest_distance=dice.whole(4, 12),
            buckets=dice.choice(0, 4),
            shared_keys=dice.chance(0.5),
            convolution=dice.choice(0, 3),
            absolute_positions=dice.chance(0.5),
        )
    takes_vectors = kind in (BERT, RoBERTa)
    with_vectors = takes_vectors and (not num_memory or dice.chance(0.4))
    build = functools.partial(
        PretrainedReader,
        body=functools.partial(kind, **settings),
        targets="words" if kind is T5 else dice.choice("classes", "labels", "spans"),
        classes=dice.whole(2, 5),
        words=dice.whole(1, 3),
        num_memory=num_memory,
        memories=(pooled(dice, layers),) if with_vectors else (),
    )
    return Drawn(build, segment, segment)


FAMILIES = (
    *(blocks, windows, sliding, memory_tokens_around_pretrained, transformer_xl, melodi),
    *(blocks, memory_tokens_around_blocks, reader, compressive, memory_tokens),
    *(associative_tokens, network, plain_blocks),
)
"""Drawn in turn, so that a few seeds are of all families."""
RECENT_FAMILIES = (
    recent_blocks,
    functools.partial(memory_tokens_around_blocks, of=recent_stack, memories=RECENT_MEMORIES),
    *(
        functools.partial(family, memories=RECENT_MEMORIES)
        for family in (windows, sliding, memory_tokens_around_pretrained)
    ),
)
RECENT = 10_000
"""The first seed of `RECENT_FAMILIES`."""


def draw(seed, parts=1) -> Drawn:
    """The model of a seed; parts: what divides its sizes, for a mesh."""
    families = FAMILIES if seed < RECENT else RECENT_FAMILIES
    turn, number = divmod(seed % RECENT, len(families))
    family = families[number]
    # Families that occur twice continue to count.
    turn = turn * families.count(family) + families[:number].count(family)
    return family(Dice(seed, parts), turn)
