"""Which model a run's settings describe, and its arguments, by whichever class they are bound."""

BUILT_ON = {"RecurrentMemoryTransformer": ("TransformerXL",)}
"""Classes whose bindings a model takes besides its own."""


def model_name(settings: dict) -> str:
    """The class that `Trainer.model` refers to."""
    reference = str(settings.get("Trainer.model", "@BlockRecurrentTransformer"))
    return reference.strip("@()").rsplit("/", 1)[-1].rsplit(".", 1)[-1]


def owners(model: str) -> tuple[str, ...]:
    """The classes that a model's arguments are bound by."""
    return (model, *BUILT_ON.get(model, ()))


def model_setting(settings: dict, model: str, name: str, default=None, scope: str = ""):
    """An argument of the model; `scope` is `evaluation/`, say."""
    names = (f"{scope}{owner}.{name}" for owner in owners(model))
    return next((settings[name] for name in names if name in settings), default)
