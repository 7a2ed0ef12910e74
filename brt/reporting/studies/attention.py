"""The study `attention` in sentences, maps and marked texts."""

from typing import Any

import numpy as np

from brt.reporting.studies.content import Content, content, curve
from brt.studies.attention_lines import BlockLines, Head, Parts
from brt.studies.attention_maps import ATTENTION, AttentionMaps, SegmentMaps, Spans

NOTHING_READ = (
    "No segment was read with a full cache: read longer documents, or bind a shorter memory_length "
    "in evaluation."
)


def present(found: AttentionMaps) -> Content:
    """Returns the study's content.

    "arrays" are NumPy arrays by name, for a file of their own; "maps" are figures of them; "texts"
    are tokens that are marked or not.
    """
    study = content({"segments": found.segments}, [], verdict(found), arrays={}, maps=[], texts=[])
    if found.spans:
        _add_spans(study, found.spans)
        if found.example:
            _add_example(study, found.parts, found.example, found.spans.width_LH.shape[1])
    for block in found.lines:
        _add_block(study, found, block)
    return study


def verdict(found: AttentionMaps) -> str:
    """Returns sentences on the widest heads, and on lines."""
    sentences = []
    if found.spans:
        sentences.append(_widths(found.spans))
    clauses = [clause for block in found.lines for clause in _clauses(found, block)]
    if clauses:
        text = "; ".join(clauses)
        sentences.append(f"{text[:1].upper()}{text[1:]}.")
    return " ".join(sentences) or NOTHING_READ


def head_name(layer: int, head: int, heads: int) -> str:
    """Returns the paper's name: heads are counted on from layer to layer, all from 1."""
    return f"layer {layer + 1}, head {layer * heads + head + 1}"


# Attention by distance.


def _widths(spans: Spans):
    distances, heads = spans.means[ATTENTION].shape[-1], spans.width_LH.shape[1]
    widest = [
        f"{head_name(layer, head, heads)} ({spans.width_LH[layer, head]:,.0f})"
        for layer, head in spans.widest
    ]
    text = (
        f"Widest heads of the first, middle and last layer, by e^entropy of their mean attention "
        f"over {distances:,} distances: {', '.join(widest)}; {spans.width_LH.mean():,.0f} on "
        "average."
    )
    if spans.elsewhere is not None:
        text += f" {spans.elsewhere:.1%} of the attention is on keys that are no single token."
    return text


def _add_spans(study, spans: Spans):
    """Adds Figures 5 and 7: attention by distance, of all terms together and of single ones."""
    for name, mean_LHN in spans.means.items():
        layers, heads, distances = mean_LHN.shape
        rows = mean_LHN.reshape(layers * heads, distances)
        study["arrays"][name] = rows[:, ::-1].astype(np.float32)
        what = "Attention" if name == ATTENTION else f"Softmax of term ({name[-1]}) alone"
        study["maps"].append(
            _map(
                name,
                f"{what} by distance, all heads",
                "Averaged over tokens whose memory is full: each row a head, layer by "
                "layer from above, each column a distance, the token itself at the right.",
                labels=("tokens back", "head"),
                x_ends=[distances - 1, 0],
                y_ends=[1, layers * heads],
                y_borders=[heads * layer for layer in range(1, layers)],
            )
        )
    mean_LHN, heads = spans.means[ATTENTION], spans.width_LH.shape[1]
    study["numbers"] |= {
        "mean_width": float(spans.width_LH.mean()),
        "greatest_width": float(spans.width_LH.max()),
        "distances": mean_LHN.shape[-1],
    }
    if spans.elsewhere is not None:
        study["numbers"]["attention_on_no_single_token"] = spans.elsewhere
    for layer, head in spans.widest:
        name = head_name(layer, head, heads)
        study["numbers"][f"{name}/width"] = float(spans.width_LH[layer, head])
        values = range(mean_LHN.shape[-1]), mean_LHN[layer, head].tolist()
        study["series"].append(curve(name, *values, "tokens back", "mean attention"))


