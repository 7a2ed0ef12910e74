"""Every architecture the laws are checked on, tiny: the one list to which a new model is added.

Two or three layers, S != W and H * K != D, so that no axis can be taken for another. An entry
defines the model and the independent NumPy transcription that it must agree with; an entry without
a transcription is refused.
"""

import functools

import armt_numpy
import compressive_numpy
import melodi_numpy
import own_memories_numpy
import paper_numpy
import recurrent_networks_numpy
import rmt_numpy
import txl_numpy
from architecture import DIVISIBLE, OF_RMT, SEGMENT, SIZES, STATES, VOCABULARY, WINDOW, Architecture
from associative_numpy import Associative
from cached_states_numpy import CachedStatesReader
from delta_layers_numpy import DeltaLayersReader
from drawn_pretrained import draw
from flax import nnx
from kimi_delta_numpy import GatedDelta, KimiDelta
from lact_numpy import Lact
from marking import slow
from own_memories import GradientMemory, LinearRecurrence
from pretrained_architectures import PRETRAINED
from tiny_models import OneKey, cast, known, randomised
from titans_numpy import Titans

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
from brt.models.model import Model
from brt.models.recurrent_networks import LSTM, QRNN
from brt.models.transformer_xl.compressive_memory import CompressiveMemory
from brt.models.transformer_xl.model import TransformerXL

WITHOUT_WINDOW = {name: size for name, size in SIZES.items() if name != "window"}
OF_TXL = dict(n_token=VOCABULARY, n_layer=3, n_head=2, d_model=12, d_head=4, d_inner=10)
"""The same sizes by the names of Transformer-XL's released code."""
LACT = functools.partial(LactMemory, hidden_size=5)
CELL_SIZES = dict(num_states=STATES, gate_form="paper")
MEMORY_SIZES = dict(size=2 * WINDOW)  # documents of several segments come round again
MEMORY_SETTINGS = ("size", "neighbours", "search")
CELL_SETTINGS = ("num_states", "gate", "arrangement", "gate_form", "order", "state_ids")


def stack_of_blocks(rngs, **settings):
    """A Block-Recurrent stack; settings of cells and external memories are given by name."""
    settings = SIZES | CELL_SIZES | MEMORY_SIZES | settings
    cell = {key: settings.pop(key) for key in CELL_SETTINGS if key in settings}
    memory = {key: settings.pop(key) for key in MEMORY_SETTINGS if key in settings}
    return BlockRecurrentTransformer(
        rngs,
        cell=functools.partial(RecurrentCell, **cell),
        memory=functools.partial(ExternalMemory, **memory),
        **settings,
    )


def paper_settings(**settings):
    """The transcription's arguments, from those of the model."""
    return known(paper_numpy.Settings, SIZES | CELL_SIZES | MEMORY_SIZES | settings)


def block_recurrent(
    segment=SEGMENT, reference=None, cleared=None, within=None, reach=None, **settings
) -> Architecture:
    """An entry of a Block-Recurrent stack.

    With a custom memory, `memories=((MyMemory, (1,)),)`, the other arguments are those of
    `Architecture`; without one they follow from the settings.
    """
    recurrent = settings.get("recurrent_layers", ())
    if cleared is None:
        cleared = tuple(sorted({*recurrent, *settings.get("memorizing_layers", ())}))

    def paper(params):
        return paper_numpy.Reader(params, paper_settings(**settings))

    return Architecture(
        build=functools.partial(stack_of_blocks, **settings),
        reference=reference or paper,
        settings=settings,
        segment=segment,
        cut_invariant=True,
        cleared=cleared,
        within=bool(recurrent) if within is None else within,
        reach=reach,
    )


def transformer_xl(config, **settings) -> Architecture:
    """An entry of a Transformer-XL; config: of its reference, by the released code's names."""
    config = OF_TXL | dict(mem_len=settings["memory_length"]) | config
    return Architecture(
        build=functools.partial(TransformerXL, **WITHOUT_WINDOW | settings),
        reference=lambda params: txl_numpy.Reader(params, config),
        settings=settings,
        cut_invariant=settings.get("same_length", False),
        various="EV" if settings.get("cutoffs") else "",
        divisible=DIVISIBLE | (dict(cutoffs=(64, 128)) if settings.get("cutoffs") else {}),
    )


