"""Use of the memory: the cost of ablations of the state in later segments."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import Count, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentPass
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.evaluation.segment_reader import read_segment
from brt.models.block_recurrent.gates import Gate
from brt.models.caches import clear_state, with_state
from brt.studies.study import (
    LN2,
    Content,
    Runs,
    Study,
    content,
    curve,
    ratio_and_error,
    scored_weights,
    sums_by_position,
    weighted,
)
from brt.training.prefetch import Prefetch
from brt.training.sharding import to_host

PERCENTILES = (10, 50, 90)
"""Of the half-lives of a state's entries with fixed gates."""
HARDLY_USED = 0.001
"""A cost of clearing below this share of the bits per token counts as hardly used."""
OWN_SHARE = 0.1
"""Least cost of another document's state that counts, as a share of the cost of clearing."""
RULE = "Criterion for a used state: clearing costs more than twice its standard error."
OWN_RULE = (
    " Criterion for this document's: another document's state costs more than twice its own error, "
    f"and at least {OWN_SHARE:.0%} of what clearing costs."
)


@configurable
@dataclass(eq=False)
class MemoryUse(Study):
    """Whether the memory is used, and whether another document's would do.

    Args:
        segments: of each batch element for gates, shares and gradients; more if all of them start
            documents.
    """

    title = "Use of the memory"
    caption = "What is lost when the state is taken away; zero in the first segment."

    segments: Count = 16

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        T = run.segment_length
        if not run.has_state:
            text = f"The model has no state: it carries windows of {run.window:,} tokens."
            return content({}, [], text)
        longer = documents[run.store.lengths_D[documents] > T]
        if not any((run.store.weights(int(d), T) > 0).any() for d in longer):
            why = f"No document is longer than a segment of {T:,} tokens, so no state is carried"
            if len(longer):
                why = f"No token is scored after the first segment of a document, {T:,} tokens"
            return content({}, [], f"{why}; bind Evaluation.segment_length to less.")
        states = ["kept", "cleared", "zeroed"]
        if min(len(documents), run.rows) > 1:
            states.append("swapped")
        recordings = {state: run.recording(state, documents) for state in states}
        numbers, series = costs(recordings, run.store, documents)
        numbers |= gates_and_gradients(run, documents, self.segments)
        return content(numbers, series, summary(numbers))


def costs(
    recordings: Mapping[str, Recording], store: TokenStore, documents: Sequence[int] | np.ndarray
) -> tuple[dict[str, float], list[dict]]:
    """Compares ablations with the kept state in all segments but each document's first.

    Returns:
        Bits per token of each state, costs of ablations with their standard errors over segments;
        and curves of the costs by segment.
    """
    segment_length = recordings["kept"].manifest["segment_length"]
    weights = scored_weights(store, documents)

    def by_segment(values_T):
        return np.add.reduceat(values_T, np.arange(0, len(values_T), segment_length))

    def later(by_document):
        return np.concatenate([values[1:] for values in by_document])

    bits = {
        state: [
            by_segment(weighted(recording.document(d).nats_T, weights_T)) / LN2
            for d, weights_T in zip(documents, weights)
        ]
        for state, recording in recordings.items()
    }
    kept, counts = bits.pop("kept"), [by_segment(weights_T) for weights_T in weights]
    longest = max(map(len, counts))
    scored, scored_later = sums_by_position(counts, longest), later(counts)
    segments = np.flatnonzero(scored)
    bits_kept = float(later(kept).sum()) / float(scored_later.sum())
    numbers: dict[str, float] = {
        "documents": len(documents),
        "tokens": sum(int((weights_T[segment_length:] > 0).sum()) for weights_T in weights),
        "bits_kept": bits_kept,
    }
    series = []
    for state, by_document in bits.items():
        extra = [other - own for own, other in zip(kept, by_document)]
        cost, error = ratio_and_error(
            later(extra)[scored_later > 0], scored_later[scored_later > 0]
        )
        numbers |= {
            f"bits_{state}": bits_kept + cost,
            f"cost_{state}": cost,
            f"cost_{state}_error": error,
        }
        means = sums_by_position(extra, longest)[segments] / scored[segments]
        labels = "segment of the document", "bits per token"
        name = f"cost of the state {state}, by segment"
        series.append(curve(name, segments.tolist(), means.tolist(), *labels))
    return numbers, series


