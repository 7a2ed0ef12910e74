"""Checks of the arguments of a model's public methods, made while they are traced."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brt.checks import shortened

KINDS = {
    jnp.bool_: "an array of bool",
    jnp.integer: "an array of whole numbers, such as int32",
    jnp.floating: "an array of numbers, such as float32",
    jax.dtypes.prng_key: "a key, jax.random.key(0)",
}
"""float32 and bfloat16 are one kind."""
OF_SEGMENT = "those that init_caches, end_decoding or the segment before returned"
OF_DECODING = "those that begin_decoding, read_part or the token before returned"


def check_array(
    name: str, array: Any, kind: Any, shape: tuple[int | None, ...] | None = None
) -> None:
    """Raises a `TypeError` for an array of another kind (of `KINDS`) or shape; None: any size."""
    own: Any = getattr(array, "shape", None)
    fits = own is not None and _kind(array) is kind
    if shape is not None and fits:
        fits = len(own) == len(shape) and all(n in (None, m) for n, m in zip(shape, own))
    if not fits:
        axes = "" if shape is None else f" of shape {shape}".replace("None", "any")
        raise TypeError(f"{name} must be {KINDS[kind]}{axes}, and not {_described(array)}.")


class CheckedMethods:
    """Makes the methods that a class defines check their arguments first."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for name, check_arguments in CHECKS.items():
            if name in vars(cls):
                setattr(cls, name, _checked(vars(cls)[name], check_arguments))


def _checked(method: Callable, check_arguments: Callable) -> Callable:
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        check_arguments(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call


# One function for each method, with its parameters.


def _init_caches(model, rows):
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 0:
        must = "must be a number of batch elements, 0 or more"
        raise TypeError(f"{_of(model, 'rows')} {must}, and not {rows!r}.")


def _call(model, tokens_BT, caches, key=None):
    check_array(_of(model, "tokens"), tokens_BT, jnp.integer, (None, None))
    if not tokens_BT.shape[1]:
        raise ValueError(f"{_of(model, 'tokens')} must be at least one of a document.")
    _check_segment_form(model, caches, len(tokens_BT))
    if key is not None and getattr(key, "dtype", None) != jnp.uint32:  # an old form of keys
        check_array(_of(model, "key"), key, jax.dtypes.prng_key, ())


def _begin_decoding(model, caches):
    _check_segment_form(model, caches, _rows(caches))


def _read_part(model, tokens_BT, caches, counts_B):
    _call(model, tokens_BT, caches)
    check_array(_of(model, "counts"), counts_B, jnp.integer, (len(tokens_BT),))


def _decode(model, tokens_B, caches, reads_B=True):
    check_array(_of(model, "tokens"), tokens_B, jnp.integer, (None,))
    _check_decoding_form(model, caches, len(tokens_B))
    if not isinstance(reads_B, bool):
        check_array(_of(model, "reads"), reads_B, jnp.bool_, tokens_B.shape)


def _end_decoding(model, caches):
    _check_decoding_form(model, caches, _rows(caches))


CHECKS: dict[str, Callable] = {
    "init_caches": _init_caches,
    "__call__": _call,
    "begin_decoding": _begin_decoding,
    "read_part": _read_part,
    "decode": _decode,
    "end_decoding": _end_decoding,
}


def _check_segment_form(model, caches, rows):
    expected = jax.eval_shape(lambda: model.init_caches(rows))
    _check_form(model, caches, expected, rows, OF_SEGMENT)


def _check_decoding_form(model, caches, rows):
    expected = jax.eval_shape(lambda: model.begin_decoding(model.init_caches(rows)))
    _check_form(model, caches, expected, rows, OF_DECODING)


def _check_form(model, caches, expected, rows, source):
    must = f"{_of(model, 'caches')} must be {source}, for {rows} batch elements"
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


def _of(model, argument):
    return f"{argument} of {type(model).__name__}"


def _rows(caches):
    shapes = (getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(caches))
    return next((shape[0] for shape in shapes if shape), 1)


def _kind(array):
    dtype = getattr(array, "dtype", None)
    return next((kind for kind in KINDS if dtype and jnp.issubdtype(dtype, kind)), None)


def _described(value):
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return type(value).__name__
