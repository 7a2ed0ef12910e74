"""Attention of the heads of a model.

Without memory tokens: attention by distance (Figure 5 of the Transformer-XL paper), the widest
heads in a random segment (Figure 6), and the softmax of single terms (Figure 7). With memory
tokens, and for tasks: mean maps, and heads that write, read or rewrite memory along a line (Figures
6 and 9 of the RMT paper).

L layers, H heads, X positions of a segment, J keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brt.checks import Count, configurable
from brt.data.streams.documents import DocumentPass
from brt.data.streams.samples import SamplePass
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.words import token_texts
from brt.models.attention_weights import ShowsAttention
from brt.studies.attention_measures import (
    CLEAR,
    SHARP,
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


@configurable
@dataclass(eq=False)
class Attention(Study):
    """Attention of the heads of a model."""

    title = "What attention looks at"
    caption = (
        "Darker is more; shades are roots of the numbers. Transformer-XL: nearby tokens get most, "
        "few heads look over the whole memory, term (b) follows the whole and term (d) is flatter "
        "(Figures 5 to 7 of its paper). Memory tokens: the lowest queries write, and where they "
        "hold a line down to the right, tokens are copied in order, to the left in reverse; lines "
        "in the leftmost columns read the memory (Figures 6 and 9 of the RMT paper)."
    )
    any_stream = True

    tokens: Count = 1_000_000

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        model, layout = run.model, None
        if isinstance(model, ShowsAttention):
            layout = model.attention_layout(run.segment_length)
        if layout is None:
            raise ValueError(
                "--study=attention draws models that show their attention, such as TransformerXL "
                f"and RecurrentMemoryTransformer, and {run.workdir} holds a {type(model).__name__}."
            )
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
            documents_B, offsets_B = stream.positions(step)
            whole_B = _whole(stream, run, step, documents_B, offsets_B)
            mapped_B = whole_B if classes > 1 else whole_B & (offsets_B >= run.segment_length)
            batch = stream.batch(step)
            full_B, map_LHXJ = reader.read(batch.segment(0), whole_B, mapped_B.astype(np.float32))
            totals[step % classes] = totals[step % classes] + map_LHXJ
            counts[step % classes] += mapped_B.sum()
            if example is None and step >= chosen and full_B.any():
                row = int(np.flatnonzero(full_B)[chosen % full_B.sum()])
                example = reader.row(row), int(documents_B[row]), int(offsets_B[row])
        maps = [total / max(count, 1) for total, count in zip(totals, counts)]
        parts = Parts.of(layout)
        study = content({"segments": reader.counted}, [], "", arrays={}, maps=[], texts=[])
        if reader.spans and reader.counted:
            widest = _add_spans(study, reader, layout)
            if example and parts.cache:
                _add_example(study, run, layout, widest, *example)
        if (parts.read or classes > 1) and counts.any():
            add_lines(study, parts, maps, of_samples=classes > 1)
        study["summary"] = study["summary"] or NOTHING_READ
        return study


def _whole(stream, run, step, documents_B, offsets_B):
    if isinstance(stream, SamplePass):
        return documents_B >= 0
    if isinstance(stream, DocumentPass):
        ends_B = offsets_B + run.segment_length
        return (documents_B >= 0) & (ends_B <= run.store.lengths_D[np.maximum(documents_B, 0)])
    return (documents_B >= 0) & (step < stream.num_steps - 1)


def head_name(layer: int, head: int, heads: int) -> str:
    """Returns the paper's name: heads are numbered from 1 across layers."""
    return f"layer {layer + 1}, head {layer * heads + head + 1}"


def _add_spans(study, reader, layout):
    means = {name: total_LHN / reader.counted for name, total_LHN in reader.spans.items()}
    for name, mean_LHN in means.items():
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
    mean_LHN = means[ATTENTION]
    width_LH, widest = width(mean_LHN), widest_heads(mean_LHN)
    numbers = {
        "mean_width": float(width_LH.mean()),
        "greatest_width": float(width_LH.max()),
        "distances": distances,
    }
    names = [head_name(layer, head, heads) for layer, head in widest]
    shown = [f"{name} ({width_LH[at]:,.0f})" for name, at in zip(names, widest)]
    summary = (
        f"Widest heads of the first, middle and last layer, by e^entropy of their mean attention "
        f"over {distances:,} distances: {', '.join(shown)}; {width_LH.mean():,.0f} on average."
    )
    if None in layout.cache_tokens:
        elsewhere = numbers["attention_on_no_single_token"] = float(1 - mean_LHN.sum(-1).mean())
        summary += f" {elsewhere:.1%} of the attention is on keys that are not single tokens."
    for name, at in zip(names, widest):
        numbers[f"{name}/width"] = float(width_LH[at])
        values = range(distances), mean_LHN[at].tolist()
        study["series"].append(curve(name, *values, "tokens back", "mean attention"))
    study["numbers"] |= numbers
    study["summary"] = summary
    return widest


