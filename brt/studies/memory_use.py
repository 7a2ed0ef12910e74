"""Measures whether the memory is used: the cost of ablations of the state in later segments.

The state is kept; cleared before every segment, to the learned initial one; zeroed; or swapped with
that of another document. Other measures are the states' share of attention, the half-life of a
state by its gates, and the gradient of the loss with respect to the state.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import Count, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DocumentPass
from brt.evaluation.reading import to_host
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording
from brt.models.block_recurrent.gates import Gate
from brt.models.caches import clear_state, with_state
from brt.studies.study import Content, Runs, Study, content, curve, scored_weights, weighted
from brt.training.prefetch import Prefetch
from brt.training.train_step import read_segment

SAMPLED = 16
"""Segments of each batch element for gates, shares and gradients."""
PERCENTILES = (10, 50, 90)
"""Of the half-lives of a state's entries with fixed gates."""


HARDLY = 0.001
"""Share of the bits per token below which the cost of clearing is called hardly a use."""
OWN = 0.1
"""Least share of the cost of clearing that a state of another document costs."""
RULE = (
    "Used: clearing costs more than twice its standard error. This document's: another document's "
    f"state costs more than twice its own error, and at least {OWN:.0%} of what clearing costs."
)


class NothingCarried(NamedTuple):
    """Result without a memory to measure: no state, or nothing scored after a segment.

    longer: whether a document is longer than a segment.
    """

    has_state: bool
    window: int
    segment_length: int
    longer: bool = False


class AblationCost(NamedTuple):
    """Cost of an ablation of the state in later segments.

    state: the ablation, a name of `STATE_ABLATIONS`.
    bits: per token, with the ablation.
    cost, error: difference from the kept state, and its standard error over segments of documents.
    by_segment: the cost at each of `StateLosses.segments`, bits per token.
    """

    state: str
    bits: float
    cost: float
    error: float
    by_segment: list[float]


class StateLosses(NamedTuple):
    """Bits per token of all segments but each document's first, and costs of ablations.

    tokens: number of scored tokens.
    bits_kept: per token, with the state kept.
    segments: of documents, those with a scored token.
    """

    documents: int
    tokens: int
    bits_kept: float
    costs: list[AblationCost]
    segments: Sequence[int] = ()


class LayerMemory(NamedTuple):
    """Measures of the memory of one layer; None where there is no such measure.

    layer: index of the layer, or of a cache that the model has after its layers'.
    carries_state: whether its cache holds more than a window.
    state_share, memory_share: share of attention's output from the states, or from the memory.
    kept: share of the states that the gates keep of each block.
    state_norm: root mean square of the states.
    gradient_norm: of a segment's nats with respect to the state before it, mean of batch elements.
    gradient_share: gradient norm times state norm, over the segment's nats.
    half_life: tokens after which half of a state is left at the mean `kept`.
    half_lives: of a state's entries at the `PERCENTILES`, with fixed gates; else empty.
    others: further metrics of the layer, by name.
    """

    layer: int
    carries_state: bool
    state_share: float | None = None
    memory_share: float | None = None
    kept: float | None = None
    state_norm: float | None = None
    gradient_norm: float | None = None
    gradient_share: float | None = None
    half_life: float | None = None
    half_lives: tuple[float, ...] = ()
    others: Mapping[str, float] = MappingProxyType({})


class Probes(NamedTuple):
    """Means over segments of metrics and gradients, by layer and of the whole model."""

    layers: list[LayerMemory]
    model: dict[str, float]


class StateUse(NamedTuple):
    """Everything that is measured of a model's memory."""

    losses: StateLosses
    probes: Probes


