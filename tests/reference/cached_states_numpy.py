"""Cached states as plain loops in NumPy float64: one token, one head and one state at a time.

Memory Caching (arXiv:2602.24281, gated residual memory) over the layers of `delta_layers_numpy`;
sums of segments as in a Fenwick tree after log-linear attention (arXiv:2506.04761).
"""

import delta_layers_numpy
import numpy as np


class Segment:
    """A state (H, K, K), and the keys (H, K) of the tokens that made it."""

    def __init__(self, S_HKK, keys):
        self.S_HKK, self.keys = S_HKK, keys

    def __add__(self, other):
        return Segment(self.S_HKK + other.S_HKK, [*self.keys, *other.keys])


def counted(segments, most):
    """Sums of segments by a binary counter, oldest first: [(number of segments, their sum)].

    Written as merging of equal neighbours, from the newest on; at most 2 ** (most - 1) of them are
    merged with equals, all older ones are one.
    """
    found = []
    for segment in segments:
        found.append((1, segment))
        while len(found) > 1 and found[-1][0] == found[-2][0] < 2 ** (most - 1):
            (n, newer), (m, older) = found.pop(), found.pop()
            found.append((n + m, older + newer))
        while len(found) > 1 and found[-2][0] >= 2 ** (most - 1) <= found[-1][0]:
            (n, newer), (m, older) = found.pop(), found.pop()
            found.append((n + m, older + newer))
    return [segment for _, segment in found]


class CachedStates:
    """The memory of one layer, around one of `delta_layers_numpy.KINDS`."""

    sees_inputs = True

    def __init__(self, module, num_heads, kind, most, merged, length, chosen):
        self.u_DA, self.H = module["gate_queries_DA"], num_heads
        self.inner = delta_layers_numpy.KINDS[kind](module["memory"], num_heads)
        self.most, self.merged, self.length, self.chosen = most, merged, length, chosen

    def begin(self):
        """The current segment, all segments before it, and projections of all tokens."""
        K = self.u_DA.shape[1] // self.H
        return Segment(np.zeros((self.H, K, K)), []), [], ([], [], [])

    def token(self, state, x_D):
        current, before, inputs = state
        (q_HK, k_HK, v_HK), inputs = self.inner.heads(inputs, x_D)
        S_HKK = current.S_HKK.copy()
        for h in range(self.H):
            S_HKK[h] = self.inner.next_state(S_HKK[h], h, k_HK[h], v_HK[h], x_D)
        current = Segment(S_HKK, [*current.keys, k_HK])
        kept = counted(before, self.most) if self.merged else before[-self.most :]
        u_HK, read_HK = (x_D @ self.u_DA).reshape(self.H, -1), np.zeros_like(q_HK)
        for h in range(self.H):
            scores = [u_HK[h] @ np.mean([k[h] for k in s.keys], axis=0) for s in (current, *kept)]
            ranks = sorted(range(1, len(scores)), key=lambda i, s=scores: -s[i])
            read = [0, *(ranks[: self.chosen] if self.chosen else ranks)]
            weights = np.exp([scores[i] for i in read])
            for i, weight in zip(read, weights / weights.sum()):
                read_HK[h] += weight * (q_HK[h] @ (current, *kept)[i].S_HKK[h])
        if len(current.keys) == self.length:
            before = [*before, current]
            current = Segment(0 * S_HKK if self.merged else S_HKK, [])
        return self.inner.output(read_HK, x_D), (current, before, inputs)


class CachedStatesReader(delta_layers_numpy.DeltaLayersReader):
    """A Block-Recurrent stack with cached states in some layers."""

    def __init__(self, params, settings, *options):
        super().__init__(params, settings)
        self.options = options

    def module(self, layer):
        return CachedStates(layer["cached_states"], self.settings.num_heads, *self.options)

    def begin_layer(self, layer):
        return self.module(layer).begin()
