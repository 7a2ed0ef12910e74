"""The model that a run's settings describe, and its arguments."""

import inspect
from typing import Any

from brt.bindings.registry import configurable_class


def model_name(settings: dict) -> str:
    reference = str(settings.get("Trainer.model", "@BlockRecurrentTransformer"))
    return reference.strip("@()").rsplit("/", 1)[-1].rsplit(".", 1)[-1]


def owners(settings: dict[str, Any]) -> tuple[str, ...]:
    model = model_name(settings)
    names = [model]
    model_class = configurable_class(model)
    body = settings.get(f"{model}.body")
    if model_class is not None:
        bases = (base.__name__ for base in model_class.__mro__[1:])
        names += filter(configurable_class, bases)
        own = inspect.signature(model_class.__init__)  # type: ignore[misc]  # a metaclass hides it
        default = own.parameters.get("body")
        if body is None and default is not None:
            body = default.default.__name__
    if body is not None:
        names.append(str(body).strip("@()").rsplit("/", 1)[-1])
    return tuple(names)


def model_setting(settings: dict[str, Any], name: str, default: Any = None, scope: str = "") -> Any:
    names = (f"{scope}{owner}.{name}" for owner in owners(settings))
    return next((settings[name] for name in names if name in settings), default)
