"""Types and ranges of settings: annotations, checked by pydantic in every call.

    @configurable
    def adamw(learning_rate, b1: Share = 0.9, clip_norm: Positive | None = None): ...

    adamw(rate, b1=1)   # ValueError: adamw.b1 = 1 must be a number from 0 to below 1.

`brt.config.parse` checks all bindings in the same way before anything is built.
"""

import ast
import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, overload

import gin
import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    InstanceOf,
    TypeAdapter,
    ValidationError,
)
from pydantic_core.core_schema import no_info_after_validator_function

Made = TypeVar("Made")

SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""The normal float32 range: beyond it numbers become 0 or infinite."""
BELOW_1 = 1 - 2.0**-24
"""The largest float32 below 1."""
MOST = 2**31 - 1
"""The largest size or number of steps: int32 on the devices."""
SHOWN = 300


def Range(words: str, low: float, high: float = LARGEST, **further: Any) -> Any:
    """Numbers from `low` to `high`; `words` complete the sentence "... must be"."""
    return Field(ge=low, le=high, description=words, **further)


def OneOf(choices: Iterable[str]) -> Any:
    allowed = tuple(choices)
    words = f"one of {', '.join(map(repr, allowed))}"
    return Field(pattern=f"^({'|'.join(map(re.escape, allowed))})$", description=words)


class Rule(NamedTuple):
    """Values for which a function is true; `description` completes "... must be"."""

    description: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value):
        if not self.holds(value):
            raise ValueError(f"must be {self.description}")
        return value


def _count(low: int, high: int = MOST) -> Any:
    return Range(f"a whole number from {low:,} to {high:,}", low, high)


Positive = Annotated[float, Range("a finite number above 0", SMALLEST)]
NotNegative = Annotated[float, Range("a finite number, 0 or above", 0)]
Share = Annotated[float, Range("a number from 0 to below 1 (in float32)", 0, BELOW_1)]
"""A momentum, the decay of a moment, a rate of dropout."""
Factor = Annotated[float, Range("a number above 0 and below 1 (in float32)", SMALLEST, BELOW_1)]
Part = Annotated[float, Range("a number from 0 to 1", 0, 1)]
WholeNumber = Annotated[float, Range(f"a whole number from 0 to {MOST:,}", 0, MOST, multiple_of=1)]
"""Written with or without a point: 1000, 1e3."""
Count = Annotated[int, _count(1)]
CountFrom0 = Annotated[int, _count(0)]
CountFrom2 = Annotated[int, _count(2)]
Symbols = Annotated[int, _count(1, 2**20)]
Seed = Annotated[int, _count(0, 2**32 - 1)]
Index = Annotated[int, Range("a whole number", -MOST, MOST)]
"""A layer; negative from the last one."""
Many = Annotated[int, Range("a whole number, 1 or above", 1, 2**63 - 1)]
ManyFrom0 = Annotated[int, Range("a whole number, 0 or above", 0, 2**63 - 1)]
"""Numbers that may exceed `MOST`, such as tokens of a corpus."""
Devices = Annotated[int, Range("a number of devices or -1 (the remaining ones)", -1, MOST)]
Text = InstanceOf[str]
"""Unlike pydantic's own strings, may be invalid UTF-8."""
NOT_EMPTY = Rule("a string that is not empty", lambda text: bool(text.strip()) and "\0" not in text)
Name = Annotated[Text, NOT_EMPTY]
"""A path or a name."""

PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, dict, type(None))
"""Types of values that gin files can contain."""
BY_REFERENCE = ", which a reference gives: @NAME()"
BY_NAME = ", by reference, as @NAME"
STRICT = ConfigDict(strict=True)
UNKNOWN = object()
"""A value that is known only later."""

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
        return _readable(gin.configurable(checked, denylist=denylist or None))
    own = _NoSettings.__init__ if made.__init__ is object.__init__ else made.__init__
    setattr(made, "__init__", _checked(own, name, denylist))  # noqa: B010
    registered = gin.configurable(made, denylist=denylist or None)
    _readable(registered.__init__)
    return with_signature(registered)


def checked_arguments(made: Made) -> Made:
    """Checks the arguments of every call of a class or function without gin."""
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


class _NoSettings:
    """For gin, `object.__init__` takes any argument; this one takes none."""

    def __init__(self) -> None:
        pass


def _readable(function):
    """Shows types without what `Annotated` adds: `int` of `Count`."""
    signature = inspect.signature(function)
    with contextlib.suppress(NameError):  # an annotation that is only a text
        hints = typing.get_type_hints(function)
        parameters = [
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in signature.parameters.values()
        ]
        function.__signature__ = signature.replace(parameters=parameters)
    return function


def _checked(function, name, unbound):
    signature = inspect.signature(function)
    declared = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if parameter.annotation is not parameter.empty
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }

    @functools.wraps(function)
    def call(*args, **kwargs):
        arguments: dict[str, Any] = {}
        with contextlib.suppress(TypeError):  # the call below raises it with its usual message
            arguments = signature.bind(*args, **kwargs).arguments
        for parameter in (each for each in arguments if each in declared):
            bound = parameter not in unbound
            check(f"{name}.{parameter}", arguments[parameter], declared[parameter], "", bound)
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
        words = words_for(declared)
        if not by_reference:
            words = words.replace(BY_REFERENCE, "").replace(BY_NAME, "")
        raise ValueError(
            f"{name} = {shortened(repr(value))}{source} must be {words}{advice(declared, value)}."
        )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    check(name, value, Annotated[str, OneOf(choices)])


