"""brt: language models that read long documents segment by segment.

    import brt
    experiment, params, step = brt.load_run("runs/quickstart")

Names of `__all__` are imported lazily.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "BlockRecurrentTransformer": "brt.models.block_recurrent.model",
    "Layer": "brt.models.block_recurrent.layer",
    "Sizes": "brt.models.sizes",
    "RecurrentCell": "brt.models.block_recurrent.cell",
    "LayerMemory": "brt.models.block_recurrent.memory",
    "TransformerXL": "brt.models.transformer_xl.model",
    "token_losses": "brt.models.layers.losses",
    "Experiment": "brt.experiment",
    "load_run": "brt.model_folder",
    "Generator": "brt.generation.generator",
    "Sampling": "brt.generation.sampling",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'brt' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
