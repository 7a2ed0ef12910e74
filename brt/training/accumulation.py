"""Gradient accumulation: the microbatches of a step run one after another, for one update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_microbatches(grad: Callable, number: int) -> Callable:
    """Returns `grad` with the memory of one microbatch, equal up to rounding.

    Microbatch i has the batch elements i, i + number, ..., so that on a mesh each device keeps its
    own. All have the step's dropout key, so masks drawn for each batch element repeat.

    grad: `jax.value_and_grad` of a loss of `make_loss`.
    """

    def accumulated(params, caches, batch, key):
        parts = _divided(caches, 0, number), _divided(tuple(batch), 1, number)

        def run(parts):
            caches, arrays = parts
            part = type(batch)(*arrays)
            (value, (caches, sums, metrics)), grads = grad(
                params, caches, part, key, batch.weights_KBT
            )
            return (value, sums, metrics, grads), caches

        def add(total, parts):
            new, caches = run(parts)
            return jax.tree.map(jnp.add, total, new), caches

        shapes, _ = jax.eval_shape(run, jax.tree.map(lambda x: x[0], parts))
        zeros = jax.tree.map(jnp.zeros_like, shapes)
        with jax.named_scope("microbatches"):
            (value, sums, metrics, grads), caches = jax.lax.scan(add, zeros, parts)
        value, metrics, grads = jax.tree.map(lambda x: x / number, (value, metrics, grads))
        return (value, (_joined(caches), sums, metrics)), grads

    return accumulated


def _divided(tree: Any, axis: int, number: int) -> Any:
    def divided(x):
        B = x.shape[axis]
        x = x.reshape(*x.shape[:axis], B // number, number, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis + 1, 0)

    return jax.tree.map(divided, tree)


def _joined(tree):
    def joined(x):
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    return jax.tree.map(joined, tree)
