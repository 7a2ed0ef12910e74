from typing import Any

from brt.reporting.model_settings import model_name, model_setting

WINDOW = "window (Slide)"
NAMES = {
    "RecurrentMemoryTransformer": "RMT",
    "AssociativeRecurrentMemoryTransformer": "ARMT",
    "Melodi": "MELODI",
    "GatedDeltaMemory": "gated delta memory",
    "KimiDeltaMemory": "Kimi Delta memory",
    "KimiDeltaLayer": "Kimi Delta layer",
    "GatedDeltaLayer": "Gated DeltaNet layer",
    "LinearAttentionLayer": "linear attention layer",
    "CachedStates": "cached states",
    "LactMemory": "LaCT",
    "TitansMemory": "Titans",
    "AssociativeMemory": "associative memory",
    "CompressiveMemory": "Compressive Transformer",
    "ExternalMemory": "Memorizing Transformer",
    "TransformerXL": "Transformer-XL",
}
"""By class: the first that a run's model is, or has, counts."""


def memory_name(settings: dict[str, Any]) -> str:
    """Returns the name of the state that a model carries between segments."""
    bound = [str(value) for name, value in settings.items() if name.endswith("memories")]
    external = "ExternalMemory" if model_setting(settings, "memorizing_layers", ()) else ""
    bound += [str(model_setting(settings, "memory", "")), external]
    for name, label in NAMES.items():
        if name == model_name(settings) or any(name in value for value in bound):
            return label
    if model_setting(settings, "recurrent_layers", ()):
        feedback = ", feedback" if model_setting(settings, "feedback", False) else ""
        return f"Rec, {settings['RecurrentCell.gate'].strip(chr(34))} gate{feedback}"
    return WINDOW
