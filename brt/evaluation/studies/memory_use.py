"""Is the memory used? What a document's later segments cost when its state is tampered with.

The state is kept; cleared before every segment, to the learned initial one; zeroed; or swapped for
that of another document. Beside the losses: how much of what attention adds comes from the states,
how long a state lasts by its gates, and whether a gradient of the loss reaches it.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.data.streams.documents import DocumentPass
from brt.evaluation.reading import to_host
from brt.models.caches import clear_state, with_state
from brt.models.memories.gates import Gate
from brt.training.prefetch import Prefetch
from brt.training.train_step import read_segment

SAMPLED = 16
"""Segments of each row that gates, shares and gradients are measured on."""


def memory_use(run, documents) -> dict:
    """Measures a `RecordedRun`; makes the recordings it needs.

    Args:
        run: a `RecordedRun`.
        documents: which to read.

    Returns:
        "numbers", "series" and "verdict" of a study; figures in bits are per token of all
        segments but each document's first, in which there is nothing to remember yet.
    """
    if not run.has_state:
        return _nothing(f"The model has no state: it carries windows of {run.window:,} tokens.")
    if (run.store.lengths_D[documents] <= run.segment_length).all():
        return _nothing(
            f"No document is longer than a segment of {run.segment_length:,} tokens, so no state "
            "is ever carried; bind Evaluation.segment_length to less."
        )
    states = ["kept", "cleared", "zeroed"]
    if min(len(documents), run.rows) > 1:
        states.append("swapped")
    recordings = {state: run.recording(state, documents) for state in states}
    numbers, series = losses(recordings, run.store, documents)
    numbers |= gates_and_gradients(run, documents)
    return {"numbers": numbers, "series": series, "verdict": verdict(numbers)}


def losses(recordings: dict, store, documents) -> tuple[dict, list]:
    """Bits per token of later segments, what each treatment costs, and the costs by segment.

    Args:
        recordings: by state, "kept" among them; see `TREATMENTS`.

    Returns:
        Numbers and series. A cost has a standard error, over segments of documents.
    """
    segment_length = recordings["kept"].manifest["segment_length"]
    by_state = {
        state: [_by_segment(r.document(d).nats_T, segment_length) for d in documents]
        for state, r in recordings.items()
    }
    lengths = [_by_segment(np.ones(store.lengths_D[d]), segment_length) for d in documents]
    later = np.concatenate([length[1:] for length in lengths])
    kept = np.concatenate([nats[1:] for nats in by_state["kept"]])
    numbers, series = {"documents": len(documents), "tokens": int(later.sum())}, []
    numbers["bits_kept"] = kept.sum() / later.sum() / math.log(2)
    for state in by_state:
        if state == "kept":
            continue
        nats = np.concatenate([nats[1:] for nats in by_state[state]])
        extra = (nats - kept) / math.log(2)
        mean = extra.sum() / later.sum()
        numbers[f"bits_{state}"] = numbers["bits_kept"] + mean
        numbers[f"cost_{state}"] = mean
        numbers[f"cost_{state}_error"] = _ratio_error(extra, later)
        most = max(map(len, lengths))
        sums, counts = np.zeros(most), np.zeros(most)
        for own, other, length in zip(by_state["kept"], by_state[state], lengths):
            sums[: len(own)] += other - own
            counts[: len(own)] += length
        series.append(
            {
                "name": f"cost of the state {state}, by segment",
                "x": list(range(most)),
                "y": (sums / counts / math.log(2)).tolist(),
                "x_label": "segment of the document",
                "y_label": "bits per token",
            }
        )
    return {name: _plain(value) for name, value in numbers.items()}, series


def gates_and_gradients(run, documents) -> dict:
    """Monitors and gradients on the first `SAMPLED` segments, without documents' first ones.

    Returns:
        For each layer with a state, by `layer9/` and so on:
            state_share, memory_share, kept, state_norm: as in the training records.
            half_life_tokens: after which half of a state is left at the mean `kept`; for fixed
                gates, whose values are parameters, also of the entries of a state, as 10th, 50th
                and 90th percentile (`_p10`, ...).
            gradient_norm: of a segment's nats with respect to the state before it, mean of rows.
            gradient_share: that times the state's norm, over the segment's nats: by how much of
                itself, at most, the loss answers a change of the state.
    """
    stream = DocumentPass(run.store, run.rows, run.segment_length, documents=documents)
    caches, step = _probe(run)
    steps = min(stream.num_steps, SAMPLED)
    prefetch, measured = Prefetch(stream, run.mesh, 0, steps), []
    try:
        for number in range(steps):
            places = stream.places(number)
            later_B = (places[0] >= 0) & (places[1] > 0)
            caches, found = step(run.params, caches, prefetch.next(), later_B)
            if later_B.any():
                measured.append({name: float(to_host(x)) for name, x in found.items()})
    finally:
        prefetch.close()
    means = {name: float(np.mean([m[name] for m in measured])) for name in measured[0]}
    return means | _half_lives(run, means)


def _probe(run):
    bind, reader = run.experiment.bind_evaluated, run.reader

    def step(params, caches, batch, later_B):
        model, one = bind(params, run.segment_length), jax.tree.map(lambda x: x[0], batch)

        def nats(states):
            # Only the state of `states` is read; the windows are the caches' own.
            after, x_BTD, monitors = read_segment(model, one, clear_state(caches, states))
            nats_BT, _ = model.token_losses(x_BTD, one.targets_KBT)
            scored_BT = (one.weights_KBT > 0) & later_B[:, None]
            total = jnp.where(scored_BT, nats_BT, 0.0).sum()
            return total, (after, monitors)

        # A cache may count, too: whole numbers have no gradient.
        slope = jax.value_and_grad(nats, has_aux=True, allow_int=True)
        (total, (after, monitors)), slopes = slope(caches)
        rows = jnp.maximum(later_B.sum(), 1)
        found = dict(monitors)
        for i in with_state(caches):
            slope_B, norm_B = _norms(slopes[i]), _norms(_state_only(caches, i))
            found[f"layer{i}/gradient_norm"] = (slope_B * later_B).sum() / rows
            share = (slope_B * norm_B * later_B).sum() / jnp.maximum(total, 1e-6)
            found[f"layer{i}/gradient_share"] = share
        return after, found

    return reader.empty(run.params), jax.jit(step)


def _state_only(caches, index):
    """A layer's cache with zeros for its window."""
    zeros = jax.tree.map(jnp.zeros_like, caches)
    return clear_state(zeros, caches)[index]