def recurrent_memory(body, reference, within=False, reach=None, **settings) -> Architecture:
    """An entry of memory tokens around a body.

    Args:
        body: from `rngs`, special_tokens and overrides to the body.
        reference: as of an `Architecture`.
    """

    def build(rngs, **overrides):
        given = settings | overrides
        own = {name: given.pop(name) for name in OF_RMT if name in given}
        return RecurrentMemoryTransformer(rngs, body=functools.partial(body, **given), **own)

    layers = SIZES["num_layers"]
    return Architecture(build, reference, settings, cleared=(layers,), within=within, reach=reach)


def around_transformer_xl(**settings) -> Architecture:
    """Memory tokens around a Transformer-XL, as published."""
    config = OF_TXL | dict(
        mem_len=settings["memory_length"],
        mem_at_end=settings.get("memory_at_end", True),
        read_mem_from_cache=settings.get("read_memory_from_cache", False),
    )
    return recurrent_memory(
        functools.partial(TransformerXL, **WITHOUT_WINDOW),
        lambda params: rmt_numpy.Reader(params, config),
        **settings,
    )


def associative_tokens(**settings) -> Architecture:
    """An entry of memory tokens that write into a matrix of each layer of a Transformer-XL."""

    def build(rngs, **overrides):
        given = WITHOUT_WINDOW | dict(memory_length=0) | settings | overrides
        own = {name: given.pop(name) for name in ("num_memory", "key_size") if name in given}
        body = functools.partial(TransformerXL, **given)
        return AssociativeRecurrentMemoryTransformer(rngs, body=body, **own)

    def reference(params):
        return armt_numpy.Reader(params, OF_TXL)

    return Architecture(build, reference, settings, cleared=(0, 1, 2))


def around_blocks(num_memory, within=False, **settings) -> Architecture:
    """Memory tokens around a Block-Recurrent stack."""
    cleared = settings.get("recurrent_layers", ())
    entry = recurrent_memory(
        stack_of_blocks,
        lambda params: paper_numpy.MemoryTokensReader(
            params["body"], paper_settings(**settings), params["memory_SD"]
        ),
        num_memory=num_memory,
        within=within,
        **settings,
    )
    # S: states of a cell, and memory tokens.
    return Architecture(**vars(entry) | dict(cleared=(*cleared, *entry.cleared), various="S"))


def recurrent_network(model, reader, **words) -> Architecture:
    """An entry of a stack of token-by-token layers; words: of its adaptive softmax."""
    settings = dict(vocabulary_size=VOCABULARY, num_layers=3, width=12, hidden_size=10) | words
    config = dict(n_token=VOCABULARY, d_model=12, div_val=1, cutoffs=[]) | words if words else None
    return Architecture(
        build=functools.partial(model, **settings),
        reference=lambda params: reader(params, config),
        settings=settings,
        cut_invariant=True,
        cleared=(0, 1, 2),
        within=True,
        various="IUZ" + "EV" * bool(words),
        divisible=dict(vocabulary_size=256, width=16, hidden_size=24)
        | (dict(cutoffs=(64, 128)) if words else {}),
    )


def compressive(length, reach, **memory) -> Architecture:
    """An entry of the Compressive Transformer; memory: arguments of its `CompressiveMemory`."""
    config = OF_TXL | dict(mem_len=length)
    settings = dict(memory_length=length, memory=functools.partial(CompressiveMemory, **memory))
    return Architecture(
        build=functools.partial(TransformerXL, **WITHOUT_WINDOW | settings),
        reference=lambda params: compressive_numpy.Reader(params, config, **memory),
        settings=settings,
        cleared=(0, 1, 2),
        reach=reach,
    )