def _add_example(study, parts: Parts, example: SegmentMaps, heads: int):
    """Adds Figure 6: the widest heads' maps in one segment, and the text with tokens marked.

    heads: of a layer.
    """
    for wide in example.heads:
        name = head_name(wide.layer, wide.head, heads)
        key = f"wide_{wide.layer + 1}_{wide.head + 1}"
        study["arrays"][key] = wide.map_XJ.astype(np.float32)
        study["maps"].append(
            _map(
                key,
                f"A wide head at a random place: {name}",
                f"Each row a token of a segment of document {example.document}, from token "
                f"{example.offset} on; each column what it looks at, memory left of the line. Red: "
                "the fifth of the memory with most attention.",
                labels=("key", "token"),
                x_ends=[-parts.cache, parts.tokens - 1],
                y_ends=[0, parts.tokens - 1],
                x_borders=[parts.cache],
            )
            | {"marked": wide.marked}
        )
        study["texts"].append(
            {
                "title": f"{name}: memory with the most attention",
                "parts": [[text, marked] for text, marked in wide.tokens],
            }
        )


# Lines.


def _clauses(found: AttentionMaps, block: BlockLines):
    line = block.line
    if block.is_line:
        what = f"{'a' if line.direction == 'diagonal' else 'an'} {line.direction}"
        yield (
            f"{_where(found, block.straight)} {block.block} along {what}: {line.mass:.3f} of its "
            f"rows' attention (even {line.chance:.3f})"
        )
    else:
        yield (
            f"no head {block.block} along a line ({line.mass:.3f} of the rows' attention at most, "
            f"even {line.chance:.3f})"
        )
    if block.is_one_key:
        yield (
            f"{_where(found, block.sharp)} {block.block} one key a row, in an order of its own: "
            f"{block.on_one_key:.3f} of each row's attention"
        )


def _where(found: AttentionMaps, at: Head) -> str:
    segment = f"segment {at.segment + 1}, " if found.of_samples else ""
    return segment + head_name(at.layer, at.head, found.maps[0].shape[1])


def _add_block(study, found: AttentionMaps, block: BlockLines):
    """Adds a block's numbers, and the maps of the heads that hold a line or one key a row."""
    line, words = block.line, block.block.replace(" ", "_")
    study["numbers"] |= {
        f"{words}/mass_on_line": line.mass,
        f"{words}/chance": line.chance,
        f"{words}/offset": line.offset,
        f"{words}/mass_on_one_key": block.on_one_key,
    }
    if block.is_line:
        told = f"{line.direction.capitalize()}: {line.mass:.3f}, even {line.chance:.3f}."
        _add_map(study, found, block.straight, block.block, told)
    if block.is_one_key:
        told = f"Each row's most attended key in the block: {block.on_one_key:.3f}."
        _add_map(study, found, block.sharp, block.block, told)


def _add_map(study, found: AttentionMaps, at: Head, name, told):
    """Adds a head's whole map, once."""
    key = f"map_{at.segment + 1}_{at.layer + 1}_{at.head + 1}"
    if key in study["arrays"]:
        return
    map_XJ, parts = found.maps[at.segment][at.layer, at.head], found.parts
    study["arrays"][key] = map_XJ.astype(np.float32)
    where = _where(found, at)
    queries, keys = map_XJ.shape
    study["maps"].append(
        _map(
            key,
            f"{where[:1].upper()}{where[1:]} {name}",
            f"Averaged over {'samples' if found.of_samples else 'segments'}; rows are "
            f"queries, columns keys: {_legend(parts)}. {told}",
            labels=("key", "query"),
            x_ends=[-parts.cache, keys - parts.cache - 1],
            y_ends=[0, queries - 1],
            x_borders=parts.borders(),
            y_borders=[b - parts.cache for b in parts.borders() if b > parts.cache],
        )
    )


def _legend(parts: Parts):
    names = {"cache": "cache", "read": "memory", "tokens": "tokens", "write": "memory written"}
    shown = (f"{count} {names[n]}" for n, count in zip(parts._fields, parts) if count)
    return ", ".join(shown)


def _map(
    array, title, caption, labels, x_ends, y_ends, x_borders=(), y_borders=()
) -> dict[str, Any]:
    """Returns one of the "maps": how an array is drawn."""
    return {
        "array": array,
        "title": title,
        "caption": caption,
        "x_label": labels[0],
        "y_label": labels[1],
        "x_ends": x_ends,
        "y_ends": y_ends,
        "x_borders": list(x_borders),
        "y_borders": list(y_borders),
    }
