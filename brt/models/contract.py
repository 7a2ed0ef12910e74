"""Checks of the contract of models and memories, run once per experiment."""

import re

import jax
import numpy as np

from brt.models.model import Metrics


def check_scalars(metrics: Metrics, owner: str) -> None:
    """Refuses metrics that are not scalars, which would be averaged over their entries."""
    for name, value in metrics.items():
        if np.shape(value):
            raise ValueError(
                f"{owner} reports the metric {name} of shape {np.shape(value)}: report a scalar, "
                "such as its mean."
            )


def check_caches(shapes: tuple, rows: int) -> None:
    """Refuses caches that cannot be carried from segment to segment.

    Args:
        shapes: what `init_caches(rows)` of a model returns, as shapes.
        rows: a number that no other axis has.
    """
    for cache in shapes:
        for part in (*getattr(cache, "memories", ()), cache):
            name = type(part).__name__
            if not hasattr(part, "_fields"):
                raise ValueError(f"{name} is carried as a cache: make it a typing.NamedTuple.")
            if not hasattr(part, "clear_state"):
                raise ValueError(
                    f"{name} has no method clear_state(empty): return `empty` to forget all where "
                    "the state is cleared, or `self` to forget nothing."
                )
            for path, field in jax.tree_util.tree_flatten_with_path(part)[0]:
                axes = re.search(r"_(B[A-Z]*)$", getattr(path[-1], "name", ""))
                if field.shape[:1] != (rows,) or not axes or len(axes[1]) != field.ndim:
                    raise ValueError(
                        f"{name}{jax.tree_util.keystr(path)} has shape {field.shape} for {rows} "
                        "batch elements: the batch is the first axis of every field, and its name "
                        "ends in the names of its axes, such as keys_BWHK or count_B."
                    )