def gates_and_gradients(run: RecordedRun, documents: np.ndarray, segments: int) -> dict[str, float]:
    """Measures those of the first steps in which a batch element continues a document.

    Returns:
        Means over segments of the model's metrics of all batch elements, such as
        `layer9/state_share`; of each layer with a state, without documents' first segments,
        `gradient_norm`, of a segment's nats with respect to the state before it, and
        `gradient_share`, that norm times the state's over the segment's nats; and half-lives, at
        the mean `kept`, and of a state's entries at the `PERCENTILES` with fixed gates. Further
        caches count as layers.
    """
    stream = DocumentPass(run.store, run.rows, run.segment_length, documents=documents)
    caches, step = _probe(run)
    prefetch = Prefetch(stream, run.mesh, 0, stream.num_steps)
    measured: list[dict[str, float]] = []
    with closing(prefetch):
        for number in range(stream.num_steps):
            if number >= segments and measured:
                break
            documents_B, offsets_B = stream.positions(number)
            later_B = (documents_B >= 0) & (offsets_B > 0)
            caches, metrics = step(run.params, caches, prefetch.next(), later_B)
            if later_B.any():
                measured.append({name: float(to_host(x)) for name, x in metrics.items()})
    numbers = {
        name: float(np.mean([metrics[name] for metrics in measured])) for name in measured[0]
    }
    numbers = dict(sorted(numbers.items()))
    for layer in _layers(numbers):
        name = f"layer{layer}/half_life_tokens"
        if half_life := _layer_half_life(run, layer, numbers.get(f"layer{layer}/kept")):
            numbers[name] = half_life
        lives = zip(PERCENTILES, _fixed_half_lives(run, layer))
        numbers |= {f"{name}_p{percent}": value for percent, value in lives}
    return numbers


def _layers(numbers: Mapping[str, float]) -> list[int]:
    matches = (re.match(r"layer(\d+)/", name) for name in numbers)
    return sorted({int(match[1]) for match in matches if match})


def _probe(run):
    bind, reader = run.experiment.bind_evaluated, run.reader

    def step(params, caches, batch, later_B):
        model, segment = bind(params, run.segment_length), batch.segment(0)

        def nats(states):
            # Only the state of `states` is used; the windows are the caches' own.
            after, x_BTD, metrics = read_segment(model, segment, clear_state(caches, states))
            nats_BT, _ = model.token_losses(x_BTD, segment.targets_BT)
            scored_BT = (segment.weights_BT > 0) & later_B[:, None]
            return jnp.where(scored_BT, nats_BT, 0.0).sum(), (after, metrics)

        # Caches may contain integers, which have no gradient.
        slope = jax.value_and_grad(nats, has_aux=True, allow_int=True)
        (total, (after, metrics)), slopes = slope(caches)
        rows = jnp.maximum(later_B.sum(), 1)
        zeros = jax.tree.map(jnp.zeros_like, caches)
        state_only = clear_state(zeros, caches)  # zeros for the windows
        metrics = dict(metrics)
        for i in with_state(caches):
            slope_B, norm_B = _norms(slopes[i]), _norms(state_only[i])
            metrics[f"layer{i}/gradient_norm"] = (slope_B * later_B).sum() / rows
            share = (slope_B * norm_B * later_B).sum() / jnp.maximum(total, 1e-6)
            metrics[f"layer{i}/gradient_share"] = share
        return after, metrics

    return reader.empty(run.params), jax.jit(step)


def _norms(tree):
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.sqrt(
        sum(jnp.square(x.astype(jnp.float32)).reshape(len(x), -1).sum(1) for x in leaves)
    )


def _half_life(share):
    return math.log(0.5) / math.log(min(max(share, 1e-12), 1 - 1e-12))


def _layer_half_life(run, number, kept):
    if not kept or kept >= 1:
        return None
    modules = nnx.iter_modules(run.experiment.model)
    gates = sum(
        isinstance(module, Gate) and ("layers", number) in itertools.pairwise(path)
        for path, module in modules
    )
    # A block passes through all gates of its layer in turn.
    return _half_life(kept**gates) * run.window if gates else None


def _fixed_half_lives(run, number):
    leaves = jax.tree_util.tree_flatten_with_path(run.params)[0]
    within = re.compile(rf"\['layers'\]\['?{number}'?\].*keep_bias_D")
    biases = [to_host(leaf) for path, leaf in leaves if within.search(jax.tree_util.keystr(path))]
    if not biases:
        return ()
    kept_D = np.prod([1 / (1 + np.exp(-np.float64(bias))) for bias in biases], axis=0)
    return tuple(_half_life(kept) * run.window for kept in np.percentile(kept_D, PERCENTILES))


def summary(numbers: Mapping[str, float]) -> str:
    changes = [
        f"{numbers[f'cost_{state}']:+.4f} {words}"
        for state, words in (("zeroed", "zeroed"), ("swapped", "with another document's state"))
        if f"cost_{state}" in numbers
    ]
    return (
        f"{_head(numbers)}: cleared before every segment, later segments cost "
        f"{numbers['cost_cleared']:+.4f} ± {numbers['cost_cleared_error']:.4f} bits per token "
        f"(kept {numbers['bits_kept']:.4f}), {', '.join(changes)}. {RULE}"
        f"{OWN_RULE if 'cost_swapped' in numbers else ''}"
    )


def _head(numbers: Mapping[str, float]) -> str:
    cost, error = numbers["cost_cleared"], numbers["cost_cleared_error"]
    if cost < -2 * error:
        return "The memory is used and does harm"
    if cost <= 2 * error:
        return "There is no sign that the memory is used"
    hardly = ", but hardly" if cost < HARDLY_USED * numbers["bits_kept"] else ""
    if "cost_swapped" not in numbers:
        return f"A state is used{hardly}; whether it must be this document's was not measured"
    if numbers["cost_swapped"] <= max(2 * numbers["cost_swapped_error"], OWN_SHARE * cost):
        return f"A state is used{hardly}, but another document's would do as well as its own"
    return f"This document's state is used{hardly}"
