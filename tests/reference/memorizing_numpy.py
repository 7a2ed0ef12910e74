"""The external memory as plain loops in NumPy float64, for tests/reference/paper_numpy.py.

Read it beside section 4.5 of the Block-Recurrent paper and section 3 of Memorizing Transformers
(Wu et al. 2022, arXiv:2203.08913); "code" is the released implementation, as described in
shared/golden/README.md section 1. One row, one head, one query, one slot at a time.

Axes as in paper_numpy, and M slots of the memory.
"""

import numpy as np


def empty(settings):
    """One row's memory at the start of a document: no key, no value, nothing written."""
    shape_MHK = settings.size, settings.num_heads, settings.head_size
    return {
        "memory_keys": np.zeros(shape_MHK),
        "memory_values": np.zeros(shape_MHK),
        "written": np.zeros((), int),
    }


def mix(layer, settings, Q_WHK, local_WHK, memory):
    """Results of attention and of the lookup by the same queries: a share for each head (code)."""
    mixed_WHK = np.zeros_like(local_WHK)
    for h, b in enumerate(layer["memory"]["mix_H"]):
        share = 1 / (1 + np.exp(-b))
        for i, q_K in enumerate(Q_WHK[:, h]):
            K_MK, V_MK = memory["memory_keys"][:, h], memory["memory_values"][:, h]
            picked = search(settings, q_K, K_MK)
            # The layer's own scale, no bias; an empty slot that was picked counts (code).
            scores = np.array([q_K @ K_MK[m] for m in picked])
            # Without query-key normalisation there is no learned scale.
            scale = abs(layer["attention_scale_H"][h]) if settings.qk_norm else len(q_K) ** -0.5
            weights = np.exp(scores * scale)
            found_K = sum(w * V_MK[m] for w, m in zip(weights / weights.sum(), picked))
            mixed_WHK[i, h] = local_WHK[i, h] * (1 - share) + found_K * share
    return mixed_WHK


def search(settings, q_K, K_MK):
    """The slots a query attends to."""
    # An empty slot is known by a key that sums to zero, and comes last (code).
    scores = [-1e6 if K_MK[m].sum() == 0 else q_K @ K_MK[m] for m in range(settings.size)]
    if settings.search == "dense":
        return list(range(settings.size))
    if settings.search == "exact":
        return sorted(range(settings.size), key=lambda m: -scores[m])[: settings.neighbours]
    groups = [range(g, settings.size, settings.neighbours) for g in range(settings.neighbours)]
    return [max(group, key=lambda m: scores[m]) for group in groups]


def take_in(settings, memory, K_WHK, V_WHK):
    """The memory with a block written where the oldest lies, one token after another."""
    new = {name: array.copy() for name, array in memory.items()}
    for k_HK, v_HK in zip(K_WHK, V_WHK):
        slot = int(new["written"]) % settings.size
        new["memory_keys"][slot], new["memory_values"][slot] = k_HK, v_HK
        new["written"] += 1
    return new
