"""The study `attention`: what the heads of a model attend to.

Without memory tokens: the attention of every head by distance, averaged over tokens (Figure 5 of
the Transformer-XL paper); the widest heads in a random segment (Figure 6); and the same averages of
the softmax of terms (a), (b) and (d) alone (Figure 7). Of models with memory tokens, and of all
that solve tasks: maps averaged over samples, the heads that write to memory, read from it, rewrite
it or read the cache along a line, and how much of their attention lies on it (Figures 6 and 9 of
the RMT paper).

L layers, H heads, X positions of a segment, J keys, N distances in tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.streams.batch import Batch
from brt.data.streams.documents import DocumentPass
from brt.data.streams.ids import check_ids
from brt.data.streams.samples import SamplePass
from brt.evaluation.reading import to_host
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.token_text import token_texts
from brt.models.attention_weights import AttentionLayout, AttentionWeights, ShowsAttention
from brt.models.caches import reset_rows
from brt.studies.attention_lines import BlockLines, Parts, find_lines
from brt.studies.attention_measures import (
    by_distance,
    keys_at_distances,
    most_attended,
    widest_heads,
    width,
)

UNUSED_TERM = "c"
"""The term that is the same at any distance: left out in Figure 7."""
ATTENTION = "attention"
"""Name of the attention of all terms together among `Spans.means`."""


class Spans(NamedTuple):
    """Mean attention by distance, over tokens whose cache is full.

    means: `ATTENTION`, and `term_a` and so on of the softmax of one term alone, to (L, H, N).
    width_LH: number of distances that each head spreads over.
    widest: (layer, head), the widest of the first, middle and last layer.
    elsewhere: share of the attention on keys that are no single token, and so at no distance; None
        if all keys are tokens.
    """

    means: dict[str, np.ndarray]
    width_LH: np.ndarray
    widest: list[tuple[int, int]]
    elsewhere: float | None


class WideHead(NamedTuple):
    """The map of a wide head in one segment (Figure 6).

    layer, head: counted from 0.
    map_XJ: its weights.
    marked: numbers of the keys of the cache with most attention.
    tokens: text of each key that is a token, and whether it is marked.
    """

    layer: int
    head: int
    map_XJ: np.ndarray
    marked: list[int]
    tokens: list[tuple[str, bool]]


class SegmentMaps(NamedTuple):
    """Maps of the widest heads in one segment drawn at random.

    document, offset: number of its document, and the index of its first token there.
    """

    document: int
    offset: int
    heads: list[WideHead]


class AttentionMaps(NamedTuple):
    """Measures of what the heads of a model attend to.

    parts: of the maps.
    segments: number of segments read without padding and with a full cache.
    spans: of models without memory tokens, if there were such segments; else None.
    example: likewise, of models with a cache.
    maps: (L, H, X, J) of each segment of a sample, or one of all segments of texts; means.
    of_samples: whether segments of samples are told apart.
    lines: lines in these maps; none where neither memory tokens nor samples were read.
    """

    parts: Parts
    segments: int
    spans: Spans | None
    example: SegmentMaps | None
    maps: list[np.ndarray]
    of_samples: bool
    lines: list[BlockLines]


class AttentionReader:
    """A model compiled to read segments with their attention weights, and sums of what it has read.

    Args:
        run: of a model that shows its attention.
        layout: of its segments.

    Attributes:
        spans: name to (L, H, N) attention by distance, summed over `counted` segments whose cache
            is full; of models without memory tokens.
    """

    def __init__(self, run: RecordedRun, layout: AttentionLayout):
        self.params = run.params
        self.rows = run.rows
        self.caches = None
        self.spans: dict[str, np.ndarray] = {}
        self.counted = 0
        has_spans = not layout.read and not layout.write
        key_XN = keys_at_distances(layout) if has_spans else None

        def bind(params):
            return run.experiment.bind_evaluated(params, run.segment_length)

        self._init = jax.jit(lambda params: bind(params).init_caches(run.rows))

        def step(params, caches, inputs_BT, starts_B, whole_B, mapped_B):
            model = bind(params)
            caches = reset_rows(caches, model.init_caches(run.rows), starts_B)
            found, _, after = model.attention_weights(inputs_BT, caches)
            full_B = whole_B & found.full_B
            maps = [jnp.einsum("BHXJ,B->HXJ", w_BHXJ, mapped_B) for w_BHXJ in found.weights]
            spans = {} if key_XN is None else _spans(found, full_B, key_XN)
            return after, full_B, jnp.stack(maps), spans

        self._step = jax.jit(step)

    def read(
        self, batch: Batch, whole_B: np.ndarray, mapped_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads one segment.

        Args:
            batch: K = 1.
            whole_B: rows without padding, which count.
            mapped_B: float, the weight of each row in the map.

        Returns:
            full_B, rows that count and whose cache is full; and (L, H, X, J), the map.
        """
        if self.caches is None:
            self.caches = self._init(self.params)
        self.before = self.caches, batch, whole_B
        arguments = batch.inputs_KBT[0], batch.starts_KB[0], whole_B, mapped_B
        self.caches, full_B, map_LHXJ, spans = self._step(self.params, self.caches, *arguments)
        full_B = to_host(full_B)
        for name, span_LHN in spans.items():
            self.spans[name] = self.spans.get(name, 0) + np.asarray(span_LHN, np.float64)
        self.counted += int(full_B.sum())
        return full_B, np.asarray(map_LHXJ, np.float64)

    def row(self, row: int) -> np.ndarray:
        """Returns the map of one row of the segment read last, (L, H, X, J)."""
        caches, batch, whole_B = self.before
        mapped_B = np.arange(self.rows) == row
        arguments = batch.inputs_KBT[0], batch.starts_KB[0], whole_B, mapped_B.astype(np.float32)
        return np.asarray(self._step(self.params, caches, *arguments)[2], np.float64)