def _norms(tree):
    """Root of the sum of squares of each row over all arrays, (B,)."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.sqrt(
        sum(jnp.square(x.astype(jnp.float32)).reshape(len(x), -1).sum(1) for x in leaves)
    )


def _half_lives(run, means):
    found = {}
    for i, layer in enumerate(getattr(run.experiment.model, "layers", ())):
        kept = means.get(f"layer{i}/kept")
        gates = sum(isinstance(module, Gate) for _, module in nnx.iter_modules(layer))
        if kept and gates and kept < 1:
            # A block passes through all gates of its layer, one after the other.
            found[f"layer{i}/half_life_tokens"] = _half_life(kept**gates) * run.window
        kept_D = _fixed(run.params, i)
        if kept_D is not None:
            for percent, value in zip((10, 50, 90), np.percentile(kept_D, (10, 50, 90))):
                half_life = _half_life(value) * run.window
                found[f"layer{i}/half_life_tokens_p{percent}"] = half_life
    return found


def _half_life(kept):
    """Blocks after which half is left of what each of them keeps this share of."""
    return math.log(0.5) / math.log(min(max(kept, 1e-12), 1 - 1e-12))


def _fixed(params, index):
    """What the fixed gates of a layer keep together of each entry, (D,); None if it has none."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    within = re.compile(rf"\['?layers'?\]\['?{index}'?\].*keep_bias_D")
    biases = [to_host(leaf) for path, leaf in leaves if within.match(jax.tree_util.keystr(path))]
    if not biases:
        return None
    return np.prod([1 / (1 + np.exp(-np.float64(bias))) for bias in biases], axis=0)


def _by_segment(values_T, segment_length):
    """Sums over the segments of a document, float64."""
    starts = np.arange(0, len(values_T), segment_length)
    return np.add.reduceat(np.asarray(values_T, np.float64), starts)


def _ratio_error(values, weights):
    """Standard error of sum(values) / sum(weights) over independent pairs; 0 for a single one."""
    if len(values) < 2:
        return 0.0
    residual = values - values.sum() / weights.sum() * weights
    return math.sqrt(len(values) / (len(values) - 1) * np.square(residual).sum()) / weights.sum()


def verdict(numbers: dict) -> str:
    """One sentence: whether the memory is used, with the numbers it rests on."""
    cost, error = numbers["cost_cleared"], numbers["cost_cleared_error"]
    swapped = numbers.get("cost_swapped", math.inf)
    if cost > 2 * error:
        head = "The memory is used"
        if swapped <= 2 * numbers.get("cost_swapped_error", 0.0):
            head += ", but that of another document would do as well"
    elif cost < -2 * error:
        head = "The memory is used and does harm"
    else:
        head = "There is no sign that the memory is used"
    others = [
        f"{numbers[f'cost_{state}']:+.4f} {what}"
        for state, what in (("zeroed", "zeroed"), ("swapped", "with another document's state"))
        if f"cost_{state}" in numbers
    ]
    shares = [
        f"{name.partition('/')[0]} takes {value:.1%} of what attention adds from its states"
        for name, value in numbers.items()
        if name.endswith("/state_share")
    ] + [
        f"{name.partition('/')[0]} takes {value:.1%} of what attention reads from its memory"
        for name, value in numbers.items()
        if name.endswith("/memory_share")
    ]
    lives = [
        f"half of {name.partition('/')[0]}'s state is left after {value:,.0f} tokens"
        for name, value in numbers.items()
        if name.endswith("/half_life_tokens")
    ]
    slopes = [
        f"a gradient of norm {value:.2g} nats reaches them in {name.partition('/')[0]}"
        for name, value in numbers.items()
        if name.endswith("/gradient_norm")
    ]
    return (
        f"{head}: cleared before every segment, later segments cost {cost:+.4f} ± {error:.4f} bits "
        f"per token (kept {numbers['bits_kept']:.4f}), {', '.join(others)}; "
        f"{'; '.join(shares + slopes + lives) or 'the model reports no gates'}."
    )


def _nothing(sentence):
    return {"numbers": {}, "series": [], "verdict": sentence}


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value
