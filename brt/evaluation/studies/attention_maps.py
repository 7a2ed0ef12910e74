"""The study `attention`: what Transformer-XL and the Recurrent Memory Transformer look at.

Without memory tokens: the attention of every head by distance, averaged over tokens (Figure 5 of
the Transformer-XL paper); the widest heads at a random place (Figure 6); and the same averages of
the softmax of terms (a), (b) and (d) alone (Figure 7). Of models with memory tokens, and of all
that solve tasks: maps averaged over samples, the heads that write to memory, read from it, rewrite
it or read the cache along a line, and how much of their attention lies on it (Figures 6 and 9 of
the RMT paper).

L layers, H heads, T tokens of a segment, X positions with memory tokens, J keys, N segments.
"""

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.streams.ids import check_ids
from brt.data.streams.select import evaluation_pass
from brt.evaluation.reading import to_host
from brt.evaluation.studies.attention_lines import Parts, add_lines, head_name
from brt.evaluation.studies.attention_measures import (
    by_distance,
    most_attended,
    widest_heads,
    width,
)
from brt.evaluation.token_text import token_texts
from brt.models.caches import reset_rows

TERMS = {"a": "content_BHTJ", "b": "position_BHTJ", "d": "position_bias_BHTJ"}
"""The terms of Figure 7; (c), what is liked wherever it stands, is left out there too."""


class Looker:
    """A model compiled to look at segments, and what it has looked at so far, summed.

    Args:
        run: a `RecordedRun`.

    Attributes:
        parts: the `Parts` of its maps.
        spans: name to (L, H, J) mean attention by distance, summed over `counted` segments whose
            cache is full; of models without memory tokens.
    """

    def __init__(self, run):
        self.params, self.caches = run.params, None
        self.rows, self.parts = run.rows, Parts.of(run.model, run.segment_length)
        self.spans, self.counted = {}, 0

        def bind(params):
            return run.experiment.bind_evaluated(params, run.segment_length)

        self._init = jax.jit(lambda params: bind(params).init_caches(run.rows))

        def step(params, caches, inputs_BT, starts_B, whole_B, mapped_B):
            model = bind(params)
            caches = reset_rows(caches, model.init_caches(run.rows), starts_B)
            full_B = whole_B & (caches[0].count_B >= model.memory_length)
            looks, _, after = model.look(inputs_BT, caches)
            maps = [jnp.einsum("BHXJ,B->HXJ", look.weights_BHTJ, mapped_B) for look in looks]
            spans = {}
            if not self.parts.read:
                visible_BTJ = model.visible(caches, run.segment_length)
                spans = _spans(looks, visible_BTJ, full_B, model.encoding)
            return after, full_B, jnp.stack(maps), spans

        self._step = jax.jit(step)

    def look(self, batch, whole_B, mapped_B):
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
        for name, span_LHJ in spans.items():
            self.spans[name] = self.spans.get(name, 0) + np.asarray(span_LHJ, np.float64)
        self.counted += int(full_B.sum())
        return full_B, np.asarray(map_LHXJ, np.float64)

    def row(self, row: int) -> np.ndarray:
        """(L, H, X, J), what a row of the segment read last looked at."""
        caches, batch, whole_B = self.before
        mapped_B = np.arange(self.rows) == row
        arguments = batch.inputs_KBT[0], batch.starts_KB[0], whole_B, mapped_B.astype(np.float32)
        return np.asarray(self._step(self.params, caches, *arguments)[2], np.float64)


def _spans(looks, visible_BTJ, full_B, encoding):
    """Attention by distance, summed over the rows that count; of the terms, if there are any."""

    def total(weights):
        found = [jnp.einsum("BHJ,B->HJ", by_distance(w), full_B.astype(w.dtype)) for w in weights]
        return jnp.stack(found)

    spans = {"attention": total([look.weights_BHTJ for look in looks])}
    if encoding not in ("relative", "shaw"):
        return spans
    for name, field in TERMS.items():
        terms = [getattr(look.terms, field) for look in looks]
        alone = [jnp.where(visible_BTJ[:, None], term, -jnp.inf) for term in terms]
        spans[f"term_{name}"] = total([jax.nn.softmax(term, axis=-1) for term in alone])
    return spans


