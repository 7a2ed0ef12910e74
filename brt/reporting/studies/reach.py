"""The study `reach` in sentences and curves."""

from brt.reporting.studies.content import Content, content, curve
from brt.studies.reach import SHARE, Reach

NO_BLOCK = "No token is scored beyond the first two blocks, of {:,} tokens each, of any document."


def present(found: Reach) -> Content:
    """Returns the study's content; costs are in bits per token."""
    if not found.probes:
        return content({}, [], NO_BLOCK.format(found.window))
    numbers: dict[str, float] = {
        "documents": found.documents,
        "longest": found.longest,
        "windows_reach": found.windows_reach,
    }
    series = []
    for probe in found.probes:
        series.append(
            curve(
                f"cost of resetting the {probe.probe}",
                probe.distances,
                probe.bits,
                "tokens between the reset and the scored block",
                "bits per token",
                errors=probe.errors,
                tokens=probe.tokens,
            )
        )
        numbers[f"{probe.probe}_cost_nearest"] = probe.bits[0]
        numbers[f"{probe.probe}_cost_nearest_error"] = probe.errors[0]
        numbers[f"{probe.probe}_reach"] = probe.reach
    return content(numbers, series, verdict(found))


def verdict(found: Reach) -> str:
    """Returns one sentence with the reach of each probe, and one with that of the windows."""
    parts = []
    for probe in found.probes:
        text = f"resetting the {probe.probe} {found.window:,} tokens before costs "
        text += f"{probe.bits[0]:+.4f} bits per token"
        if probe.reach:
            text += f", and no more than {SHARE:.0%} of that from {probe.reach:,} tokens on"
        parts.append(text)
    sentence = "; ".join(parts)
    return (
        f"{sentence[0].upper()}{sentence[1:]}. The windows of all layers, one behind the other, "
        f"reach back {found.windows_reach:,} tokens."
    )
