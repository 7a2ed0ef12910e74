"""The settings of a pretrained family, each declared once, as a field of a frozen dataclass.

The fields define the backbone's gin parameters, the reading and writing of config.json, and the
check that bindings agree with a folder.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from brt.bindings.bound_values import binding_of
from brt.checks import OneOf, Share, check
from brt.models.model import DTYPES
from brt.models.sizes import Sizes
from brt.pretrained.folder import CONFIG, HubFolder

REQUIRED: Any = object()
"""The default of a setting that must be bound, or be in config.json."""


class Key(typing.NamedTuple):
    """The keys of config.json for a setting; see `hub`."""

    names: tuple[str, ...]
    absent: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    written: tuple[str, ...]


def _unchanged(value):
    return value


def hub(
    *names: str,
    default: Any = REQUIRED,
    absent: Any = REQUIRED,
    read: Callable[[Any], Any] = _unchanged,
    write: Callable[[Any], Any] = _unchanged,
    written: tuple[str, ...] = (),
) -> Any:
    """Returns the field of a setting in config.json.

    Args:
        names: keys, of which the first present one counts; a dot leads into an object.
        default: without a binding and without a folder.
        absent: without the keys in config.json, or with null: a value, or a function of the earlier
            settings and `model_type`; by default `default`.
        read, write: from the value of config.json to the setting, and back; None is not written.
        written: keys that are written; by default the first without a dot.
    """
    absent = default if absent is REQUIRED else absent
    plain = tuple(name for name in names if "." not in name)
    key = Key(names, absent, read, write, written or plain[:1])
    return dataclasses.field(default=default, metadata={"key": key})


def first_id(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


class Misfit(ValueError):
    """A setting that does not fit the others; its arguments are the setting's name, and why."""


