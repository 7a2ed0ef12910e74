"""Measures what the heads of a model attend to.

Without memory tokens: attention by distance (Figure 5 of the Transformer-XL paper), the widest
heads in a random segment (Figure 6), and the softmax of single terms (Figure 7). With memory
tokens, and for tasks: mean maps, and heads that write, read or rewrite memory along a line (Figures
6 and 9 of the RMT paper).

L layers, H heads, X positions of a segment, J keys, N distances in tokens.
"""

from typing import NamedTuple

import numpy as np

from brt.checks import Count, configurable
from brt.data.streams.documents import DocumentPass
from brt.data.streams.ids import check_ids
from brt.data.streams.samples import SamplePass
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.token_text import token_texts
from brt.models.attention_weights import ShowsAttention
from brt.studies.attention_measures import (
    BlockLines,
    Head,
    Parts,
    find_lines,
    most_attended,
    widest_heads,
    width,
)
from brt.studies.attention_reader import ATTENTION, AttentionReader
from brt.studies.study import Content, Runs, Study, add_map, content, curve

NOTHING_READ = (
    "No segment was read with a full cache: read longer documents, or bind a shorter memory_length "
    "in evaluation."
)


class Spans(NamedTuple):
    """Mean attention by distance, over tokens whose cache is full.

    means: `ATTENTION`, and `term_a` and so on for the softmax of one term, to (L, H, N).
    width_LH: number of distances that each head spreads over.
    widest: (layer, head), the widest of the first, middle and last layer.
    elsewhere: share of attention on keys without a distance; None if all keys are tokens.
    """

    means: dict[str, np.ndarray]
    width_LH: np.ndarray
    widest: list[tuple[int, int]]
    elsewhere: float | None


class SegmentMaps(NamedTuple):
    """Maps of the widest heads in one segment drawn at random (Figure 6).

    heads: (layer, head), map (X, J), and the numbers of the keys of the cache with most attention.
    texts: key to text, of the keys that are tokens.
    """

    document: int
    offset: int
    heads: list[tuple[tuple[int, int], np.ndarray, list[int]]]
    texts: dict[int, str]


class AttentionMaps(NamedTuple):
    """Attention of the heads of a model.

    segments: number of segments without padding and with a full cache.
    spans, example: of models without memory tokens that read such segments; else None.
    maps: means (L, H, X, J) of each segment of a sample (`of_samples`), or one of all segments.
    lines: in these maps; empty without memory tokens and samples.
    """

    parts: Parts
    segments: int
    spans: Spans | None
    example: SegmentMaps | None
    maps: list[np.ndarray]
    of_samples: bool
    lines: list[BlockLines]