def melodi(**settings) -> Architecture:
    """An entry of a MELODI."""
    given = SIZES | dict(long_layers=(), long_memory=0) | settings
    reader_settings = known(melodi_numpy.Settings, given)
    return Architecture(
        build=functools.partial(Melodi, **SIZES | settings),
        reference=lambda params: melodi_numpy.Reader(params, reader_settings),
        settings=settings,
        cut_invariant=True,
        cleared=(0, 1, 2),
        within=True,
        various="IJRX",
        divisible=DIVISIBLE | dict(summary=2, short_memory=4, long_memory=8),
    )


def without_attention(memory, layers, **settings) -> Architecture:
    """An entry of a memory that replaces attention in some layers."""
    return block_recurrent(
        memories=((memory, layers),),
        reference=lambda params: DeltaLayersReader(params, paper_settings(**settings)),
        cleared=tuple(layer % SIZES["num_layers"] for layer in layers),
        within=True,
        **settings,
    )


def cached_states(memory, most, kept="last", every=1, chosen=0) -> Architecture:
    """An entry of states of earlier segments beside that of a layer without attention."""
    options = dict(memory=memory, most=most, kept=kept, every=every, chosen=chosen)
    arguments = most, kept == "merged", every * WINDOW, chosen
    return block_recurrent(
        memories=((functools.partial(CachedStates, **options), (1,)),),
        reference=lambda params: CachedStatesReader(
            params, paper_settings(), memory.name, *arguments
        ),
        cleared=(1,),
        within=True,
    )


def own(memory, name, kind, **options) -> Architecture:
    """An entry of a memory in the middle layer.

    Args:
        kind: its reference, for `own_memories_numpy.Reader`.
        options: of the memory and of its reference.
    """
    kind = functools.partial(kind, **options)
    return block_recurrent(
        memories=((functools.partial(memory, **options), (1,)),),
        reference=lambda params: own_memories_numpy.Reader(params, paper_settings(), name, kind),
        cleared=(1,),
        within=True,
    )


def _rec(gate, arrangement, layers=(1,), **others):
    return block_recurrent(recurrent_layers=layers, gate=gate, arrangement=arrangement, **others)


def _memorizing(search, neighbours, layers=(1,), **others):
    # Windows, rings of two windows, and the tokens before the last of a block.
    reach = WINDOW * (SIZES["num_layers"] + len(layers)) + WINDOW - 1
    settings = dict(search=search, neighbours=neighbours, **others)
    return block_recurrent(memorizing_layers=layers, reach=reach, **settings)


class Architectures(dict[str, Architecture]):
    """By name; "drawn 7" is the one that is drawn from the seed 7."""

    def __missing__(self, name):
        return draw(int(name.removeprefix("drawn "))).architecture()


