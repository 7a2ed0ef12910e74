"""Replays recordings of one operation; see `check_recording.py`.

A file has inputs (`in_NAME`), outputs (`out_NAME`), the weights of the outputs in a loss
(`grad_cotangent_NAME`), the gradients of the loss (`grad_NAME`), and `settings`, whose `source`
names the recorded function.
"""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brt.models.block_recurrent import lact
from brt.models.block_recurrent.gated_delta import delta_rule
from brt.models.ops import in_blocks
from recordings import below

Arrays = dict[str, Any]

EXACT = 1e-11
"""Tolerance in float64; every difference is relative to the largest entry of its array."""
MUON = 1e-3
"""Tolerance in float32 after Muon, whose iterations multiply small singular values, and rounding
errors in their directions, by 493.
"""


def kimi_delta(inputs: Arrays, settings: Mapping[str, Any]) -> Arrays:
    """Kimi Delta Attention: queries and keys as given, (B, T, H, K), decays as logarithms."""
    q, k, v = (jnp.asarray(inputs[name]) for name in ("q", "k", "v"))
    groups = v.shape[2] // q.shape[2]  # heads of values that share queries and keys
    scale = settings.get("scale") or "1/sqrt(K)"
    scale = q.shape[-1] ** -0.5 if scale == "1/sqrt(K)" else float(scale)
    q, k = (jnp.repeat(x, groups, axis=2) for x in (q * scale, k))
    state = inputs.get("initial_state")
    if state is None:
        state = jnp.zeros((len(q), *v.shape[2:3], q.shape[-1], v.shape[-1]), v.dtype)
    state, out = delta_rule(state, (q, k, v, inputs["g"], inputs["beta"]))
    return {"o": out, "final_state": state}


def large_chunks(inputs: Arrays, settings: Mapping[str, Any]) -> Arrays:
    """LaCT: one head, (B, T, K); the tokens of a chunk read, and then change the fast weights.

    The last, perhaps shorter, chunk changes nothing.
    """
    weights = lact.FastWeights(*(jnp.asarray(inputs[name])[:, None] for name in ("w0", "w2", "w1")))
    lengths, muon = lact.row_lengths(weights), bool(settings.get("use_muon", False))
    names = ("q", "k", "v", "lr0", "lr2", "lr1")
    tokens = {name: jnp.asarray(inputs[name])[:, :, None] for name in names}
    momentum = None
    if inputs.get("momentum") is not None:
        tokens["momentum"] = jnp.asarray(inputs["momentum"])
        momentum = jax.tree.map(jnp.zeros_like, weights)

    def chunk(cache: lact.LactCache, x: Arrays) -> tuple[lact.LactCache, jax.Array]:
        read = lact.swiglu(cache.weights, x["q"])
        factors = lact.swiglu_factors(cache.weights, x["k"], x["v"])
        sums = lact.weighted_sums(factors, [x[name] for name in ("lr0", "lr2", "lr1")])
        gradient = lact.FastWeights(*sums)
        return lact.after_step(cache, gradient, x.get("momentum"), lengths, muon), read

    T, length = tokens["q"].shape[1], settings.get("chunk_size", 2048)
    whole = T - T % length
    cache, parts = lact.LactCache(weights, momentum), []
    if whole:
        chunks = {n: jnp.moveaxis(in_blocks(x[:, :whole], length), 1, 0) for n, x in tokens.items()}
        cache, read = jax.lax.scan(chunk, cache, chunks)
        parts = [*read]
    parts.append(lact.swiglu(cache.weights, tokens["q"][:, whole:]))
    return {"o": jnp.concatenate(parts, axis=1)[:, :, 0]}


OPERATIONS: dict[str, Callable[[Arrays, Mapping[str, Any]], Arrays]] = {
    "block_causal_lact_swiglu": large_chunks,
    "naive_recurrent_kda": kimi_delta,
}
"""By `source` of a recording: the function that computes its outputs."""


def errors(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Returns differences of outputs and gradients, in float32 and float64.

    Raises:
        ValueError: an operation that brt does not have, or a file without outputs.
    """
    settings = settings_of(recording)
    source = settings.get("source")
    if source not in OPERATIONS:
        raise ValueError(f"settings: source {source!r} is none of {sorted(OPERATIONS)}.")
    operation = OPERATIONS[source]
    single: dict[str, Any] = differences(recording, settings, operation, "float32")
    if settings.get("use_muon"):
        single = {name: (error, MUON) for name, error in single.items()}
    with jax.enable_x64(True):
        double = differences(recording, settings, operation, "float64")
    return single | {f"float64 {name}": (error, EXACT) for name, error in double.items()}


def settings_of(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings, which a file has as JSON or as a Python literal."""
    if "settings" not in recording:
        raise ValueError("the recording has neither config_json nor settings.")
    text = str(recording["settings"])
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return ast.literal_eval(text)


def differences(
    recording: Mapping[str, Any],
    settings: Mapping[str, Any],
    operation: Callable[[Arrays, Mapping[str, Any]], Arrays],
    dtype: str,
) -> dict[str, float]:
    """Returns the largest differences, of outputs and of gradients."""

    def named(prefix: str) -> Arrays:
        return {name: np.asarray(x, dtype) for name, x in below(recording, prefix).items()}

    weights = named("grad_cotangent_")
    expected = named("out_")
    gradients = {n: x for n, x in named("grad_").items() if not n.startswith("cotangent_")}
    if not expected:
        raise ValueError("the recording has no outputs (out_NAME).")

    def loss(inputs: Arrays) -> tuple[jax.Array, Arrays]:
        outputs = operation(inputs, settings)
        products = [jnp.vdot(weights[name], outputs[name]) for name in weights]
        return jnp.sum(jnp.stack(products)), outputs

    if gradients:
        run = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, outputs), found = run(named("in_"))
    else:
        outputs, found = jax.jit(lambda inputs: operation(inputs, settings))(named("in_")), {}
    compared = {"outputs": (outputs, expected), "gradients": (found, gradients)}
    return {
        kind: max(relative(ours[name], x) for name, x in theirs.items())
        for kind, (ours, theirs) in compared.items()
        if theirs
    }


def relative(ours: jax.Array, expected: np.ndarray) -> float:
    return float(np.abs(ours - expected).max() / np.abs(expected).max())
