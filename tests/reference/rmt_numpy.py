"""The Recurrent Memory Transformer in plain NumPy, float64: an independent reference.

Read it beside Bulatov et al. 2022, arXiv:2207.06881, section 3. Where it is silent the comment says
"code": the released implementation, as described in shared/golden/README.md section 3. The layers
are Transformer-XL's, from txl_numpy.py; settings and parameters have the released code's names.
"""

import json

import numpy as np
import txl_numpy


def sees(config, S, T, M):
    """Whether position i of [cache; read; tokens; write] sees position j. Section 3, code."""

    def seen(i, j):
        read, write = M <= i < M + S, i >= M + S + T
        if j < M:
            return config["read_mem_from_cache"] or not (read or write)
        if read:
            return j < M + S
        # Read memory, earlier tokens, itself; the write positions come later.
        return write or j <= i

    return seen


def read_segment(tokens_T, memory_SD, caches, params, config, artefacts=False):
    """One segment of one row.

    Args:
        memory_SD: the memory this segment begins with; put in as it is.
        caches: as memories of `txl_numpy.read_segment`.

    Returns:
        outputs of all positions (X, D), the next memory (S, D), and the caches after.

    Source: RMT, section 3; the cache takes all positions of the segment, memory too (code).
    """
    S, T, M = len(memory_SD), len(tokens_T), len(caches[0])
    x = [*memory_SD, *(txl_numpy.embed(token, params, config) for token in tokens_T)]
    x += [*memory_SD] if config["mem_at_end"] else []
    x, caches = txl_numpy.read_segment(
        x, caches, params, config, config["mem_len"], artefacts, sees(config, S, T, M)
    )
    return np.array(x), np.array(x[S + T :] if config["mem_at_end"] else x[:S]), caches


class Reader(txl_numpy.Reader):
    """Reads documents of one row.

    Args:
        params: of a `RecurrentMemoryTransformer` around a `TransformerXL`, a nested dictionary.
        config: as of `txl_numpy.Reader`, with the memory's.
    """

    def __init__(self, params, config):
        super().__init__(params["body"], config)
        self.memory_SD = np.asarray(params["memory_SD"], np.float64)

    def begin(self):
        return self.memory_SD, super().begin()

    def read(self, tokens_T, memory):
        """Logits (T, V) of a segment, and the memory after it."""
        S, T = len(self.memory_SD), len(tokens_T)
        x_XD, *after = read_segment(tokens_T, *memory, self.params, self.config)
        return self.scores(x_XD[S : S + T]), tuple(after)


def record(config, params, tokens, targets, artefacts=True):
    """A recording, time major, as the released code would have made it, without gradients.

    Args:
        config, params: settings and state dictionary of that code.
        tokens, targets: (N, T, B) ids.
    """
    (N, T, B), S = tokens.shape, config["num_mem_tokens"]
    wide = {name: np.asarray(x, np.float64) for name, x in params.items()}
    caches, kept = [[[] for _ in range(config["n_layer"] + 1)]] * B, {}
    hidden, memories = [], [np.repeat(wide["mem_tokens"], B, axis=1)]
    for n in range(N):
        rows = [
            read_segment(tokens[n, :, b], memories[n][:, b], caches[b], wide, config, artefacts)
            for b in range(B)
        ]
        x, memory, caches = zip(*rows)
        hidden.append(np.stack(x, axis=1))
        memories.append(np.stack(memory, axis=1))
        for prefix in ["mems_in_seg1"] * (n == 0) + ["mems"] * (n == N - 1):
            kept |= {f"{prefix}/{i}": txl_numpy.stacked(caches, i) for i in range(len(caches[0]))}
    hidden, memories = np.array(hidden), np.array(memories)
    found = txl_numpy.scored_targets(hidden[:, S : S + T], targets, wide, config)
    found |= kept if config["mem_len"] else {}
    found |= {"tokens": tokens, "targets": targets, "hidden_full": hidden}
    found |= {"memory_in": memories[:-1], "memory_out": memories[1:]}
    found |= {f"params/{name}": value for name, value in params.items()}
    return found | {"config_json": np.array(json.dumps(config))}
