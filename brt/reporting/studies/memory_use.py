"""The study `memory_use` in sentences and curves.

A state counts as used if clearing it costs more than twice the standard error. It counts as this
document's if another document's state in its place costs more than twice its error as well, and at
least the share `OWN` of what clearing costs.
"""

from brt.reporting.studies.content import Content, content, curve
from brt.studies.memory_use import (
    MONITORS,
    PERCENTILES,
    AblationCost,
    LayerMemory,
    MemoryUse,
    NothingCarried,
    Probes,
    StateLosses,
)

HARDLY = 0.001
"""Share of the bits per token below which what a cleared state costs is called hardly a use."""
OWN = 0.1
"""Share of what clearing costs that another document's state costs where the own one is used."""
RULE = (
    "Used: clearing costs more than twice its standard error. This document's: another document's "
    f"state costs more than twice its own error, and at least {OWN:.0%} of what clearing costs."
)


def present(found: MemoryUse | NothingCarried) -> Content:
    """Returns the study's content."""
    if isinstance(found, NothingCarried):
        return content({}, [], nothing_carried(found))
    losses = found.losses
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
    return content(numbers | probe_numbers(found.probes), series, verdict(losses, found.probes))


def probe_numbers(probes: Probes) -> dict[str, float]:
    """Returns figures by name, `layer9/kept` and so on; half-lives come last."""
    measured, half_lives = dict(probes.model), {}
    for layer in probes.layers:
        name = f"layer{layer.layer}"
        fields = {monitor: getattr(layer, monitor) for monitor in MONITORS} | dict(layer.others)
        measured |= {f"{name}/{m}": value for m, value in fields.items() if value is not None}
        if layer.half_life is not None:
            half_lives[f"{name}/half_life_tokens"] = layer.half_life
        for percent, value in zip(PERCENTILES, layer.half_lives):
            half_lives[f"{name}/half_life_tokens_p{percent}"] = value
    return dict(sorted(measured.items())) | half_lives


def nothing_carried(found: NothingCarried) -> str:
    """Returns a sentence that says why there is nothing to measure."""
    if not found.has_state:
        return f"The model has no state: it carries windows of {found.window:,} tokens."
    if found.longer:
        return (
            f"No token is scored after the first segment of a document, {found.segment_length:,} "
            "tokens; bind Evaluation.segment_length to less."
        )
    return (
        f"No document is longer than a segment of {found.segment_length:,} tokens, so no state "
        "is ever carried; bind Evaluation.segment_length to less."
    )


def verdict(losses: StateLosses, probes: Probes) -> str:
    """Returns a sentence on whether the memory is used, with its numbers, and the rule."""
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