ARCHITECTURES = Architectures({
    "xl": block_recurrent(segment=WINDOW),
    "slide": block_recurrent(),
    "rec_fixed_dual": _rec("fixed", "dual"),
    "rec_fixed_single": _rec("fixed", "single"),
    "rec_fixed_skip": _rec("fixed", "skip"),
    "rec_lstm_dual": _rec("lstm", "dual"),
    "rec_lstm_single": _rec("lstm", "single"),
    "rec_lstm_skip": _rec("lstm", "skip"),
    "rec_without_mlp": _rec("lstm", "skip", feed_forward_size=0),
    "rec_two_layers": _rec("fixed", "skip", layers=(0, 2)),
    "rec_sequential": _rec("fixed", "dual", order="sequential"),
    "rec_meliad": _rec("lstm", "single", gate_form="meliad", logits_divisor="width"),
    "rec_without_ids": _rec("fixed", "skip", order="sequential", state_ids=False),
    "rec_without_qk_norm": _rec("lstm", "dual", qk_norm=False),
    "memorizing_without_qk_norm": _memorizing("exact", 3, qk_norm=False),
    "feedback_without_either": _rec(
        "fixed", "single", feedback=True, state_ids=False, qk_norm=False
    ),
    "feedback_fixed_skip": _rec("fixed", "skip", feedback=True),
    "feedback_lstm_single": _rec("lstm", "single", feedback=True),
    "feedback_two_cells": _rec("fixed", "dual", layers=(0, 2), feedback=True),
    "rec_kernel": _rec("fixed", "skip", attention_form="kernel"),
    "feedback_kernel": _rec("fixed", "skip", feedback=True, attention_form="kernel"),
    "memorizing_exact": _memorizing("exact", 3),
    "memorizing_bucketed": _memorizing("bucketed", 2, layers=(0, 2)),
    "memorizing_dense": _memorizing("dense", 1),
    "rec_memorizing": _rec("fixed", "skip", memorizing_layers=(1, 2), search="exact", neighbours=3),
    "feedback_memorizing": _rec(
        "fixed", "skip", memorizing_layers=(1,), search="exact", neighbours=3, feedback=True
    ),
    "associative_linear": own(AssociativeMemory, "associative", Associative, rule="linear"),
    "associative_delta": own(AssociativeMemory, "associative", Associative, rule="delta"),
    "gated_delta": own(GatedDeltaMemory, "gated_delta", GatedDelta),
    "kimi_delta": own(KimiDeltaMemory, "kimi_delta", KimiDelta),
    "gated_delta_layer": without_attention(GatedDeltaLayer, (0, 1)),
    "kimi_delta_layer": without_attention(KimiDeltaLayer, (1,), feed_forward_size=0),
    "linear_attention_layer": without_attention(LinearAttentionLayer, (0, -1)),
    "cached_states": cached_states(GatedDeltaLayer, 3, chosen=2),
    "cached_states_kimi": cached_states(KimiDeltaLayer, 5, every=2),
    "cached_states_merged": cached_states(LinearAttentionLayer, 3, "merged"),
    "lact": own(LACT, "lact", Lact, muon=True),
    "lact_plain": own(LACT, "lact", Lact, momentum=False),
    "titans": own(
        functools.partial(TitansMemory, hidden_size=5),
        *("titans", functools.partial(Titans, window=WINDOW)),
    ),
    "own_gradient": own(GradientMemory, "gradient", own_memories_numpy.Gradient),
    "own_recurrence": own(LinearRecurrence, "recurrence", own_memories_numpy.Recurrence),
    "melodi": melodi(summary=3, short_memory=3, long_layers=(1,), long_memory=5, long_increment=2),
    "melodi_short": melodi(summary=2, short_memory=3),
    "txl_same_length": transformer_xl(
        dict(same_length=True, clamp_len=4), memory_length=6, same_length=True, clamp_length=4
    ),
    "txl_adaptive": transformer_xl(
        dict(pre_lnorm=True, cutoffs=[5, 11], div_val=2),
        **dict(memory_length=11, norm="pre", untie_biases=True, cutoffs=(5, 11), div_val=2),
    ),
    "txl_shaw": transformer_xl(
        dict(attn_type=1), memory_length=3, encoding="shaw", position_rows=7
    ),
    "txl_kernel": transformer_xl(
        dict(clamp_len=4), memory_length=5, clamp_length=4, attention_form="kernel"
    ),
    "rmt": around_transformer_xl(num_memory=3, memory_length=0),
    "rmt_txl": around_transformer_xl(num_memory=2, memory_length=5),
    "memtr_txl": around_transformer_xl(
        num_memory=2, memory_length=5, memory_at_end=False, reach=28
    ),
    "rmt_kernel": around_transformer_xl(num_memory=2, memory_length=5, attention_form="kernel"),
    "rmt_reads_cache": around_transformer_xl(
        num_memory=2, memory_length=24, read_memory_from_cache=True
    ),
    "memtr": around_transformer_xl(num_memory=3, memory_length=0, memory_at_end=False, reach=7),
    "armt": associative_tokens(num_memory=3, key_size=5),
    "rmt_slide": around_blocks(num_memory=2),
    "rmt_rec": around_blocks(2, True, recurrent_layers=(1,), gate="fixed", arrangement="skip"),
    "compressive_mean": compressive(6, 55, compressed=5, rate=2, compression="mean"),
    "compressive_max": compressive(4, 55, compressed=3, rate=4, compression="max"),
    "compressive_convolution": compressive(10, 73, compressed=4, rate=2, compression="convolution"),
    "lstm": recurrent_network(LSTM, recurrent_networks_numpy.LSTM),
    "qrnn": recurrent_network(QRNN, recurrent_networks_numpy.QRNN),
    "lstm_adaptive": recurrent_network(LSTM, recurrent_networks_numpy.LSTM, cutoffs=(5, 11)),
    **PRETRAINED,
    "qrnn_untied": recurrent_network(
        QRNN, recurrent_networks_numpy.QRNN, cutoffs=(5, 11), div_val=2, tied=False
    ),
})  # fmt: skip