@configurable
class MemoryUse(Study):
    """Whether the memory is used, and whether it must be that of this document.

    Args:
        segments: of each batch element for gates, shares and gradients.
    """

    title = "Use of the memory"
    caption = "What is lost when the state is taken away; zero in the first segment."

    def __init__(self, segments: Count = SAMPLED):
        self.segments = segments

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int = 0):
        longer = documents[run.store.lengths_D[documents] > run.segment_length]
        scored = any((run.store.weights(int(d), run.segment_length) > 0).any() for d in longer)
        if not run.has_state or not scored:
            return NothingCarried(run.has_state, run.window, run.segment_length, len(longer) > 0)
        states = ["kept", "cleared", "zeroed"]
        if min(len(documents), run.rows) > 1:
            states.append("swapped")
        recordings = {state: run.recording(state, documents) for state in states}
        measured = losses(recordings, run.store, documents)
        return StateUse(measured, gates_and_gradients(run, documents, self.segments))

    @staticmethod
    def present(result: StateUse | NothingCarried) -> Content:
        if isinstance(result, NothingCarried):
            return content({}, [], nothing_carried(result))
        losses = result.losses
        numbers: dict[str, float] = {
            "documents": losses.documents,
            "tokens": losses.tokens,
            "bits_kept": losses.bits_kept,
        }
        series = []
        for cost in losses.costs:
            numbers[f"bits_{cost.state}"] = cost.bits
            numbers[f"cost_{cost.state}"] = cost.cost
            numbers[f"cost_{cost.state}_error"] = cost.error
            name = f"cost of the state {cost.state}, by segment"
            labels = "segment of the document", "bits per token"
            series.append(curve(name, losses.segments, cost.by_segment, *labels))
        return content(
            numbers | probe_numbers(result.probes), series, summary(losses, result.probes)
        )


def losses(
    recordings: Mapping[str, Recording], store: TokenStore, documents: Sequence[int] | np.ndarray
) -> StateLosses:
    """Computes the cost of each ablation from recordings by state, "kept" among them."""
    segment_length = recordings["kept"].manifest["segment_length"]
    weights = scored_weights(store, documents)
    by_state = {
        state: [
            _by_segment(weighted(r.document(d).nats_T, weights_T), segment_length)
            for d, weights_T in zip(documents, weights)
        ]
        for state, r in recordings.items()
    }
    counts = [_by_segment(weights_T, segment_length) for weights_T in weights]
    later = np.concatenate([count[1:] for count in counts])
    kept = np.concatenate([nats[1:] for nats in by_state["kept"]])
    bits_kept = float(kept.sum()) / float(later.sum()) / math.log(2)
    tokens = sum(int((weights_T[segment_length:] > 0).sum()) for weights_T in weights)
    scored = _stacked(counts)
    segments = np.flatnonzero(scored)
    costs = []
    for state, by_document in by_state.items():
        if state == "kept":
            continue
        nats = np.concatenate([nats[1:] for nats in by_document])
        extra = (nats - kept) / math.log(2)
        mean = float(extra.sum() / later.sum())
        extras = _stacked([other - own for own, other in zip(by_state["kept"], by_document)])
        by_segment = (extras[segments] / scored[segments] / math.log(2)).tolist()
        error = float(_ratio_error(extra[later > 0], later[later > 0]))
        costs.append(AblationCost(state, bits_kept + mean, mean, error, by_segment))
    return StateLosses(len(documents), tokens, bits_kept, costs, segments.tolist())


def _stacked(by_document):
    total = np.zeros(max(map(len, by_document)))
    for values in by_document:
        total[: len(values)] += values
    return total


def gates_and_gradients(run: RecordedRun, documents: np.ndarray, segments: int = SAMPLED) -> Probes:
    """Measures the first segments of each batch element, without documents' first ones."""
    stream = DocumentPass(run.store, run.rows, run.segment_length, documents=documents)
    caches, step = _probe(run)
    carrying = with_state(caches)
    steps = min(stream.num_steps, segments)
    prefetch = Prefetch(stream, run.mesh, 0, steps)
    measured = []
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
    return _by_layer(run, means, carrying)


METRICS = ("state_share", "memory_share", "kept", "state_norm", "gradient_norm", "gradient_share")
"""Metrics that are fields of `LayerMemory`."""


