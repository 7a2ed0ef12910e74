"""The settings of `Llama` that a folder's config.json says."""

from typing import Any

from brt.pretrained.config_values import ConfigValues
from brt.pretrained.decoders.rotary import Llama3Scaling
from brt.pretrained.folder import HubFolder
from brt.pretrained.source import begin_of, is_tied, number_of_layers

WORDS = ("model.embed_tokens.weight", "embed_tokens.weight")
"""Names on disk of the table of words."""


def settings_of(folder: HubFolder) -> dict[str, Any]:
    """Returns the settings of `Llama` that a folder's config.json says.

    Raises:
        ValueError: a value of another type, or that brt does not compute; naming the key.
    """
    values = folder.values()
    model_type = values.get("model_type")
    values.choice("hidden_act", ("silu",), "silu")
    values.only("mlp_bias", False, "adds biases to the network, which brt does not compute.")
    values.only("pretraining_tp", 1, "cuts matrices in parts: save the folder with 1.")
    values.only("use_sliding_window", False, "hides keys of a window, which brt does not compute.")
    types = values.get("layer_types", [])
    if not isinstance(types, list) or any(kind != "full_attention" for kind in types):
        raise values.refused("layer_types", "has layers other than full_attention.")
    num_heads = values.whole("num_attention_heads", 32)
    num_key_heads = values.whole("num_key_value_heads", 8 if model_type == "mistral" else num_heads)
    if num_heads % num_key_heads:
        raise values.refused(
            "num_attention_heads", f"is not divided by num_key_value_heads = {num_key_heads}."
        )
    width = values.whole("hidden_size", 4096)
    head_size = values.whole("head_dim", None)
    if head_size is None:
        if width % num_heads:
            raise values.refused("hidden_size", f"is not divided by {num_heads} heads.")
        head_size = width // num_heads
    if head_size % 2:
        raise values.refused("head_dim", f"gives heads of {head_size}, which has no halves.")
    num_positions = values.whole("max_position_embeddings", POSITIONS[model_type])
    if model_type == "mistral":
        window = values.whole("sliding_window", 4096) if _mistral_window(values) else num_positions
        if window < num_positions:
            raise values.refused(
                "sliding_window",
                f"hides keys of {num_positions} positions: brt reads Mistral without a window.",
            )
    vocabulary_size = values.whole("vocab_size", 151_936 if model_type == "qwen2" else 32_000)
    biased = values.flag("attention_bias", False)
    base, scaling = rotary_settings(values)
    return dict(
        vocabulary_size=vocabulary_size,
        num_layers=number_of_layers(values, "num_hidden_layers", 32, folder),
        width=width,
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        head_size=head_size,
        feed_forward_size=values.whole("intermediate_size", INTERMEDIATE[model_type]),
        num_positions=num_positions,
        epsilon=values.number("rms_norm_eps", 1e-6),
        rotary_base=base,
        rotary_scaling=scaling,
        biases="heads" if model_type == "qwen2" else "all" if biased else "none",
        tied=is_tied(values, folder, False, "lm_head.weight", WORDS),
        begin_id=begin_of(values, vocabulary_size, None if model_type == "qwen2" else 1),
    )


POSITIONS = {"llama": 2048, "qwen2": 32_768, "mistral": 131_072}
INTERMEDIATE = {"llama": 11_008, "qwen2": 22_016, "mistral": 14_336}
"""What a missing key means, by `model_type`."""


def _mistral_window(values):
    """Tells if a folder of Mistral has a window: it has one unless null says that there is none."""
    return not values.is_null("sliding_window")


def rotary_settings(values: ConfigValues) -> tuple[float, Llama3Scaling | None]:
    """Returns the base of the angles and their scaling, as transformers 4 and 5 write them.

    Raises:
        ValueError: a kind of scaling that brt does not compute.
    """
    key = "rope_parameters" if "rope_parameters" in values else "rope_scaling"
    inner = values.inner(key)
    if inner.get("partial_rotary_factor", 1) != 1 or values.get("partial_rotary_factor", 1) != 1:
        raise values.refused("partial_rotary_factor", "turns a part of a head, which Llama is not.")
    outer = values.number("rope_theta", 10_000.0)
    base = inner.number("rope_theta", outer)
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise values.refused(key, "is of a kind that brt does not compute: default, llama3 are.")
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if high <= low:
        raise values.refused(key, "must have a high_freq_factor above its low_freq_factor.")
    positions = inner.whole("original_max_position_embeddings")
    return base, Llama3Scaling(inner.number("factor"), low, high, positions)
