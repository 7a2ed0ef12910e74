"""Prints a Markdown table of the rounding errors of the delta rule with decays of channels.

The largest difference of outputs and of the last matrix from the recurrence in float64, token by
token, divided by the largest value. bfloat16: queries, keys and values are rounded to it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from brt.models.block_recurrent.gated_delta import delta_rule

HEAD_SIZE = flags.DEFINE_integer("head_size", 64, "K, channels of a key and of a value.")
DECAYS = {
    "0": (0, 0),
    "-0.1 to 0": (-0.1, 0),
    "-1 to 0": (-1, 0),
    "-5 to 0": (-5, 0),
    "-5": (-5, -5),
}
LENGTHS = 64, 512, 4096


def drawn(length, low, high, size, seed=0):
    """Returns queries, keys, values, log decays, steps of one head: (1, T, 1, ...), float64."""
    rng, shape = np.random.default_rng(seed), (1, length, 1, size)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in rng.normal(size=(2, *shape)))
    return q, k, rng.normal(size=shape), rng.uniform(low, high, shape), rng.uniform(size=shape[:-1])


def recurrence(inputs):
    """Returns the last matrix and the output of each token, in float64."""
    q, k, v, log_decay, step = (x[0, :, 0] for x in inputs)
    matrix, read = np.zeros((q.shape[1], v.shape[1])), []
    for t in range(len(q)):
        matrix = np.exp(log_decay[t])[:, None] * matrix
        matrix = matrix + step[t] * np.outer(k[t], v[t] - k[t] @ matrix)
        read.append(q[t] @ matrix)
    return matrix[None, None], np.array(read)[None, :, None]


def error(inputs, dtype):
    """Returns the larger relative error of the two results of the chunked form."""
    *heads, log_decay, step = map(jnp.float32, inputs)
    heads = [x.astype(dtype).astype(jnp.float32) for x in heads]
    size = heads[0].shape[-1]
    empty = jnp.zeros((1, 1, size, size))
    found = jax.jit(delta_rule)(empty, (*heads, log_decay, step))
    pairs = zip(found, recurrence(inputs), strict=True)
    return max(np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs)


def main(_):
    columns = [(dtype, T) for dtype in ("float32", "bfloat16") for T in LENGTHS]
    print("| log of decays |", " | ".join(f"{dtype}, {T:,}" for dtype, T in columns), "|")
    print("|---|" + "---:|" * len(columns))
    for told, decays in DECAYS.items():
        errors = (error(drawn(T, *decays, HEAD_SIZE.value), dtype) for dtype, T in columns)
        print(f"| {told} |", " | ".join(f"{e:.1e}" for e in errors), "|")


if __name__ == "__main__":
    app.run(main)
