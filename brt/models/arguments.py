"""Checks of the arguments of a model's public methods, made while they are traced."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from brt.checks import shortened

CHECKS = {"__call__": (2, False), "read_part": (2, False), "decode": (1, True)}
"""By method, whose first arguments are tokens and caches: axes of the tokens; decoding form."""
OF_SEGMENT = "those that init_caches, end_decoding or the segment before returned"
OF_DECODING = "those that begin_decoding, read_part or the token before returned"
KINDS = jnp.bool_, jnp.integer, jnp.floating
"""float32 and bfloat16 are one kind."""


class CheckedMethods:
    """Makes the methods of `CHECKS` that a class defines check their tokens and caches first."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for name, (axes, is_decoding) in CHECKS.items():
            if name in vars(cls):
                setattr(cls, name, _checked(vars(cls)[name], axes, is_decoding))


def _checked(method: Callable, axes: int, is_decoding: bool) -> Callable:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args, **kwargs):
        model, tokens, caches, *_ = signature.bind(*args, **kwargs).arguments.values()
        _check_tokens(model, tokens, axes)
        _check_caches(model, caches, len(tokens), is_decoding)
        return method(*args, **kwargs)

    return call


def _check_tokens(model, tokens, axes):
    name = f"tokens of {type(model).__name__}"
    if len(getattr(tokens, "shape", ())) != axes or _kind(tokens) is not jnp.integer:
        must = f"must be an array of integers, such as int32, with {axes} axes"
        raise TypeError(f"{name} {must}, and not {_described(tokens)}.")
    if axes == 2 and not tokens.shape[1]:
        raise ValueError(f"{name} must be at least one of a document.")


def _check_caches(model, caches, rows, is_decoding):
    def empty():
        caches = model.init_caches(rows)
        return model.begin_decoding(caches) if is_decoding else caches

    expected = jax.eval_shape(empty)
    source = OF_DECODING if is_decoding else OF_SEGMENT
    must = f"caches of {type(model).__name__} must be {source}, for {rows} batch elements"
    structure: Any = jax.tree.structure(caches)
    if structure != jax.tree.structure(expected):
        kinds = jax.tree.map(_described, caches)
        raise TypeError(f"{must}, and not {shortened(repr(kinds), 200)}.")
    for (path, array), own in zip(
        jax.tree_util.tree_leaves_with_path(caches), jax.tree.leaves(expected), strict=True
    ):
        if getattr(array, "shape", None) != own.shape or _kind(array) is not _kind(own):
            raise ValueError(
                f"{must}: caches{jax.tree_util.keystr(path)} is {_described(array)}, and not "
                f"{_described(own)}."
            )


def _kind(array):
    dtype = getattr(array, "dtype", None)
    return next((kind for kind in KINDS if dtype and jnp.issubdtype(dtype, kind)), None)


def _described(value):
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return type(value).__name__
