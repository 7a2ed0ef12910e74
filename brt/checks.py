"""Types and ranges of settings: declared in annotations, checked in every call.

    @configurable
    def adamw(learning_rate, b1: Share = 0.9, clip_norm: Positive | None = None): ...

    adamw(rate, b1=1)   # ValueError: adamw.b1 = 1 must be a number from 0 to below 1.

`brt.config.parse` checks all bindings in the same way before anything is built. A new kind of
annotation is a case in `allows` and one in `words_for`.
"""

import collections.abc
import dataclasses
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, cast, overload

import gin

Made = TypeVar("Made")

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Numbers between them are neither 0 nor infinite in float32."""
MOST = 2**31 - 1
"""The largest size or number of steps: both are int32 on the devices."""
SHOWN = 300


class Range(NamedTuple):
    """Numbers from `low` to `high`.

    words: complete the sentence "... must be".
    below: `high` itself is excluded.
    whole: whole numbers only, such as 3 or 3.0.
    """

    words: str
    low: float
    high: float = LARGEST
    below: bool = False
    whole: bool = False

    def holds(self, value: Any) -> bool:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            return False
        number: Any = value
        if not self.low <= number <= self.high or (self.below and number == self.high):
            return False
        return not self.whole or number == int(number)


class NotEmpty:
    words = "a string that is not empty"

    def holds(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip()) and "\0" not in value


class OneOf(NamedTuple):
    choices: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"one of {', '.join(map(repr, self.choices))}"

    def holds(self, value: Any) -> bool:
        return value in self.choices


def _count(low: int, high: int = MOST) -> Range:
    return Range(f"a whole number from {low:,} to {high:,}", low, high)


Positive = Annotated[float, Range("a finite number above 0", SMALLEST)]
NotNegative = Annotated[float, Range("a finite number, 0 or above", 0)]
Finite = Annotated[float, Range("a finite number", -LARGEST)]
BELOW_1 = 1 - 2.0**-24
"""The largest number that is not 1 in float32."""
Share = Annotated[float, Range("a number from 0 to below 1 (in float32)", 0, BELOW_1)]
"""A momentum, the decay of a moment, a rate of dropout."""
Factor = Annotated[float, Range("a number above 0 and below 1 (in float32)", SMALLEST, BELOW_1)]
Part = Annotated[float, Range("a number from 0 to 1", 0, 1)]
WholeNumber = Annotated[float, Range(f"a whole number from 0 to {MOST:,}", 0, MOST, whole=True)]
"""Whole, and written with or without a point: 1000, 1e3."""
Count = Annotated[int, _count(1)]
CountFrom0 = Annotated[int, _count(0)]
CountFrom2 = Annotated[int, _count(2)]
Symbols = Annotated[int, _count(1, 2**20)]
Seed = Annotated[int, _count(0, 2**32 - 1)]
Index = Annotated[int, _count(-MOST)]
"""A layer, counted from the last one where it is negative."""
Many = Annotated[int, Range("a whole number, 1 or above", 1, 2**63 - 1)]
ManyFrom0 = Annotated[int, Range("a whole number, 0 or above", 0, 2**63 - 1)]
"""Numbers that may be above `MOST`: tokens of a corpus."""
Devices = Annotated[int, Range("a number of devices, or -1 for the remaining ones", -1, MOST)]
Name = Annotated[str, NotEmpty()]
"""A path or a name."""

PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, dict, type(None))
"""Types of the values that can be written in a gin file."""
BY_REFERENCE = ", which a reference gives: @NAME()"
BY_NAME = ", by reference, as @NAME"
UNKNOWN = object()
"""A value that is known only later."""
MISFIT = 0j
"""A value of a type that no parameter takes."""

WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a tuple",
    list: "a list",
    dict: "a dict, such as {'train': 1}",
    type(None): "None",
    None: "None",
}


class Reference(NamedTuple):
    """A configurable that is bound by reference.

    text: as written, `@Corpus()`.
    named: the class or function.
    called: written with brackets, so that the value is what it returns.
    """

    text: str
    named: Any
    called: bool

    def __repr__(self):
        return self.text


@overload
def configurable(made: Made) -> Made: ...


@overload
def configurable(*, denylist: Sequence[str]) -> Callable[[Made], Made]: ...


def configurable(made: Any = None, *, denylist: Sequence[str] = ()) -> Any:
    """Registers a class or function with gin, and checks the arguments of every call.

    denylist: parameters that gin may not bind.
    """
    if made is None:
        return functools.partial(configurable, denylist=denylist)
    name = made.__name__
    if not inspect.isclass(made):
        checked = _checked(made, name, denylist)
        return _readable(gin.configurable(checked, denylist=denylist or None), name)
    setattr(made, "__init__", _checked(made.__init__, name, denylist))  # noqa: B010
    registered = gin.configurable(made, denylist=denylist or None)
    registered.__init__ = _readable(registered.__init__, name)
    return with_signature(registered)


def checked_arguments(made: Made) -> Made:
    """Checks the arguments of every call of a class or function that gin does not know."""
    if inspect.isclass(made):
        setattr(made, "__init__", checked_arguments(made.__init__))  # noqa: B010
        return made
    function = cast(Callable, made)
    name = function.__qualname__.removesuffix(".__init__")
    return cast(Made, _checked(function, name, inspect.signature(function).parameters))


def with_signature(made: Any) -> Any:
    """Gives a class the signature of its `__init__`, which a metaclass hides from `help`."""
    parameters = [*inspect.signature(made.__init__).parameters.values()][1:]
    made.__signature__ = inspect.Signature(parameters)
    return made


class MissingSettings(TypeError, RuntimeError):
    """A call lacks arguments that nothing binds; gin's own error is a RuntimeError."""


