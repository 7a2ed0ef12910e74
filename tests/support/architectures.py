"""Every architecture the laws are checked on, tiny, and the ragged corpus they read.

Two or three layers, S != W and H * K != D, so that no axis can be taken for another.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.data.vocabularies.base import BEGIN
from brt.models.block_recurrent import BlockRecurrentTransformer
from brt.models.caches import reset_rows
from brt.models.memories.external_memory import ExternalMemory
from brt.models.memories.recurrent_cell import RecurrentCell
from brt.models.model import Model
from brt.models.recurrent_memory import RecurrentMemoryTransformer
from brt.models.recurrent_networks import LSTM, QRNN
from brt.models.transformer_xl import TransformerXL

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
CELL_SIZES = dict(num_states=STATES, gate_form="paper")
MEMORY_SIZES = dict(size=2 * WINDOW)  # documents of several segments come round again
MEMORY_SETTINGS = ("size", "neighbours", "search")
CELL_SETTINGS = ("num_states", "gate", "arrangement", "gate_form", "order")


def _rec(gate, arrangement, layers=(1,), **others):
    return dict(recurrent_layers=layers, gate=gate, arrangement=arrangement, **others)


def _memorizing(search, neighbours, layers=(1,), **others):
    return dict(memorizing_layers=layers, search=search, neighbours=neighbours, **others)


ARCHITECTURES = {
    "xl": {},  # fed segments of one block
    "slide": {},
    "rec_fixed_dual": _rec("fixed", "dual"),
    "rec_fixed_single": _rec("fixed", "single"),
    "rec_fixed_skip": _rec("fixed", "skip"),
    "rec_lstm_dual": _rec("lstm", "dual"),
    "rec_lstm_single": _rec("lstm", "single"),
    "rec_lstm_skip": _rec("lstm", "skip"),
    "rec_two_layers": _rec("fixed", "skip", layers=(0, 2)),
    "rec_sequential": _rec("fixed", "dual", order="sequential"),
    "rec_meliad": _rec("lstm", "single", gate_form="meliad", logits_divisor="width"),
    "feedback_fixed_skip": _rec("fixed", "skip", feedback=True),
    "feedback_lstm_single": _rec("lstm", "single", feedback=True),
    "feedback_two_cells": _rec("fixed", "dual", layers=(0, 2), feedback=True),
    "memorizing_exact": _memorizing("exact", 3),
    "memorizing_bucketed": _memorizing("bucketed", 2, layers=(0, 2)),
    "memorizing_dense": _memorizing("dense", 1),
}
"""Arguments of `BlockRecurrentTransformer` and, by name, of its `RecurrentCell` and
`ExternalMemory`."""

SEGMENT_MEMORIES = {
    "txl_same_length": (TransformerXL, dict(memory_length=6, same_length=True, clamp_length=4)),
    "txl_adaptive": (
        TransformerXL,
        dict(memory_length=11, norm="pre", untie_biases=True, cutoffs=(5, 11), div_val=2),
    ),
    "txl_shaw": (TransformerXL, dict(memory_length=3, encoding="shaw", position_rows=7)),
    "rmt": (RecurrentMemoryTransformer, dict(num_memory=3, memory_length=0)),
    "rmt_txl": (RecurrentMemoryTransformer, dict(num_memory=2, memory_length=5)),
}
"""Models whose memory moves at the ends of segments: classes and their arguments."""

STACK = dict(vocabulary_size=VOCABULARY, num_layers=3, width=12, hidden_size=10)
TOKEN_MEMORIES = {"lstm": (LSTM, STACK), "qrnn": (QRNN, STACK)}
"""Models whose memory moves with every token, likewise."""

EVERY = (*ARCHITECTURES, *SEGMENT_MEMORIES, *TOKEN_MEMORIES)


def build(name, seed=0, dtype="float32", **overrides) -> Model:
    """The tiny model of that name; overrides go to it or, by name, to its cell or memory."""
    return _assemble(nnx.Rngs(seed), name, dtype, overrides)


def _assemble(rngs, name, dtype, overrides):
    if name in TOKEN_MEMORIES:
        model, settings = TOKEN_MEMORIES[name]
        return model(rngs, **{"activation_dtype": dtype, **settings, **overrides})
    if name in SEGMENT_MEMORIES:
        kind, settings = SEGMENT_MEMORIES[name]
        sizes = {key: size for key, size in SIZES.items() if key != "window"}
        settings = dict(activation_dtype=dtype) | sizes | settings | overrides
        return kind(rngs, **settings).for_segments(SEGMENT)
    settings = dict(activation_dtype=dtype) | SIZES | CELL_SIZES | MEMORY_SIZES
    settings |= ARCHITECTURES[name] | overrides
    cell = {key: settings.pop(key) for key in CELL_SETTINGS if key in settings}
    memory = {key: settings.pop(key) for key in MEMORY_SETTINGS if key in settings}
    return BlockRecurrentTransformer(
        rngs,
        cell=functools.partial(RecurrentCell, **cell),
        memory=functools.partial(ExternalMemory, **memory),
        **settings,
    )


def random_model(name, seed=1, dtype="float32", **overrides) -> Model:
    """`cast(randomised(build(name)))`, sooner: nothing is drawn only to be replaced."""
    model = randomised(abstract(name, **overrides), seed)
    return model if dtype == "float32" else cast(model, dtype)


@functools.cache
def abstract(name, **overrides) -> Model:
    """`build(name)` with shapes for arrays; shared, so not to be changed."""
    return nnx.eval_shape(lambda: _assemble(OneKey(), name, "float32", overrides))


def drawn(make):
    """`make()`, a module, its random draws compiled together."""
    graph, _ = nnx.split(nnx.eval_shape(make))
    return nnx.merge(graph, quick_jit(lambda: nnx.split(make())[1])())


class OneKey:
    """Stands in for `nnx.Rngs`, whose counters are slow to trace, where no draw matters."""

    def params(self):
        return jax.random.key(0)


def segment_length(name) -> int:
    """Tokens of a segment this architecture is fed: one block for xl, two for the others."""
    return WINDOW if name == "xl" else SEGMENT


def parameters(model) -> dict:
    """The parameter arrays as a nested plain dict."""
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def randomised(model, seed):
    """A copy with every parameter random: no scale is 1 or positive on purpose, no bias small."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = str(getattr(path[-2], "key", path[-2]))  # the last entry is the Param's value
        size = 3.0 if name.endswith("scale_H") else 1.0 if leaf.ndim == 1 else 0.5
        values = size * rng.normal(size=leaf.shape)
        if name.endswith("scale_H"):
            values = (0.5 + np.abs(values)) * np.where(np.arange(values.size) % 2, 1.0, -1.0)
        return jnp.asarray(values, leaf.dtype)

    graph, params = nnx.split(model)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(draw, params))