def shortened(text: str, most: int = SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"


def allows(declared: Any, value: Any) -> bool:
    """Returns whether a value, a `Reference` or `UNKNOWN` is of a declared type and in its range.

    A bool is not a number, an int is a float, a list is a tuple. A reference has the type of its
    class or return annotation, if any.
    """
    try:
        adapter(declared).validate_python(_without_numpy(value))
    except (ValidationError, OverflowError):  # the latter for an int too large for a float
        return False
    return True


def _without_numpy(value):
    if isinstance(value, np.generic):
        return value.item()
    return type(value)(map(_without_numpy, value)) if type(value) in (tuple, list) else value


@functools.lru_cache(maxsize=2048)
def adapter(declared: Any) -> TypeAdapter:
    return TypeAdapter(form(declared), config=STRICT)


def form(declared):
    """Returns an annotation for pydantic that also allows references and `UNKNOWN`."""
    if declared is inspect.Parameter.empty:
        return Any
    later = Annotated[Any, AfterValidator(functools.partial(_given_later, declared))]
    return Union[_exact_form(declared), later]  # noqa: UP007


def _exact_form(declared):
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, Union):
        return Union[tuple(map(form, inner))]  # noqa: UP007
    is_list = declared in (tuple, list) or origin in (list, collections.abc.Sequence)
    if is_list or inner[-1:] == (...,):
        one = form(inner[0]) if inner else Any
        return tuple[one, ...] | list[one]  # type: ignore[valid-type]
    if origin is tuple:
        exact: Any = tuple[tuple(map(form, inner))]  # type: ignore[misc]
        return Annotated[exact, BeforeValidator(_as_tuple)]
    if origin is dict:
        return dict[tuple(map(form, inner))]  # type: ignore[misc]
    if declared is str:
        return Text
    if declared in (*PLAIN, None, Any):
        return declared
    if origin is Annotated:
        return declared if inner[0] in PLAIN else form(inner[0])
    return Annotated[Any, AfterValidator(functools.partial(_made, declared))]


def _as_tuple(value):
    return tuple(value) if isinstance(value, list) else value


def _given_later(declared, value):
    if value is UNKNOWN:
        return value
    if typing.get_origin(declared) is Annotated:
        declared = typing.get_args(declared)[0]
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    is_maker = origin is collections.abc.Callable
    expected = inner[1] if is_maker else origin or declared
    if not isinstance(value, Reference):
        raise ValueError
    fits = value.called != is_maker or not (is_maker or inspect.isclass(expected))
    if not fits or not _is_subclass(_result_class(value.named), expected):
        raise ValueError
    return value


def _made(declared, value):
    if typing.get_origin(declared) is collections.abc.Callable:
        fits = makes(value, typing.get_args(declared)[1])
    elif dataclasses.is_dataclass(declared) or hasattr(declared, "_fields"):
        fits = isinstance(value, declared)  # such a class has no substitutes
    else:
        fits = not inspect.isclass(declared) or not isinstance(value, PLAIN)
    if not fits:
        raise ValueError
    return value


def makes(value: Any, expected: Any) -> bool:
    """Returns whether a value is callable and, as far as is known, returns an `expected`."""
    return callable(value) and _is_subclass(_result_class(value), expected)


def _result_class(named):
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
    except TypeError:  # protocols with attributes do not support issubclass
        return True


def words_for(declared: Any) -> str:
    """Describes the values of a declared type for a message, as "a whole number or None"."""
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is Annotated:
        described = (each.description for each in inner[1:] if hasattr(each, "description"))
        return next(described, None) or words_for(inner[0])
    if origin in (types.UnionType, Union):
        return " or ".join(map(words_for, inner))
    if origin is dict:
        return f"a dict with {words_for(inner[1])} for each name"
    if origin is collections.abc.Callable:
        return f"what makes {_one(inner[1])}{BY_NAME}"
    if origin in (list, collections.abc.Sequence) or inner[-1:] == (...,):
        called = "tuple" if origin is tuple else "list"
        return f"a {called} with {words_for(inner[0])} in each place"
    if origin is tuple:
        each = [*map(words_for, inner)]
        of_each = f", each {each[0]}" if len({*each}) == 1 else f": {', '.join(each)}"
        return f"a tuple of {len(inner)}{of_each}"
    return WORDS.get(declared) or f"{_one(declared)}{BY_REFERENCE}"


def _one(declared):
    name = getattr(declared, "__name__", str(declared)).rpartition(".")[2]
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def advice(declared: Any, value: Any) -> str:
    """Returns how to write a value that is not allowed, or ""."""
    if isinstance(value, Reference) and allows(declared, value._replace(called=not value.called)):
        bare = value.text.removesuffix("()")
        return f": write {bare}, no brackets" if value.called else f": write {bare}()"
    if isinstance(value, float) and value.is_integer() and allows(declared, int(value)):
        return ", without a point"
    if not isinstance(value, Reference) and allows(declared, (value,)):
        return f": write {shortened(repr((value,)))}"
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        if isinstance(value, str) and allows(declared, ast.literal_eval(value)):
            return ", without quotes"
    return ""
