"""Name of the memory of a run, in words."""

from typing import Any

from brt.reporting.model_settings import model_name, model_setting

WINDOW = "window (Slide)"
MODELS = {
    "RecurrentMemoryTransformer": "RMT",
    "AssociativeRecurrentMemoryTransformer": "ARMT",
    "Melodi": "MELODI",
}
MEMORIES = {
    "GatedDeltaMemory": "gated delta memory",
    "KimiDeltaMemory": "Kimi Delta memory",
    "AssociativeMemory": "associative memory",
    "CompressiveMemory": "Compressive Transformer",
    "ExternalMemory": "Memorizing Transformer",
}


def memory_name(settings: dict[str, Any]) -> str:
    """Returns what a model carries from segment to segment."""
    model = model_name(settings)
    if model in MODELS:
        return MODELS[model]
    bound = " ".join(str(settings.get(name)) for name in settings if name.endswith("memories"))
    bound += str(model_setting(settings, "memory", ""))
    if model_setting(settings, "memorizing_layers", ()):
        bound += "ExternalMemory"
    for name, label in MEMORIES.items():
        if name in bound:
            return label
    if model == "TransformerXL":
        return "Transformer-XL"
    if model_setting(settings, "recurrent_layers", ()):
        feedback = ", feedback" if model_setting(settings, "feedback", False) else ""
        return f"Rec, {settings['RecurrentCell.gate'].strip(chr(34))} gate{feedback}"
    return WINDOW