def attention(run, documents, seed: int, tokens: int) -> dict:
    """What the heads of a model look at.

    Args:
        run: a `RecordedRun` of a model that has `look`.
        documents: that are read, of a stream of documents; others are read from their beginning.
        seed: decides the random place.
        tokens: that are read at most.

    Returns:
        "numbers", "series" and "verdict" of a study; "arrays", NumPy arrays by name, for a file
        of their own; "maps", figures of them; and "texts", tokens that are marked or not.

    Raises:
        ValueError: a model of another kind.
    """
    if not hasattr(run.model, "look"):
        raise ValueError(
            f"--study=attention looks at TransformerXL and RecurrentMemoryTransformer, and "
            f"{run.workdir} holds a {type(run.model).__name__}."
        )
    kind = run.experiment.trainer.stream
    stream = evaluation_pass(kind, run.store, run.rows, run.segment_length)
    if kind == "documents":
        stream = type(stream)(run.store, run.rows, run.segment_length, documents=documents)
    classes = stream.segments if kind == "samples" else 1
    most = max(tokens // (run.rows * run.segment_length) // classes, 1) * classes
    steps = min(stream.num_steps, most)
    looker = Looker(run)
    chosen = np.random.default_rng([seed, 8]).integers(max(steps, 1))
    maps, counts, place = [0.0] * classes, np.zeros(classes), None
    for step in range(steps):
        documents_B, offsets_B = stream.places(step)
        whole_B = _whole(kind, stream, run, step, documents_B, offsets_B)
        mapped_B = whole_B if classes > 1 else whole_B & (offsets_B >= run.segment_length)
        batch = stream.batch(step)
        check_ids(batch, run.store)
        full_B, map_LHXJ = looker.look(batch, whole_B, mapped_B.astype(np.float32))
        maps[step % classes] = maps[step % classes] + map_LHXJ
        counts[step % classes] += mapped_B.sum()
        if place is None and step >= chosen and full_B.any():
            row = int(np.flatnonzero(full_B)[chosen % full_B.sum()])
            place = looker.row(row), int(documents_B[row]), int(offsets_B[row])
    found = {"numbers": {"segments": looker.counted}, "series": [], "arrays": {}, "maps": []}
    found |= {"texts": [], "verdict": ""}
    if looker.spans and looker.counted:
        _add_spans(found, run, looker)
        if place and looker.parts.cache:
            _add_wide_heads(found, run, looker, place)
    if looker.parts.read or classes > 1:
        means = [total / max(count, 1) for total, count in zip(maps, counts)]
        add_lines(found, looker.parts, means, classes)
    if not found["verdict"]:
        found["verdict"] = (
            "No segment was read with a full cache: read longer documents, or bind a shorter "
            "memory_length in evaluation."
        )
    return found


def _whole(kind, stream, run, step, documents_B, offsets_B):
    """Rows whose segment is without padding."""
    if kind == "samples":
        return documents_B >= 0
    if kind == "documents":
        ends_B = offsets_B + run.segment_length
        return (documents_B >= 0) & (ends_B <= run.store.lengths_D[np.maximum(documents_B, 0)])
    return (documents_B >= 0) & (step < stream.num_steps - 1)


def _add_spans(found, run, looker):
    """Figures 5 and 7: attention by distance, of all terms together and of three alone."""
    for name, total_LHJ in looker.spans.items():
        mean_LHJ = total_LHJ / looker.counted
        layers, heads, keys = mean_LHJ.shape
        found["arrays"][name] = mean_LHJ.reshape(layers * heads, keys)[:, ::-1].astype(np.float32)
        what = "Attention" if name == "attention" else f"Softmax of term ({name[-1]}) alone"
        found["maps"].append(
            {
                "array": name,
                "title": f"{what} by distance, all heads",
                "caption": "Averaged over tokens whose memory is full: each row a head, layer by "
                "layer from above, each column a distance, the token itself at the right.",
                "x_label": "tokens back",
                "y_label": "head",
                "x_ends": [keys - 1, 0],
                "y_ends": [1, layers * heads],
                "x_borders": [],
                "y_borders": [heads * layer for layer in range(1, layers)],
            }
        )
    mean_LHJ = looker.spans["attention"] / looker.counted
    width_LH, heads = width(mean_LHJ), mean_LHJ.shape[1]
    found["numbers"] |= {
        "mean_width": float(width_LH.mean()),
        "greatest_width": float(width_LH.max()),
        "distances": mean_LHJ.shape[-1],
    }
    texts = []
    for layer, head in widest_heads(mean_LHJ):
        name = head_name(layer, head, heads)
        found["numbers"][f"{name}/width"] = float(width_LH[layer, head])
        texts.append(f"{name} ({width_LH[layer, head]:,.0f})")
        found["series"].append(
            {
                "name": name,
                "x": list(range(mean_LHJ.shape[-1])),
                "y": mean_LHJ[layer, head].tolist(),
                "x_label": "tokens back",
                "y_label": "mean attention",
            }
        )
    found["verdict"] = (
        f"Widest heads of the first, middle and last layer, by e^entropy of their mean attention "
        f"over {mean_LHJ.shape[-1]:,} distances: {', '.join(texts)}; "
        f"{width_LH.mean():,.0f} on average."
    )


def _add_wide_heads(found, run, looker, place):
    """Figure 6: the widest heads' maps at a random place, and the text with tokens marked."""
    map_LHXJ, document, offset = place
    parts, heads = looker.parts, map_LHXJ.shape[1]
    first = offset - parts.cache - 1  # of the keys, in the document: inputs are one behind targets
    tokens = run.store.tokens(document)[max(first, 0) : offset + parts.tokens - 1]
    texts = token_texts(run.vocabulary, tokens)[-(parts.cache + parts.tokens) :]
    mean_LHJ = looker.spans["attention"] / looker.counted
    for layer, head in widest_heads(mean_LHJ):
        name, map_TJ = head_name(layer, head, heads), map_LHXJ[layer, head]
        key = f"wide_{layer + 1}_{head + 1}"
        marked_M = most_attended(map_TJ, parts.cache)
        found["arrays"][key] = map_TJ.astype(np.float32)
        found["maps"].append(
            {
                "array": key,
                "title": f"A wide head at a random place: {name}",
                "caption": f"Each row a token of a segment of document {document}, from token "
                f"{offset} on; each column what it looks at, memory left of the line. Red: the "
                "fifth of the memory with most attention.",
                "x_label": "key",
                "y_label": "token",
                "x_ends": [-parts.cache, parts.tokens - 1],
                "y_ends": [0, parts.tokens - 1],
                "x_borders": [parts.cache],
                "y_borders": [],
                "marked": np.flatnonzero(marked_M).tolist(),
            }
        )
        missing = parts.cache + parts.tokens - len(texts)
        flags = marked_M[missing:].tolist() + [False] * parts.tokens
        found["texts"].append(
            {
                "title": f"{name}: memory with the most attention",
                "parts": [[text, bool(flag)] for text, flag in zip(texts, flags)],
            }
        )
