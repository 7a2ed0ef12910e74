"""Runs segments and sums their attention weights.

L layers, H heads, X positions of a segment, J keys, N distances in tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.streams.batch import Segment
from brt.evaluation.recorded_run import RecordedRun
from brt.models.attention_weights import AttentionLayout, AttentionWeights
from brt.models.caches import select_rows
from brt.studies.attention_measures import by_distance, keys_at_distances
from brt.training.sharding import to_host

UNUSED_TERM = "c"
"""The term that is equal at all distances, left out in Figure 7."""
ATTENTION = "attention"


class AttentionReader:
    """A compiled model that returns attention weights, and their sums.

    spans: name to (L, H, N) attention by distance, summed over `counted` segments with a full
        cache; of models without memory tokens.
    """

    def __init__(self, run: RecordedRun, layout: AttentionLayout):
        self.params = run.params
        self.rows = run.rows
        self.caches = run.reader.empty(run.params)
        self.spans: dict[str, np.ndarray] = {}
        self.counted = 0
        has_spans = not layout.read and not layout.write
        key_XN = keys_at_distances(layout) if has_spans else None

        def step(params, caches, inputs_BT, starts_B, whole_B, mapped_B):
            model: Any = run.experiment.bind_evaluated(params, run.segment_length)
            caches = select_rows(starts_B, model.init_caches(run.rows), caches)
            weights, _, after = model.attention_weights(inputs_BT, caches)
            full_B = whole_B & weights.full_B
            maps = [jnp.einsum("BHXJ,B->HXJ", w_BHXJ, mapped_B) for w_BHXJ in weights.weights]
            spans = {} if key_XN is None else _spans(weights, full_B, key_XN)
            return after, full_B, jnp.stack(maps), spans

        self._step = jax.jit(step)

    def read(
        self, segment: Segment, whole_B: np.ndarray, mapped_B: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Runs one segment.

        whole_B: batch elements without padding, which count. mapped_B: their weights in the map.

        Returns:
            full_B, batch elements that count and whose cache is full; and the map, (L, H, X, J).
        """
        self.before = self.caches, segment, whole_B
        arguments = segment.inputs_BT, segment.starts_B, whole_B, mapped_B
        self.caches, full_B, map_LHXJ, spans = self._step(self.params, self.caches, *arguments)
        full_B = to_host(full_B)
        for name, span_LHN in spans.items():
            self.spans[name] = self.spans.get(name, 0) + to_host(span_LHN).astype(np.float64)
        self.counted += int(full_B.sum())
        return full_B, to_host(map_LHXJ).astype(np.float64)

    def row(self, row: int) -> np.ndarray:
        caches, segment, whole_B = self.before
        mapped_B = np.arange(self.rows) == row
        arguments = segment.inputs_BT, segment.starts_B, whole_B, mapped_B.astype(np.float32)
        return to_host(self._step(self.params, caches, *arguments)[2]).astype(np.float64)


def _spans(weights: AttentionWeights, full_B, key_XN):
    def total(weights):
        sums = [
            jnp.einsum("BHN,B->HN", by_distance(w_BHXJ, key_XN), full_B.astype(w_BHXJ.dtype))
            for w_BHXJ in weights
        ]
        return jnp.stack(sums)

    spans = {ATTENTION: total(weights.weights)}
    for name in weights.terms[0]:
        if name != UNUSED_TERM:
            visible_B1XJ = weights.visible_BXJ[:, None]
            alone = [jnp.where(visible_B1XJ, terms[name], -jnp.inf) for terms in weights.terms]
            spans[f"term_{name}"] = total([jax.nn.softmax(term, axis=-1) for term in alone])
    return spans
