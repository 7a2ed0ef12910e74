"""Architectures around pretrained bodies, tiny, as entries of the list of all architectures."""

import functools

import decoders_numpy
import own_memories_numpy
import paper_numpy
from architecture import DIVISIBLE, OF_RMT, SEGMENT, SIZES, STATES, VOCABULARY, WINDOW, Architecture
from associative_numpy import Associative
from cached_states_numpy import CachedStates as CachedStatesNumpy
from kimi_delta_numpy import KimiDelta
from lact_numpy import Lact
from own_memories import GradientMemory, LinearRecurrence
from tiny_models import known
from titans_numpy import Titans

from brt.models.block_recurrent.associative_memory import AssociativeMemory
from brt.models.block_recurrent.cached_states import CachedStates
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.kimi_delta import KimiDeltaMemory
from brt.models.block_recurrent.lact import LactMemory
from brt.models.block_recurrent.titans import TitansMemory
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.pretrained.memories.backbone_memory import BackboneMemory, CellMemory
from brt.pretrained.memories.pooled_memory import PooledMemory
from brt.pretrained.sliding_model import SlidingLanguageModel

GPT2_SIZES = dict(
    vocabulary_size=VOCABULARY,
    num_layers=3,
    width=12,
    num_heads=2,
    feed_forward_size=10,
    num_positions=40,
    epsilon=1e-2,
)
LLAMA_SIZES = GPT2_SIZES | dict(num_heads=4, num_key_heads=2, head_size=6)
OF_BODY = (
    *(*LLAMA_SIZES, "activation", "scale_scores", "inverse_layer_scale", "biases", "tied"),
    *("dropout", "remat", "activation_dtype", "begin_id"),
)


def pretrained(body, sizes, model, transcribed, settings, **entry) -> Architecture:
    """An entry of a model around a pretrained body.

    Args:
        body: its class; sizes: its arguments.
        model: from rngs, body and the settings that are not of the body to the model.
        transcribed: further settings of the transcription.
        entry: as of an `Architecture`.
    """

    def build(rngs, **overrides):
        given = sizes | settings | overrides
        of_body = {name: given.pop(name) for name in OF_BODY if name in given}
        if body is GPT2:
            of_body.pop("head_size", None)
        return model(rngs, body=functools.partial(body, **of_body), **given)

    own = known(
        decoders_numpy.Settings, sizes | dict(begin_id=VOCABULARY - 1) | settings | transcribed
    )
    reader = decoders_numpy.SlidingReader if own.sliding else decoders_numpy.Reader
    return Architecture(build, lambda params: reader(params, own), settings, **entry)


def gpt2(memories=(), transcribed=None, **settings) -> Architecture:
    """An entry of windows of a GPT-2; transcribed: further settings of the transcription."""
    model = functools.partial(PretrainedLanguageModel, memories=memories)
    entry = dict(cleared=(1,) if memories else (), various="ACIJKU")
    return pretrained(GPT2, GPT2_SIZES, model, transcribed or {}, settings, **entry)


def pooled(transcribed, **settings):
    """An entry of pooled recurrence; transcribed: settings of the transcription."""
    given = dict(
        layer_index=transcribed["pooled_layer"] - 1 if transcribed["pooled_layer"] else None,
        hidden=(8, 6),
        pooled="unrepeated" if transcribed.get("skip_repeated") else "all",
        pooling=transcribed.get("pooling", "mean"),
        num_vectors=transcribed.get("num_vectors", 1),
    )
    return gpt2((functools.partial(PooledMemory, **given),), transcribed, **settings)


def cell_between(sizes, **settings):
    """Block-Recurrent states at the second layer of a body, and settings of the transcription."""
    settings = dict(num_states=STATES, gate_form="paper") | settings
    cell = functools.partial(RecurrentCell, **settings)
    transcribed = dict(cell=known(paper_numpy.Settings, sizes | settings), cell_layer=2)
    return functools.partial(CellMemory, layer_index=1, cell=cell), transcribed