class _Required:
    def __repr__(self):
        return "REQUIRED"


def _readable(function, name):
    """Gives a function the signature that `help` shows, and an error in Python's words."""
    signature = inspect.signature(function)
    shown = [
        parameter.replace(
            annotation=_without_ranges(parameter.annotation),
            default=_Required() if parameter.default is gin.REQUIRED else parameter.default,
        )
        for parameter in signature.parameters.values()
    ]

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except MissingSettings:
            raise
        except RuntimeError as error:
            own = f"Required bindings for `{name}` not provided in config: "
            text = str(error).partition("\n")[0]
            if not text.startswith(own):
                raise
            missing = text.removeprefix(own).strip("[]")
            raise MissingSettings(f"{name}() missing required arguments: {missing}") from None

    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return call


def _without_ranges(annotation):
    """Returns an annotation without what `Annotated` adds: `int` of `Count`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return inner[0]
    if origin in (types.UnionType, typing.Union):
        return functools.reduce(lambda a, b: a | b, map(_without_ranges, inner))
    if inner and origin in (tuple, list, dict):
        return origin[tuple(map(_without_ranges, inner))]
    return annotation


def _checked(function, name, unbound):
    """Checks a function's arguments; unbound: parameters that gin does not bind."""
    signature = inspect.signature(function)
    declared = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if parameter.annotation is not parameter.empty
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the call below raises it with its usual message
            arguments = {}
        for parameter, value in arguments.items():
            if parameter in declared:
                bound = parameter not in unbound
                check(f"{name}.{parameter}", value, declared[parameter], by_reference=bound)
        return function(*args, **kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]  # gin does not follow wrappers
    return call


def check(
    name: str, value: Any, declared: Any, source: str = "", by_reference: bool = True
) -> None:
    """Refuses a value that is not of a declared type and range.

    name: of the setting, such as `adamw.clip_norm`. source: of the value.
    by_reference: whether gin may give the value.
    """
    if not allows(declared, value):
        words = words_for(declared, value)
        if not by_reference:
            words = words.replace(BY_REFERENCE, "").replace(BY_NAME, "")
        raise ValueError(
            f"{name} = {shortened(repr(value))}{source} must be {words}{advice(declared, value)}."
        )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    check(name, value, Annotated[str, OneOf(tuple(choices))])


