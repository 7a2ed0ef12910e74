"""The study `positions` in sentences and curves."""

import numpy as np

from brt.reporting.studies.content import Content, content, curve
from brt.studies.positions import LossByPosition


def present(found: LossByPosition) -> Content:
    """Returns the study's content: Figure 6 of the Block-Recurrent paper, and the loss by part."""
    numbers: dict[str, float] = {}
    series = []
    own = next(iter(found.cumulative))
    for name, bits in found.cumulative.items():
        labels = "position, tokens", "bits per token so far"
        series.append(curve(f"cumulative, {name}", found.positions, bits, *labels))
        numbers[f"bits_per_token, {name}"] = bits[-1]
        if name == own:
            for part in found.by_part:
                title = f"by place in the {part.unit}, {own}"
                labels = f"place in the {part.unit}, tokens", "bits per token"
                series.append(curve(title, part.offsets, part.bits, *labels))
    labels = "position, tokens", "documents that reach it"
    series.append(curve("documents", found.positions, found.reaching, *labels))
    numbers |= {"documents": found.documents, "tokens": found.tokens, "longest": found.longest}
    return content(numbers, series, verdict(found))


def verdict(found: LossByPosition) -> str:
    """Returns a sentence on the run's own curve; those of others stand in brackets."""
    (_, own), *others = found.cumulative.items()
    middle = int(np.searchsorted(found.positions, max(found.longest // 10, 1)))

    def beside(point):
        return "".join(f" ({name} {bits[point]:.4f})" for name, bits in others)

    return (
        f"Over the first {found.positions[middle]:,} tokens of each document the loss is "
        f"{own[middle]:.4f} bits per token{beside(middle)}, over all of its up to "
        f"{found.longest:,} tokens {own[-1]:.4f}{beside(-1)}."
    )