def with_cell(arrangement, gate="fixed", overlap=0):
    """An entry of the Block-Recurrent cell between windows."""
    heads = GPT2_SIZES["num_heads"]
    sizes = SIZES | dict(num_heads=heads, head_size=GPT2_SIZES["width"] // heads)
    memory, transcribed = cell_between(sizes, arrangement=arrangement, gate=gate)
    return gpt2((memory,), transcribed, overlap=overlap)


def with_own(memory, kind, overlap=0):
    """An entry of a layer memory at the second layer; kind: as `LayerMemoryAt` asks."""
    at_layer = functools.partial(BackboneMemory, memory=memory, layer_index=1)
    return gpt2((at_layer,), dict(layer_memory=(2, kind)), overlap=overlap)


def with_associative(rule, overlap):
    memory, kind = (functools.partial(x, rule=rule) for x in (AssociativeMemory, Associative))
    return with_own(memory, kind, overlap)


def with_cached_states(most, every, chosen):
    """An entry of cached states of a gated delta layer beside attention; segments are windows."""
    memory = functools.partial(CachedStates, most=most, every=every, chosen=chosen)
    length, heads = every * SEGMENT, GPT2_SIZES["num_heads"]
    arguments = heads, "gated_delta_layer", most, False, length, chosen
    return with_own(memory, lambda module: CachedStatesNumpy(module, *arguments))


def memory_tokens_on_gpt2(num_memory):
    """An entry of memory tokens at both ends of the windows of a GPT-2 that has a cell."""
    within = with_cell("skip")

    def build(rngs, **overrides):
        around = {"num_memory": num_memory} | overrides
        own = {name: around.pop(name) for name in OF_RMT if name in around}

        def body(rngs, special_tokens):
            return within.build(rngs, special_tokens=special_tokens, **around)

        return RecurrentMemoryTransformer(rngs, body=body, **own)

    def reference(params):
        settings = within.reference(params["body"]).settings
        return decoders_numpy.MemoryTokensReader(params, settings)

    return Architecture(
        build=build,
        reference=reference,
        settings=dict(num_memory=num_memory),
        cleared=(1, 2),
        various="ACIJKUS",
    )


def llama(model, transcribed, settings, **entry) -> Architecture:
    """An entry of a Llama over windows or a sliding window; arguments as of `pretrained`."""
    entry |= dict(various="ACEHIJKU", divisible=DIVISIBLE | dict(num_heads=8, num_key_heads=4))
    return pretrained(
        Llama, LLAMA_SIZES, model, dict(rotary_share=1.0) | transcribed, settings, **entry
    )


def sliding(cell=False, **settings):
    """An entry of a sliding window over a Llama; cell: with states at the second layer."""
    sizes = LLAMA_SIZES | dict(window=WINDOW)
    memory, transcribed = cell_between(sizes, gate="fixed", arrangement="skip")
    return llama(
        functools.partial(SlidingLanguageModel, window=WINDOW, cell=memory if cell else None),
        dict(sliding=WINDOW) | (transcribed if cell else {}),
        settings,
        cleared=(4,) if cell else (),
        cut_invariant=True,
        within=cell,
    )


def llama_pooled():
    """An entry of pooled recurrence between windows of a Llama, of maxima."""
    memory = functools.partial(PooledMemory, layer_index=1, hidden=(8, 6), pooling="max")
    model = functools.partial(PretrainedLanguageModel, memories=(memory,), overlap=3)
    transcribed = dict(overlap=3, pooled_layer=2, pooling="max", activation="silu")
    return llama(model, transcribed, dict(biases="heads", tied=True), cleared=(1,))


PRETRAINED: dict[str, Architecture] = {
    "gpt2_own_gradient": with_own(GradientMemory, own_memories_numpy.Gradient),
    "gpt2_own_gradient_overlap": with_own(GradientMemory, own_memories_numpy.Gradient, overlap=3),
    "gpt2_own_recurrence": with_own(LinearRecurrence, own_memories_numpy.Recurrence),
    "gpt2_kimi_delta": with_own(KimiDeltaMemory, KimiDelta),
    "gpt2_lact": with_own(LactMemory, Lact),
    "gpt2_titans": with_own(
        TitansMemory, functools.partial(Titans, window=GPT2_SIZES["num_positions"])
    ),
    "gpt2_cached_states": with_cached_states(most=2, every=2, chosen=1),
    "gpt2": gpt2(inverse_layer_scale=True, activation="relu", tied=False),
    "gpt2_overlap": gpt2(overlap=3, begin_id=2),
    "gpt2_pooled": pooled(dict(pooled_layer=2), overlap=11),
    "gpt2_pooled_attention": pooled(
        dict(pooled_layer=0, skip_repeated=True, pooling="attention", num_vectors=2), overlap=5
    ),
    "gpt2_cell": with_cell("dual", "lstm", overlap=2),
    "gpt2_associative": with_associative("delta", overlap=2),
    "rmt_gpt2_cell": memory_tokens_on_gpt2(num_memory=2),
    "llama_pooled": llama_pooled(),
    "llama_slide": sliding(),
    "llama_rec": sliding(cell=True, biases="all"),
}