def _add_example(study, run, layout, widest, map_LHXJ, document, offset):
    tokens = {key: token for key, token in enumerate(layout.key_tokens) if token is not None}
    # Inputs are one behind targets; those of other documents have no text.
    first = max(min(tokens.values()), 1 - offset)
    end = offset - 1 + layout.tokens
    texts = token_texts(run.vocabulary, run.store.tokens(document, offset - 1 + first, end))
    places = {key: token - first for key, token in tokens.items()}
    shown = {key: texts[at] for key, at in places.items() if 0 <= at < len(texts)}
    cache = len(layout.cache_tokens)
    for layer, head in widest:
        map_XJ = map_LHXJ[layer, head]
        marked = np.flatnonzero(most_attended(map_XJ, cache)).tolist()
        name = head_name(layer, head, map_LHXJ.shape[1])
        add_map(
            study,
            f"wide_{layer + 1}_{head + 1}",
            map_XJ,
            f"A wide head in a random segment: {name}",
            f"Each row a token of a segment of document {document}, from token {offset} on; each "
            "column what it looks at, memory left of the line. Red: the fifth of the memory with "
            "most attention.",
            ("key", "token"),
            ([-cache, layout.tokens - 1], [0, layout.tokens - 1]),
            ([cache], []),
            marked=marked,
        )
        parts = [[text, key in marked] for key, text in shown.items()]
        study["texts"].append({"title": f"{name}: memory with the most attention", "parts": parts})


def add_lines(study: Content, parts: Parts, maps: Sequence[np.ndarray], of_samples: bool) -> None:
    """Adds the heads that attend along lines, or to one key a row.

    maps: means (L, H, X, J) of each segment of a sample (`of_samples`), or one of all segments.
    """

    def name_of(at: Head) -> str:
        segment = f"segment {at.segment + 1}, " if of_samples else ""
        return segment + head_name(at.layer, at.head, maps[0].shape[1])

    def add(at: Head, block, caption):
        key = f"map_{at.segment + 1}_{at.layer + 1}_{at.head + 1}"
        if key not in study["arrays"]:
            map_XJ, name = maps[at.segment][at.layer, at.head], name_of(at)
            title = f"{name[:1].upper()}{name[1:]} {block}"
            _add_mean_map(study, key, map_XJ, title, parts, of_samples, caption)

    clauses = []
    for block, straight, line, sharp, on_one_key in find_lines(parts, maps):
        words = block.replace(" ", "_")
        study["numbers"] |= {
            f"{words}/mass_on_line": line.mass,
            f"{words}/chance": line.chance,
            f"{words}/offset": line.offset,
            f"{words}/mass_on_one_key": on_one_key,
        }
        even = f"even {line.chance:.3f}"
        if line.mass >= CLEAR * line.chance:
            what = f"{'a' if line.direction == 'diagonal' else 'an'} {line.direction}"
            clauses.append(
                f"{name_of(straight)} {block} along {what}: {line.mass:.3f} of its rows' attention "
                f"({even})"
            )
            add(straight, block, f"{line.direction.capitalize()}: {line.mass:.3f}, {even}.")
        else:
            clauses.append(
                f"no head {block} along a line ({line.mass:.3f} of the rows' attention at most, "
                f"{even})"
            )
        if on_one_key >= SHARP > line.mass:
            clauses.append(
                f"{name_of(sharp)} {block} one key a row, in an order of its own: {on_one_key:.3f} "
                "of each row's attention"
            )
            add(sharp, block, f"Each row's most attended key in the block: {on_one_key:.3f}.")
    if text := "; ".join(clauses):
        study["summary"] = f"{study['summary']} {text[:1].upper()}{text[1:]}.".lstrip()


def _add_mean_map(study, key, map_XJ, title, parts, of_samples, caption):
    queries, keys = map_XJ.shape
    borders = parts.borders()
    names = ("cache", "memory", "tokens", "memory written")
    legend = ", ".join(f"{count} {name}" for name, count in zip(names, parts) if count)
    add_map(
        study,
        key,
        map_XJ,
        title,
        f"Averaged over {'samples' if of_samples else 'segments'}; rows are queries, columns "
        f"keys: {legend}. {caption}",
        ("key", "query"),
        ([-parts.cache, keys - parts.cache - 1], [0, queries - 1]),
        (borders, [border - parts.cache for border in borders if border > parts.cache]),
    )