@configurable
class Attention(Study):
    """Attention of the heads of a model.

    Args:
        tokens: most tokens to read.
    """

    title = "What attention looks at"
    caption = (
        "Darker is more; shades are roots of the numbers. Transformer-XL: nearby tokens get most, "
        "few heads look over the whole memory, term (b) follows the whole and term (d) is flatter "
        "(Figures 5 to 7 of its paper). Memory tokens: the lowest queries write, and where they "
        "hold a line down to the right, tokens are copied in order, to the left in reverse; lines "
        "in the leftmost columns read the memory (Figures 6 and 9 of the RMT paper)."
    )
    any_stream = True

    def __init__(self, tokens: Count = 1_000_000):
        self.tokens = tokens

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int = 0):
        model, layout = run.model, None
        if isinstance(model, ShowsAttention):
            layout = model.attention_layout(run.segment_length)
        if layout is None:
            raise ValueError(
                "--study=attention draws models that show their attention, such as TransformerXL "
                f"and RecurrentMemoryTransformer, and {run.workdir} holds a {type(model).__name__}."
            )
        parts = Parts.of(layout)
        stream = run.stream(documents)
        classes = stream.segments if isinstance(stream, SamplePass) else 1
        most = max(self.tokens // (run.rows * run.segment_length) // classes, 1) * classes
        steps = min(stream.num_steps, most)
        reader = AttentionReader(run, layout)
        chosen = np.random.default_rng([seed, 8]).integers(max(steps, 1))
        totals: list = [0.0] * classes
        counts = np.zeros(classes)
        example = None
        for step in range(steps):
            documents_B, offsets_B = stream.places(step)
            whole_B = _whole(stream, run, step, documents_B, offsets_B)
            mapped_B = whole_B if classes > 1 else whole_B & (offsets_B >= run.segment_length)
            batch = stream.batch(step)
            check_ids(batch, run.store)
            full_B, map_LHXJ = reader.read(batch, whole_B, mapped_B.astype(np.float32))
            totals[step % classes] = totals[step % classes] + map_LHXJ
            counts[step % classes] += mapped_B.sum()
            if example is None and step >= chosen and full_B.any():
                row = int(np.flatnonzero(full_B)[chosen % full_B.sum()])
                example = reader.row(row), int(documents_B[row]), int(offsets_B[row])
        spans = _mean_spans(reader, layout)
        maps = [total / max(count, 1) for total, count in zip(totals, counts)]
        return AttentionMaps(
            parts,
            reader.counted,
            spans,
            _example(run, layout, spans, *example) if spans and example and parts.cache else None,
            maps,
            of_samples=classes > 1,
            lines=find_lines(parts, maps) if parts.read or classes > 1 else [],
        )

    @staticmethod
    def present(result: AttentionMaps) -> Content:
        study = content(
            {"segments": result.segments}, [], summary(result), arrays={}, maps=[], texts=[]
        )
        if result.spans:
            _add_spans(study, result.spans)
            if result.example:
                _add_example(study, result.parts, result.example, result.spans.width_LH.shape[1])
        for block in result.lines:
            _add_block(study, result, block)
        return study


def _whole(stream, run, step, documents_B, offsets_B):
    if isinstance(stream, SamplePass):
        return documents_B >= 0
    if isinstance(stream, DocumentPass):
        ends_B = offsets_B + run.segment_length
        return (documents_B >= 0) & (ends_B <= run.store.lengths_D[np.maximum(documents_B, 0)])
    return (documents_B >= 0) & (step < stream.num_steps - 1)


def _mean_spans(reader, layout) -> Spans | None:
    if not reader.spans or not reader.counted:
        return None
    means = {name: total_LHN / reader.counted for name, total_LHN in reader.spans.items()}
    mean_LHN = means[ATTENTION]
    elsewhere = None
    if None in layout.cache_tokens:
        elsewhere = float(1 - mean_LHN.sum(-1).mean())
    return Spans(means, width(mean_LHN), widest_heads(mean_LHN), elsewhere)


def _example(run, layout, spans, map_LHXJ, document, offset) -> SegmentMaps:
    tokens = {key: token for key, token in enumerate(layout.key_tokens) if token is not None}
    # Inputs are one behind targets; a document's first ones have keys without a text.
    begin, end = offset - 1 + min(tokens.values()), offset - 1 + layout.tokens
    texts = token_texts(run.vocabulary, run.store.tokens(document, max(begin, 0), end))
    first = layout.tokens - len(texts)
    heads = []
    for at in spans.widest:
        marked = most_attended(map_LHXJ[at], len(layout.cache_tokens))
        heads.append((at, map_LHXJ[at], np.flatnonzero(marked).tolist()))
    shown = {key: texts[token - first] for key, token in tokens.items() if token >= first}
    return SegmentMaps(document, offset, heads, shown)


def summary(found: AttentionMaps) -> str:
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
    """Returns the paper's name: heads are numbered from 1 across layers."""
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
    for name, mean_LHN in spans.means.items():
        layers, heads, distances = mean_LHN.shape
        what = "Attention" if name == ATTENTION else f"Softmax of term ({name[-1]}) alone"
        add_map(
            study,
            name,
            mean_LHN.reshape(layers * heads, distances)[:, ::-1],
            f"{what} by distance, all heads",
            "Averaged over tokens whose memory is full: each row a head, layer by layer from "
            "above, each column a distance, the token itself at the right.",
            ("tokens back", "head"),
            ([distances - 1, 0], [1, layers * heads]),
            ([], [heads * layer for layer in range(1, layers)]),
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
    for (layer, head), map_XJ, marked in example.heads:
        name = head_name(layer, head, heads)
        add_map(
            study,
            f"wide_{layer + 1}_{head + 1}",
            map_XJ,
            f"A wide head at a random place: {name}",
            f"Each row a token of a segment of document {example.document}, from token "
            f"{example.offset} on; each column what it looks at, memory left of the line. Red: "
            "the fifth of the memory with most attention.",
            ("key", "token"),
            ([-parts.cache, parts.tokens - 1], [0, parts.tokens - 1]),
            ([parts.cache], []),
            marked=marked,
        )
        shown = [[text, key in marked] for key, text in example.texts.items()]
        title = f"{name}: memory with the most attention"
        study["texts"].append({"title": title, "parts": shown})


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
    line, words = block.line, block.block.replace(" ", "_")
    study["numbers"] |= {
        f"{words}/mass_on_line": line.mass,
        f"{words}/chance": line.chance,
        f"{words}/offset": line.offset,
        f"{words}/mass_on_one_key": block.on_one_key,
    }
    if block.is_line:
        caption = f"{line.direction.capitalize()}: {line.mass:.3f}, even {line.chance:.3f}."
        _add_map(study, found, block.straight, block.block, caption)
    if block.is_one_key:
        caption = f"Each row's most attended key in the block: {block.on_one_key:.3f}."
        _add_map(study, found, block.sharp, block.block, caption)


def _add_map(study, found: AttentionMaps, at: Head, name, caption):
    key = f"map_{at.segment + 1}_{at.layer + 1}_{at.head + 1}"
    if key in study["arrays"]:
        return
    map_XJ, parts = found.maps[at.segment][at.layer, at.head], found.parts
    where, (queries, keys) = _where(found, at), map_XJ.shape
    borders = parts.borders()
    names = ("cache", "memory", "tokens", "memory written")
    legend = ", ".join(f"{count} {name}" for name, count in zip(names, parts) if count)
    add_map(
        study,
        key,
        map_XJ,
        f"{where[:1].upper()}{where[1:]} {name}",
        f"Averaged over {'samples' if found.of_samples else 'segments'}; rows are queries, "
        f"columns keys: {legend}. {caption}",
        ("key", "query"),
        ([-parts.cache, keys - parts.cache - 1], [0, queries - 1]),
        (borders, [border - parts.cache for border in borders if border > parts.cache]),
    )