def _by_layer(run, means, carrying) -> Probes:
    """Sorts means by layer, `layer9/kept` and so on, and adds half-lives."""
    of_layers: dict[int, dict[str, float]] = {}
    model = {}
    for name, value in means.items():
        if match := re.fullmatch(r"layer(\d+)/(.*)", name):
            of_layers.setdefault(int(match[1]), {})[match[2]] = value
        else:
            model[name] = value
    layers = []
    for number, metrics in sorted(of_layers.items()):
        known = {name: metrics.pop(name, None) for name in METRICS}
        layers.append(
            LayerMemory(
                number,
                carries_state=number in carrying,
                **known,
                half_life=_layer_half_life(run, number, known["kept"]),
                half_lives=_fixed_half_lives(run, number),
                others=metrics,
            )
        )
    return Probes(layers, model)


def _probe(run):
    bind, reader = run.experiment.bind_evaluated, run.reader

    def step(params, caches, batch, later_B):
        model, one = bind(params, run.segment_length), jax.tree.map(lambda x: x[0], batch)

        def nats(states):
            # Only the state of `states` is read; the windows are the caches' own.
            after, x_BTD, metrics = read_segment(model, one, clear_state(caches, states))
            nats_BT, _ = model.token_losses(x_BTD, one.targets_KBT)
            scored_BT = (one.weights_KBT > 0) & later_B[:, None]
            total = jnp.where(scored_BT, nats_BT, 0.0).sum()
            return total, (after, metrics)

        # A cache may count, too: whole numbers have no gradient.
        slope = jax.value_and_grad(nats, has_aux=True, allow_int=True)
        (total, (after, metrics)), slopes = slope(caches)
        rows = jnp.maximum(later_B.sum(), 1)
        found = dict(metrics)
        for i in with_state(caches):
            slope_B, norm_B = _norms(slopes[i]), _norms(_state_only(caches, i))
            found[f"layer{i}/gradient_norm"] = (slope_B * later_B).sum() / rows
            share = (slope_B * norm_B * later_B).sum() / jnp.maximum(total, 1e-6)
            found[f"layer{i}/gradient_share"] = share
        return after, found

    return reader.empty(run.params), jax.jit(step)


def _state_only(caches, index):
    """Returns a layer's cache with zeros for its window."""
    zeros = jax.tree.map(jnp.zeros_like, caches)
    return clear_state(zeros, caches)[index]


def _norms(tree):
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.sqrt(
        sum(jnp.square(x.astype(jnp.float32)).reshape(len(x), -1).sum(1) for x in leaves)
    )


def _layer_half_life(run, number, kept):
    if not kept or kept >= 1:
        return None
    modules = nnx.iter_modules(run.experiment.model)
    gates = sum(
        isinstance(module, Gate) and ("layers", number) in itertools.pairwise(path)
        for path, module in modules
    )
    # A block passes through all gates of its layer, one after the other.
    return _half_life(kept**gates) * run.window if gates else None


def _fixed_half_lives(run, number):
    kept_D = _fixed(run.params, number)
    if kept_D is None:
        return ()
    return tuple(_half_life(kept) * run.window for kept in np.percentile(kept_D, PERCENTILES))


def _half_life(kept):
    return math.log(0.5) / math.log(min(max(kept, 1e-12), 1 - 1e-12))


def _fixed(params, index):
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    within = re.compile(rf"\['layers'\]\['?{index}'?\].*keep_bias_D")
    biases = [to_host(leaf) for path, leaf in leaves if within.search(jax.tree_util.keystr(path))]
    if not biases:
        return None
    return np.prod([1 / (1 + np.exp(-np.float64(bias))) for bias in biases], axis=0)


def _by_segment(values_T, segment_length):
    """Returns the sums over the segments of a document, float64."""
    starts = np.arange(0, len(values_T), segment_length)
    return np.add.reduceat(np.asarray(values_T, np.float64), starts)