VARIANTS = (
    *("slide", "rec_fixed_skip", "rec_lstm_single", "rec_lstm_skip", "rec_two_layers"),
    *("rec_meliad", "feedback_lstm_single", "feedback_two_cells", "memorizing_bucketed"),
    *("memorizing_dense", "feedback_memorizing", "rmt_txl", "memtr_txl", "gpt2_overlap"),
    *("rmt_reads_cache", "memtr"),
    *("compressive_max", "lstm_adaptive", "xl", "rmt_slide", "memorizing_exact"),
    *("txl_same_length", "compressive_mean", "qrnn"),
    *("rec_without_ids", "rec_without_qk_norm", "memorizing_without_qk_norm"),
    *("llama_pooled", "gpt2", "gpt2_pooled", "llama_slide", "rec_kernel", "feedback_kernel"),
    *("txl_kernel", "rmt_kernel", "lact_plain"),
)
"""Architectures whose caches and parameters all occur in others: their logits are compared with
their references in every run of the tests, the laws are checked on them with the slow tests."""

COMBINED = (
    *("rec_fixed_dual", "rec_fixed_single", "rec_sequential", "rec_memorizing"),
    *("txl_adaptive", "txl_shaw", "rmt_rec", "rec_without_mlp", "qrnn_untied"),
    *("feedback_without_either", "melodi_short"),
)
"""Parts of others, put together in another way: their logits are compared with their references in
every run; the laws are checked with the slow tests."""
RELATED = (
    *COMBINED,
    *("gated_delta_layer", "kimi_delta", "linear_attention_layer", "own_gradient"),
    *("cached_states_kimi", "cached_states_merged", "titans"),
    *("associative_linear", "associative_delta"),
)
"""And other equations with caches of the same form, of which the slow tests check the laws that
compile slowly."""


QUICK_PRETRAINED = ("gpt2_cell",)
"""Of the architectures around pretrained bodies, those whose laws are not marked slow."""


def every(quick=QUICK_PRETRAINED) -> list:
    """The names of all architectures, as parameters of a test.

    Those around pretrained bodies are marked slow, but for `quick`; and one of interpreted kernels.
    """
    return _marked({*PRETRAINED, "feedback_kernel"} - {*quick})


def kinds(quick=(), slow=()) -> list:
    """As `every`, with variants and `slow` marked slow."""
    return _marked({*VARIANTS, *PRETRAINED, *slow} - {*quick})


def _marked(names):
    return [slow(name, when=name in names) for name in ARCHITECTURES]


def build(name, seed=0, **overrides) -> Model:
    """The tiny model of that name; overrides go to it or, by name, to its parts."""
    return _assemble(nnx.Rngs(seed), name, overrides)


def _assemble(rngs, name, overrides):
    return ARCHITECTURES[name].build(rngs, **overrides).for_segments(ARCHITECTURES[name].segment)


def random_model(name, seed=1, dtype="float32", **overrides) -> Model:
    """The tiny model with every parameter random, and activations of that type."""
    model = randomised(abstract(name, **overrides), seed)
    return model if dtype == "float32" else cast(model, dtype)


@functools.cache
def abstract(name, **overrides) -> Model:
    """`build(name)` with shapes for arrays; shared, so not to be changed."""
    return nnx.eval_shape(lambda: _assemble(OneKey(), name, overrides))


def segment_length(name) -> int:
    """Tokens of a segment of this architecture."""
    return ARCHITECTURES[name].segment
