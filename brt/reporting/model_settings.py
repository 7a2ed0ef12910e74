"""The model that a run's settings describe, and its arguments, whatever class binds them."""

from typing import Any

BUILT_ON = {"RecurrentMemoryTransformer": ("TransformerXL",)}
"""Classes whose bindings a model takes besides its own."""


def model_name(settings: dict) -> str:
    """Returns the class that `Trainer.model` refers to."""
    reference = str(settings.get("Trainer.model", "@BlockRecurrentTransformer"))
    return reference.strip("@()").rsplit("/", 1)[-1].rsplit(".", 1)[-1]


def owners(model: str) -> tuple[str, ...]:
    """Returns the classes that a model's arguments are bound by."""
    return (model, *BUILT_ON.get(model, ()))


def model_setting(
    settings: dict[str, Any], model: str, name: str, default: Any = None, scope: str = ""
) -> Any:
    """Returns an argument of the model; `scope` is `evaluation/`, say."""
    names = (f"{scope}{owner}.{name}" for owner in owners(model))
    return next((settings[name] for name in names if name in settings), default)