def _spans(found: AttentionWeights, full_B, key_XN):
    """Returns attention by distance, of all terms and of single ones, summed over counted rows."""

    def total(weights):
        sums = [
            jnp.einsum("BHN,B->HN", by_distance(w_BHXJ, key_XN), full_B.astype(w_BHXJ.dtype))
            for w_BHXJ in weights
        ]
        return jnp.stack(sums)

    spans = {ATTENTION: total(found.weights)}
    for name in found.terms[0]:
        if name != UNUSED_TERM:
            visible_B1XJ = found.visible_BXJ[:, None]
            alone = [jnp.where(visible_B1XJ, terms[name], -jnp.inf) for terms in found.terms]
            spans[f"term_{name}"] = total([jax.nn.softmax(term, axis=-1) for term in alone])
    return spans


def attention(run: RecordedRun, documents: np.ndarray, seed: int, tokens: int) -> AttentionMaps:
    """Measures what the heads of a model attend to.

    Args:
        run: of a model that shows its attention.
        documents: that are read, of a stream of documents; others are read from their beginning.
        seed: decides the random segment.
        tokens: that are read at most.

    Raises:
        ValueError: a model of another kind.
    """
    model, layout = run.model, None
    if isinstance(model, ShowsAttention):
        layout = model.attention_layout(run.segment_length)
    if layout is None:
        raise ValueError(
            f"--study=attention draws models that show their attention, such as TransformerXL and "
            f"RecurrentMemoryTransformer, and {run.workdir} holds a {type(model).__name__}."
        )
    parts = Parts.of(layout)
    stream = run.stream(documents)
    classes = stream.segments if isinstance(stream, SamplePass) else 1
    most = max(tokens // (run.rows * run.segment_length) // classes, 1) * classes
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
        _example(run, layout, spans, example) if spans and example and parts.cache else None,
        maps,
        of_samples=classes > 1,
        lines=find_lines(parts, maps) if parts.read or classes > 1 else [],
    )


def _whole(stream, run, step, documents_B, offsets_B):
    """Returns the rows whose segment is without padding."""
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


def _example(run, layout, spans, example) -> SegmentMaps:
    map_LHXJ, document, offset = example
    cached = len(layout.cache_tokens)
    keys = [(key, token) for key, token in enumerate(layout.key_tokens) if token is not None]
    lowest = min(token for _, token in keys)
    first = offset + lowest - 1  # inputs are one behind targets
    tokens = run.store.tokens(document, max(first, 0), offset + layout.tokens - 1)
    texts = token_texts(run.vocabulary, tokens)[-(layout.tokens - lowest) :]
    missing = layout.tokens - lowest - len(texts)
    heads = []
    for layer, head in spans.widest:
        map_XJ = map_LHXJ[layer, head]
        marked = np.flatnonzero(most_attended(map_XJ, cached)).tolist()
        shown = [
            (texts[token - lowest - missing], key in marked)
            for key, token in keys
            if token - lowest >= missing
        ]
        heads.append(WideHead(layer, head, map_XJ, marked, shown))
    return SegmentMaps(document, offset, heads)