def _ratio_error(values, weights):
    """Returns the standard error of sum(values) / sum(weights); 0 for a single pair."""
    if len(values) < 2:
        return 0.0
    residual = values - values.sum() / weights.sum() * weights
    return math.sqrt(len(values) / (len(values) - 1) * np.square(residual).sum()) / weights.sum()


def probe_numbers(probes: Probes) -> dict[str, float]:
    """Returns figures by name, `layer9/kept` and so on; half-lives come last."""
    measured, half_lives = dict(probes.model), {}
    for layer in probes.layers:
        name = f"layer{layer.layer}"
        fields = {metric: getattr(layer, metric) for metric in METRICS} | dict(layer.others)
        measured |= {f"{name}/{m}": value for m, value in fields.items() if value is not None}
        if layer.half_life is not None:
            half_lives[f"{name}/half_life_tokens"] = layer.half_life
        for percent, value in zip(PERCENTILES, layer.half_lives):
            half_lives[f"{name}/half_life_tokens_p{percent}"] = value
    return dict(sorted(measured.items())) | half_lives


def nothing_carried(result: NothingCarried) -> str:
    """Returns a sentence that says why there is nothing to measure."""
    if not result.has_state:
        return f"The model has no state: it carries windows of {result.window:,} tokens."
    if result.longer:
        return (
            f"No token is scored after the first segment of a document, {result.segment_length:,} "
            "tokens; bind Evaluation.segment_length to less."
        )
    return (
        f"No document is longer than a segment of {result.segment_length:,} tokens, so no state "
        "is ever carried; bind Evaluation.segment_length to less."
    )


def summary(losses: StateLosses, probes: Probes) -> str:
    costs = {cost.state: cost for cost in losses.costs}
    cleared = costs["cleared"]
    changes = [
        f"{costs[state].cost:+.4f} {words}"
        for state, words in (("zeroed", "zeroed"), ("swapped", "with another document's state"))
        if state in costs
    ]
    head = _head(losses.bits_kept, cleared, costs.get("swapped"))
    return (
        f"{head}: cleared before every segment, later segments "
        f"cost {cleared.cost:+.4f} ± {cleared.error:.4f} bits per token (kept "
        f"{losses.bits_kept:.4f}), {', '.join(changes)}; "
        f"{'; '.join(_of_layers(probes.layers)) or 'the model reports no gates'}. {RULE}"
    )


def _head(bits_kept: float, cleared: AblationCost, swapped: AblationCost | None) -> str:
    if cleared.cost < -2 * cleared.error:
        return "The memory is used and does harm"
    if cleared.cost <= 2 * cleared.error:
        return "There is no sign that the memory is used"
    hardly = ", but hardly" if cleared.cost < HARDLY * bits_kept else ""
    if swapped is None:
        return f"A state is used{hardly}; whether it must be this document's was not measured"
    if swapped.cost <= max(2 * swapped.error, OWN * cleared.cost):
        return f"A state is used{hardly}, but another document's would do as well as its own"
    return f"This document's state is used{hardly}"


def _of_layers(layers: list[LayerMemory]) -> list[str]:
    """Returns clauses on shares, gradients and half-lives; zeros of layers are left out."""
    shares = [
        f"layer{layer.layer} takes {layer.state_share:.1%} of what attention adds from its states"
        for layer in layers
        if layer.state_share or (layer.carries_state and layer.state_share is not None)
    ]
    shares += [
        f"layer{layer.layer} takes {layer.memory_share:.1%} of what attention reads from its memory"
        for layer in layers
        if layer.memory_share or (layer.carries_state and layer.memory_share is not None)
    ]
    slopes = [
        f"a gradient of norm {layer.gradient_norm:.2g} nats reaches them in layer{layer.layer}"
        for layer in layers
        if layer.gradient_norm
    ]
    if not slopes and any(layer.gradient_norm is not None for layer in layers):
        slopes = ["no gradient of the loss reaches it"]
    half_lives = [
        f"half of layer{layer.layer}'s state is left after {layer.half_life:,.0f} tokens"
        for layer in layers
        if layer.half_life is not None
    ]
    return shares + slopes + half_lives
