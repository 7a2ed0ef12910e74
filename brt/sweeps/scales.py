"""Published models scaled down equally, and moved to another corpus."""

from typing import NamedTuple

from brt.bindings.gin_files import ReferenceText
from brt.data.vocabularies.named import named_vocabulary
from brt.reporting.gin_text import reachable
from brt.reporting.model_settings import model_name, owners


class SweepError(ValueError):
    """A sweep cannot be run; the message names the remedy."""


class Scale(NamedTuple):
    """Divisors of a model's dimensions; 12 layers become `layers`."""

    width: int = 1
    num_heads: int = 1
    head_size: int = 1
    feed_forward_size: int = 1
    lengths: int = 1
    layers: int = 12


SCALES = {
    "paper": Scale(),
    "small": Scale(8, 2, 4, 8, 8, 4),
    "short": Scale(16, 2, 8, 16, 64, 6),
    "tiny": Scale(64, 4, 16, 128, 64, 2),
}
"""small: the 151M stack becomes configs/small/rec_fixed_skip.gin, for a CPU; short: six layers of
width 64 with windows of 8 tokens for 512, so that states carry more; tiny: for tests.
"""

LEAST_WIDTH = 256
"""Of the models that a scale is for; the narrowest published one of text has 384."""

STANDS_FOR = tuple(
    f"{owner}.{name}"
    for owner, names in {
        "BlockRecurrentTransformer": "num_layers width num_heads head_size feed_forward_size "
        "window recurrent_layers memorizing_layers",
        "RecurrentCell": "num_states",
        "ExternalMemory": "size neighbours",
        "TransformerXL": "num_layers width num_heads head_size feed_forward_size",
        "Trainer": "segment_length steps",
    }.items()
    for name in names.split()
)
"""Settings that are scaled, and kept at the paper's scale for the tables."""


def scaled(settings: dict, scale: Scale) -> dict:
    """Returns the settings of a model at another scale.

    Layers beyond a multiple of twelve stay as many, as in Slide:13L; a recurrent or memorizing
    layer keeps its relative depth in the stack. Numbers of entries that a memory holds and
    retrieves shrink like lengths.
    """
    if scale == SCALES["paper"]:
        return {}
    for name in ("BlockRecurrentTransformer.width", "TransformerXL.width"):
        if settings.get(name, LEAST_WIDTH) < LEAST_WIDTH:
            raise SweepError(
                f"{name} = {settings[name]} is small already, and --scale would divide it once "
                "more: give --scale=paper, which leaves a config as it is."
            )
    if "TransformerXL.width" in settings:
        return _scaled_transformer_xl(settings, scale)
    if "BlockRecurrentTransformer.num_layers" not in settings:
        raise SweepError(
            f"--scale divides no dimensions of {model_name(settings)}: give --scale=paper, which "
            "leaves a config as it is."
        )
    divisors = {
        f"BlockRecurrentTransformer.{name}": getattr(scale, name)
        for name in ("width", "num_heads", "head_size", "feed_forward_size")
    }
    lengths = (
        "BlockRecurrentTransformer.window",
        "Trainer.segment_length",
        "RecurrentCell.num_states",
    )
    memory = "ExternalMemory.size", "ExternalMemory.neighbours"
    divisors |= dict.fromkeys([*lengths, *memory], scale.lengths)
    found = {}
    for name, divisor in divisors.items():
        if name in settings:
            found[name], rest = divmod(settings[name], divisor)
            if rest or not found[name]:
                raise SweepError(
                    f"{name} = {settings[name]} cannot be divided by {divisor}: choose a scale "
                    "that divides it."
                )
    layers_before = settings["BlockRecurrentTransformer.num_layers"]
    times, more = divmod(layers_before, 12)
    layers = found["BlockRecurrentTransformer.num_layers"] = scale.layers * times + more
    ratio = layers / layers_before
    for name in (
        "BlockRecurrentTransformer.recurrent_layers",
        "BlockRecurrentTransformer.memorizing_layers",
    ):
        if not (indices := settings.get(name)):
            continue
        from_first = (index + layers_before * (index < 0) for index in indices)
        places = tuple(max(round((index + 1) * ratio), 1) - 1 for index in from_first)
        if len(set(places)) < len(places):
            raise SweepError(
                f"{name} = {indices} falls together in {layers} layers: choose a larger scale."
            )
        found[name] = places
    found["BlockRecurrentTransformer.activation_dtype"] = "float32"
    return found


def _scaled_transformer_xl(settings, scale):
    # Sizes such as 410 and 41 are rounded up to even ones; lengths are short as they are.
    found = {}
    for name in ("width", "head_size", "feed_forward_size"):
        even = -(-settings[f"TransformerXL.{name}"] // (2 * getattr(scale, name)))
        found[f"TransformerXL.{name}"] = 2 * even
    heads, layers = (settings[f"TransformerXL.{name}"] for name in ("num_heads", "num_layers"))
    found["TransformerXL.num_heads"] = max(heads // scale.num_heads, 1)
    found["TransformerXL.num_layers"] = max(round(layers * scale.layers / 12), 1)
    found["TransformerXL.activation_dtype"] = "float32"
    return found


def with_corpus(settings: dict, corpus: dict) -> dict:
    """Returns settings whose corpus, with all that belongs to it, is that of other bindings."""
    old = reachable(settings, "Trainer.corpus")
    kept = {name: value for name, value in settings.items() if name not in old}
    both = kept | {"Trainer.corpus": ReferenceText("@Corpus()")} | corpus
    new = reachable(both, "Trainer.corpus")
    own = {name: both[name] for name in both if name in new}
    *_, table = (f"{owner}.vocabulary_size" for owner in owners(settings))
    if isinstance(size := corpus.get("vocabulary_size"), int):
        own[table] = size
    elif named := [name for name in corpus if name.endswith(".vocabulary_size")]:
        own[table] = corpus[named[0]]
    elif str(own.get("Corpus.vocabulary")) in ("bytes", "@ByteVocabulary()"):
        own[table] = 256
    elif size:  # a reference: it follows from the vocabulary
        own[table] = named_vocabulary(own["Corpus.vocabulary"]).size
    if cutoffs := kept.get("TransformerXL.cutoffs"):
        # Bins of the adaptive softmax end below the new vocabulary's size.
        own["TransformerXL.cutoffs"] = tuple(c for c in cutoffs if c < own.get(table, kept[table]))
    return kept | own