class HubConfig:
    def __init__(self, folder: HubFolder):
        self.folder = folder
        self.file = folder.file(CONFIG)
        self.model_type: str = folder.config["model_type"]

    def get(self, name: str) -> Any:
        value: Any = self.folder.config
        for step in name.split("."):
            if not isinstance(value, dict):
                raise ValueError(f"{self.file}: {name.partition('.')[0]} is no object.")
            if (value := value.get(step)) is None:
                break
        return value

    def refused(self, name: str, why: str) -> ValueError:
        return ValueError(f"{self.file}: {name} = {self.get(name)!r:.80} {why}.")

    def only(self, name: str, computed: Any) -> None:
        """Refuses a value other than `computed`; the key may be missing."""
        value = self.get(name)
        alike = isinstance(value, bool) == isinstance(computed, bool) and value == computed
        if value is not None and not alike:
            raise self.refused(name, f"is not supported: only {computed!r} is")

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if not isinstance(value, bool | None):
            raise self.refused(name, "must be true or false")
        return default if value is None else value

    def name_of(self, key: Key) -> str:
        return next((name for name in key.names if self.get(name) is not None), key.names[0])

    def setting(self, field: dataclasses.Field, settings: Mapping[str, Any]) -> Any:
        key = field.metadata["key"]
        name = self.name_of(key)
        value = self.get(name)
        if value is None:
            value = key.absent(settings) if callable(key.absent) else key.absent
            if value is REQUIRED:
                raise ValueError(f"{self.file} has no {name}, a size of the model.")
            return value
        try:
            value = key.read(value)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise self.refused(name, "is not supported") from None
        check(f"{self.file}: {name}", value, field.type)
        return float(value) if typing.get_args(field.type)[:1] == (float,) else value


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of every backbone.

    A family adds vocabulary_size V, num_layers, width D, num_heads H, feed_forward_size F and the
    epsilon of its norms. Settings that end in `_id` are entries of the vocabulary.

    Attributes:
        fixed: keys of config.json for which brt computes one value only.
        dropout: rate on embeddings, attention weights, and before each residual; not read from a
            folder.
        remat: "layer" recomputes each layer in the backward pass.
    """

    fixed: ClassVar[Mapping[str, Any]] = {}
    model_type: ClassVar[str]
    dropout: Share = 0.0
    activation_dtype: Annotated[str, OneOf(tuple(DTYPES))] = "float32"
    remat: Annotated[str, OneOf(("none", "layer"))] = "none"

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field]:
        return {f.name: f for f in dataclasses.fields(cls) if "key" in f.metadata}

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        def parameter(field, default, declared):
            kind = inspect.Parameter.KEYWORD_ONLY
            return inspect.Parameter(field.name, kind, default=default, annotation=declared)

        return [
            parameter(field, None, field.type | None)  # type: ignore[operator]
            if "key" in field.metadata
            else parameter(field, field.default, field.type)
            for field in dataclasses.fields(cls)
        ]

    @classmethod
    def of_folder(cls, folder: HubFolder) -> Self:
        config = HubConfig(folder)
        for name, value in cls.fixed.items():
            config.only(name, value)
        settings: dict[str, Any] = {"model_type": config.model_type}
        for name, field in cls.fields().items():
            settings[name] = config.setting(field, settings)
            if name.endswith("_layers") and (settings[name] or 0) > len(folder.tensors):
                key = config.name_of(field.metadata["key"])
                raise config.refused(key, f"is more than the {len(folder.tensors)} tensors")
        del settings["model_type"]
        cls.adjust(settings, config)
        try:
            return cls(**settings).resolved()
        except Misfit as misfit:
            setting, why = misfit.args
            key = config.name_of(cls.fields()[setting].metadata["key"])
            raise config.refused(key, why) from None

    @classmethod
    def adjust(cls, settings: dict[str, Any], config: HubConfig) -> None:
        """Changes settings by the rest of the folder."""

    def resolved(self) -> Self:
        """Fills in dependent settings, or raises `Misfit`."""
        settings: Any = self
        for name in self.fields():
            value = getattr(self, name)
            if name.endswith("_id") and value is not None and value >= settings.vocabulary_size:
                raise Misfit(name, f"lies beyond the vocabulary of {settings.vocabulary_size} ids")
        if getattr(self, "head_size", None) is None and settings.width % settings.num_heads:
            raise Misfit("width", f"is not divided by num_heads = {settings.num_heads}")
        return self

    def sizes(self) -> Sizes:
        own: Any = self
        head_size = getattr(self, "head_size", None) or own.width // own.num_heads
        return Sizes(own.width, own.num_heads, head_size, own.feed_forward_size)

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"model_type": self.model_type}
        for name, field in self.fields().items():
            key = field.metadata["key"]
            if (value := key.write(getattr(self, name))) is not None:
                config |= dict.fromkeys(key.written, value)
        return config


def resolve_settings(
    backbone: str, kind: type[Settings], bound: Mapping[str, Any], folder: HubFolder | None
) -> Settings:
    """Returns settings, each from its binding, the folder, or its default.

    bound: None for no binding. A value that differs from the folder's is refused.
    """
    bound = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in bound.items()
        if value is not None
    }
    if folder is None:
        return _without_folder(backbone, kind, bound)
    settings = kind.of_folder(folder)
    for name in kind.fields().keys() & bound.keys():
        value = getattr(settings, name)
        if not equal(bound[name], value):
            advice = f"{binding_of(f'{backbone}.{name}')} = None to take what the folder says"
            if name == "vocabulary_size":
                advice = f'Corpus.vocabulary = "pretrained:{folder.path}", or {advice}'
            raise ValueError(
                f"{backbone}.{name} = {bound[name]!r}, and {folder.file(CONFIG)} says {value!r}: "
                f"bind {advice}, or another Pretrained.folder."
            )
    others = {name: value for name, value in bound.items() if name not in kind.fields()}
    return dataclasses.replace(settings, **others)


def _without_folder(backbone, kind, bound):
    settings = kind(**bound)
    for name in kind.fields():
        if getattr(settings, name) is REQUIRED:
            raise ValueError(
                f"{backbone}.{name} is not bound: include a file of sizes, such as "
                'configs/bodies/gpt2_small.gin, or bind Pretrained.folder = "models/NAME".'
            )
    try:
        return settings.resolved()
    except Misfit as misfit:
        setting, why = misfit.args
        value = getattr(settings, setting)
        raise ValueError(f"{backbone}.{setting} = {value!r} {why}.") from None


def equal(bound: Any, value: Any) -> bool:
    """Returns whether two settings are the same: numbers as float32, names in any order.

    A converter from float32 to float64 writes 9.99999975e-06 for the authors' 1e-5.
    """
    if isinstance(bound, float) and isinstance(value, float):
        return np.float32(bound) == np.float32(value)
    if isinstance(bound, tuple) and all(isinstance(name, str) for name in bound):
        return set(bound) == set(value)
    return bound == value
