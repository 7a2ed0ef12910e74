"""Reads text into a memory by whole segments, as fast as evaluation.

Caches move every P tokens from the start of a document, and tokens are cut there: up to the next
multiple of P token by token; K segments at once; whole segments; whole multiples of P; and a last,
padded part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.generation.document_memory import Memory
from brt.generation.sampling import GREEDY
from brt.host.progress import Progress
from brt.models.caches import select_rows
from brt.models.diagonal import run_diagonally
from brt.models.layers.losses import token_losses


class Prefill:
    """Reads tokens into memories; compiled once for each batch size.

    Args:
        period: P, the model's cache-update interval in tokens.
        segment_length: N, in tokens, a multiple of P.
        chunk: C, tokens of one call of `decode_loop`.
        together: K, segments of a long text that run at once in the diagonal schedule.
    """

    def __init__(
        self,
        graph: nnx.GraphDef,
        period: int,
        segment_length: int,
        decode_loop: Callable,
        chunk: int,
        together: int = 1,
    ):
        self.period = period
        self.together = together
        self.segment_length = segment_length
        self.decode_loop = decode_loop
        self.chunk = chunk

        def segment(params, inputs_BT, targets_BT, caches, reads_B, score):
            model = nnx.merge(graph, params)
            x_BTD, after, _ = model.stack(model.embed(inputs_BT), caches)
            nats_BT = model.token_losses(x_BTD, targets_BT)[0] if score else None
            return select_rows(reads_B, after, caches), nats_BT

        def diagonal(params, inputs_BT, targets_BT, caches, reads_B, score):
            model = nnx.merge(graph, params)
            inputs_KBN, targets_KBN = map(self._cut, (inputs_BT, targets_BT))
            x_KBND, after = run_diagonally(model, jax.vmap(model.embed)(inputs_KBN), caches)
            caches = select_rows(reads_B, after, caches)
            if not score:
                return caches, None
            nats_KBN = jax.lax.map(lambda x: model.token_losses(*x)[0], (x_KBND, targets_KBN))
            return caches, jnp.moveaxis(nats_KBN, 0, 1).reshape(targets_BT.shape)

        def part(params, inputs_BT, targets_BT, caches, counts_B, moved_B, others, score):
            logits_BTV, after = nnx.merge(graph, params).read_part(inputs_BT, caches, counts_B)
            nats_BT = token_losses(logits_BTV, targets_BT)[0] if score else None
            return select_rows(moved_B, after, others), nats_BT

        def end(params, caches):
            return nnx.merge(graph, params).end_decoding(caches)

        self._segment = jax.jit(segment, static_argnames="score")
        self._diagonal = jax.jit(diagonal, static_argnames="score")
        self._part = jax.jit(part, static_argnames="score")
        self._end = jax.jit(end)

    def __call__(
        self,
        params: Any,
        memory: Memory,
        tokens: Sequence[np.ndarray],
        score: bool = False,
        label: str | None = None,
    ) -> tuple[Memory, list[np.ndarray] | None]:
        """Adds tokens to each document.

        Args:
            tokens: B arrays of ids, which may be empty.

        Returns:
            The memory, and B float64 arrays, the nats of each token, or None.
        """
        P, N, C = self.period, self.segment_length, self.chunk
        recent_BP = np.asarray(memory.recent_BP)
        position_B = np.asarray(memory.position_B)
        reading = _Reading(recent_BP[:, -1], tokens, score, label)

        to_boundary_B = np.minimum(-position_B % P, reading.lengths_B)
        while (counts_B := np.minimum(to_boundary_B - reading.done_B, C)).any():
            _, given_BC = reading.next(counts_B, C)
            seeds_B = np.zeros(len(counts_B), np.uint32)
            memory, _, nats_BC, _ = self.decode_loop(
                params, memory, given_BC, counts_B.astype(np.int32), seeds_B, GREEDY
            )
            reading.advance(counts_B, nats_BC, memory.caches)

        caches = memory.caches
        moved_B = reading.left_B > 0
        if moved_B.any():
            caches = self._end(params, caches)
            pieces = [(self._diagonal, self.together * N)] if self.together > 1 else []
            for run, length in (*pieces, (self._segment, N), (self._segment, P)):
                while (reads_B := reading.left_B >= length).any():
                    counts_B = np.where(reads_B, length, 0)
                    batch = reading.next(counts_B, length)
                    caches, nats_BT = run(params, *batch, caches, reads_B, score=score)
                    reading.advance(counts_B, nats_BT, caches)
            counts_B = reading.left_B.astype(np.int32)
            caches, nats_BT = self._part(
                *(params, *reading.next(counts_B, P), caches),
                *(counts_B, moved_B, memory.caches),
                score=score,
            )
            reading.advance(counts_B, nats_BT, caches)
        reading.progress.close()

        recent = [np.append(old, new)[-P:] for old, new in zip(recent_BP, reading.tokens)]
        position_B = position_B + reading.lengths_B
        known = np.array(recent, np.int32), position_B.astype(np.int32)
        return Memory(caches, *jax.device_put(known, memory.position_B.sharding)), reading.scores()

    def _cut(self, x_BT):
        return jnp.moveaxis(x_BT.reshape(len(x_BT), -1, self.segment_length), 1, 0)


class _Reading:
    def __init__(self, last_B, tokens, score, label):
        self.tokens = [np.asarray(x, np.int32) for x in tokens]
        self.lines = [np.append(last, x) for last, x in zip(last_B, self.tokens)]
        self.lengths_B = np.array([len(x) for x in self.tokens])
        self.done_B = np.zeros_like(self.lengths_B)
        self.costs: list[tuple] | None = [] if score else None
        self.progress = Progress(label, int(self.lengths_B.sum()))
        self.running = None

    @property
    def left_B(self):
        return self.lengths_B - self.done_B

    def next(self, counts_B, length):
        batch = np.zeros((2, len(self.lines), length), np.int32)
        for row, (line, done, count) in enumerate(zip(self.lines, self.done_B, counts_B)):
            batch[:, row, :count] = line[done : done + count], line[done + 1 : done + count + 1]
        return batch[0], batch[1]

    def advance(self, counts_B, nats_BT, caches):
        if self.costs is not None:
            self.costs.append((counts_B, nats_BT))
        # One call runs while the next is prepared; without this all would be queued.
        jax.block_until_ready(self.running)
        self.running = jax.tree.leaves(caches)[0]
        self.done_B = self.done_B + counts_B
        self.progress.update(int(self.done_B.sum()))

    def scores(self):
        if self.costs is None:
            return None
        rows = [[np.zeros(0)] for _ in self.tokens]
        for counts_B, nats_BT in self.costs:
            for row, (count, nats_T) in enumerate(zip(counts_B, np.asarray(nats_BT))):
                rows[row].append(nats_T[:count].astype(np.float64))
        return [np.concatenate(parts) for parts in rows]