def shortened(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"


def allows(declared: Any, value: Any) -> bool:
    """Returns whether a value, a `Reference` or `UNKNOWN` is of a declared type and in its range.

    A bool is not a number, an int is a float, a list is a tuple. A reference has the type of its
    class or return annotation, if any. Annotations without a case here allow everything.
    """
    if value is UNKNOWN or declared is Any or declared is inspect.Parameter.empty:
        return True
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        kind, *ranges = inner
        if not allows(kind, value):
            return False
        return isinstance(value, Reference) or all(each.holds(value) for each in ranges)
    if origin in (types.UnionType, typing.Union):
        return any(allows(one, value) for one in inner)
    if isinstance(value, Reference):
        return _allows_reference(declared, origin, inner, value)
    if origin in (tuple, list, collections.abc.Sequence):
        return _allows_each(origin, inner, value)
    if origin is dict:
        return isinstance(value, dict) and all(
            allows(inner[0], key) and allows(inner[1], one) for key, one in value.items()
        )
    if origin is collections.abc.Callable:
        return makes(value, inner[1])
    if declared in (None, type(None)):
        return value is None
    if declared in (int, float):
        kind = numbers.Integral if declared is int else numbers.Real  # NumPy's among them
        return isinstance(value, kind) and not isinstance(value, bool)
    if declared in (tuple, list):
        return isinstance(value, tuple | list)
    if inspect.isclass(declared):
        exact = declared in PLAIN or _has_fields(declared)
        return isinstance(value, declared) if exact else not isinstance(value, PLAIN)
    return True


def makes(value: Any, expected: Any) -> bool:
    """Returns whether a value can be called, and makes an `expected` as far as that is known."""
    return callable(value) and _is_subclass(_result_class(value), expected)


def _has_fields(cls):
    """Returns whether nothing can stand in for a class: a dataclass, or one of named tuples."""
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _allows_each(origin, inner, value):
    if not isinstance(value, tuple | list):
        return False
    if origin is not tuple or inner[-1:] == (Ellipsis,):
        return all(allows(inner[0], one) for one in value)
    return len(value) == len(inner) and all(map(allows, inner, value))


def _allows_reference(declared, origin, inner, value):
    if origin is collections.abc.Callable:
        return not value.called and _is_subclass(_result_class(value.named), inner[1])
    if not inspect.isclass(origin or declared):
        return True
    return value.called and _is_subclass(_result_class(value.named), origin or declared)


def _result_class(named):
    """Returns the class that a class or function makes; None where it is not known."""
    while isinstance(named, functools.partial):
        named = named.func
    if inspect.isclass(named):
        return named
    annotation = inspect.get_annotations(named).get("return") if inspect.isroutine(named) else None
    return annotation if inspect.isclass(annotation) else None


def _is_subclass(cls, expected):
    if cls is None or not inspect.isclass(expected):
        return True
    try:
        return issubclass(cls, expected)
    except TypeError:  # a protocol with attributes cannot tell of a class
        return True


def stands_alone(declared: Any, value: Any) -> bool:
    """Returns whether a value counts as a tuple of one: `9` for `(9,)` of `tuple[int, ...]`."""
    if allows(declared, value):
        return False
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(stands_alone(one, value) for one in inner)
    return origin is tuple and inner[-1:] == (Ellipsis,) and allows(inner[0], value)


def words_for(declared: Any, value: Any) -> str:
    """Describes the values of a declared type for a message, as "a whole number or None"."""
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        if isinstance(inner[1], OneOf) or allows(inner[0], value):
            return inner[1].words
        return words_for(inner[0], value)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(words_for(one, value) for one in inner)
    if origin is dict:
        return f"a dict with {_of_each(inner[1], value)} for each name"
    if origin is collections.abc.Callable:
        return f"what makes {_one(inner[1])}{BY_NAME}"
    if origin in (list, collections.abc.Sequence) or inner[-1:] == (Ellipsis,):
        called = "tuple" if origin is tuple else "list"
        return f"a {called} with {_of_each(inner[0], value)} in each place"
    if origin is tuple:
        words = ", ".join(_of_each(one, value) for one in inner)
        return f"a tuple of {len(inner)}: {words}"
    if declared in WORDS:
        return WORDS[declared]
    return f"{_one(declared)}{BY_REFERENCE}"


def _of_each(declared, value):
    entries = value.values() if isinstance(value, dict) else value
    entries = entries if isinstance(value, dict | list | tuple) else ()
    return words_for(declared, next((one for one in entries if not allows(declared, one)), MISFIT))


def _one(declared):
    name = getattr(declared, "__name__", str(declared)).rpartition(".")[2]
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def advice(declared: Any, value: Any) -> str:
    """Returns how to write a value that is not allowed, or ""."""
    if isinstance(value, Reference):
        kinds = [typing.get_origin(one) for one in (declared, *typing.get_args(declared))]
        if value.called and collections.abc.Callable in kinds:
            return f": write {value.text.removesuffix('()')}, no brackets"
        return ""
    types_taken = [_without_ranges(one) for one in (declared, *typing.get_args(declared))]
    if isinstance(value, str) and str not in types_taken:
        return ", without quotes"
    if isinstance(value, float) and int in types_taken:
        return ", without a point"
    return ""