def cast(model, dtype):
    """A copy with all parameters and activations of `dtype`; float64 inside jax.enable_x64."""
    graph, params = nnx.split(model)
    model = nnx.merge(graph, jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params))
    model.dtype = jnp.dtype(dtype)
    return model


QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Compiler options for tests, which spend their time compiling, not running: a quarter of it."""

quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


@functools.partial(quick_jit, static_argnums=0)
def _read(graph, params, tokens_BT, starts_B, caches):
    model = nnx.merge(graph, params)
    return model(tokens_BT, reset_rows(caches, model.init_caches(len(starts_B)), starts_B))


def read_segment(model, tokens_BT, starts_B, caches):
    """Logits and caches after one segment, rows that start a document reset, as in training.

    Compiled once for all models of equal settings and types, whatever their parameters.
    """
    return _read(*nnx.split(model), tokens_BT, starts_B, caches)


class Ragged(NamedTuple):
    """A corpus of short and long documents, as steps of segments.

    tokens: int32 (steps, B, N), as read: BEGIN, then the document but its last token; 0 in
        padding.
    starts: bool (steps, B), segments that begin a document or hold nothing.
    valid: bool (steps, B, N), false in padding.
    """

    tokens: np.ndarray
    starts: np.ndarray
    valid: np.ndarray


def ragged_lengths(window, segment_length):
    """Document lengths around every border there is."""
    lengths = (1, window - 1, window, window + 1, segment_length, 3 * segment_length + 5)
    return tuple(length for length in lengths if length)


RAGGED = ragged_lengths(WINDOW, SEGMENT)


def ragged_segments(window, segment_length, vocabulary, rows, seed) -> Ragged:
    """Each row reads documents of all ragged lengths, in a rotated order of its own.

    So some rows start documents at steps where others are in the middle of theirs. With
    several rows the last one leaves out its last document and reads padding instead.
    """
    rng = np.random.default_rng(seed)
    lengths = ragged_lengths(window, segment_length)
    by_row = []
    for row in range(rows):
        turn = 2 * row % len(lengths)
        documents = lengths[turn:] + lengths[:turn]
        by_row.append(documents[:-1] if row and row == rows - 1 else documents)
    steps = max(sum(-(-length // segment_length) for length in row) for row in by_row)
    tokens = np.zeros((rows, steps * segment_length), np.int32)
    valid = np.zeros(tokens.shape, bool)
    starts = np.ones((rows, steps), bool)
    for row, documents in enumerate(by_row):
        step = 0
        for length in documents:
            first, segments = step * segment_length, -(-length // segment_length)
            tokens[row, first] = BEGIN
            tokens[row, first + 1 : first + length] = rng.integers(0, vocabulary, length - 1)
            valid[row, first : first + length] = True
            starts[row, step + 1 : step + segments] = False
            step += segments
    shape = (rows, steps, segment_length)
    return Ragged(
        np.moveaxis(tokens.reshape(shape), 1, 0),
        np.moveaxis(starts, 1, 0),
        np.moveaxis(valid.reshape(shape), 1, 0),
    )
