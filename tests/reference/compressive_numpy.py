"""The Compressive Transformer in plain NumPy, float64: lists that grow, one vector at a time.

Read it with Rae et al. 2019, arXiv:1911.05507, algorithm 1. The layers are Transformer-XL's, from
txl_numpy.py. A compressed vector has one position.
"""

import numpy as np
import txl_numpy


def compress(vectors, kernel, compression):
    """One vector for as many as the kernel is long, or for each group of a pooling's rate."""
    if compression == "mean":
        return sum(vectors) / len(vectors)
    if compression == "max":
        return np.array([max(x[d] for x in vectors) for d in range(len(vectors[0]))])
    return sum(kernel[i].T @ x for i, x in enumerate(vectors))


class Reader(txl_numpy.Reader):
    """Reads documents of one row.

    Args:
        params: of a `TransformerXL` with compressive memories, a nested dictionary of arrays.
        config: as of `txl_numpy.Reader`; its mem_len is M.
        compressed, rate, compression: as of `CompressiveMemory`.
    """

    def __init__(self, params, config, compressed, rate, compression):
        super().__init__(params, config)
        self.compressed, self.rate, self.compression = compressed, rate, compression
        self.kernels = [
            params.get("memories", {}).get(i, {}).get("kernel_YDI")
            for i in range(self.config["n_layer"])
        ]

    def begin(self):
        return [([], []) for _ in range(self.config["n_layer"])]

    def read(self, tokens_T, memories):
        """Logits (T, V) of a segment, and each layer's compressed and recent vectors after it."""
        config = self.config
        # mem_len is unlimited in this call: the memories are shortened below.
        contents = [[*compressed, *recent] for compressed, recent in memories] + [[]]
        outputs, grown = self.run(self.embed(tokens_T), contents, mem_len=10**9)
        after = []
        for (compressed, recent), everything, kernel in zip(memories, grown, self.kernels):
            everything = [*recent, *everything[len(compressed) + len(recent) :]]
            dropped = everything[: max(len(everything) - config["mem_len"], 0)]
            kept = everything[len(dropped) :]
            for first in range(0, len(dropped), self.rate):
                group = dropped[first : first + self.rate]
                compressed = [*compressed, compress(group, kernel, self.compression)]
            after.append((compressed[max(len(compressed) - self.compressed, 0) :], kept))
        return self.scores(outputs), after
