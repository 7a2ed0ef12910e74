"""Reading text into a memory at the speed of evaluation: by whole segments.

What a row has to read is cut at block borders, which count from its document's own start:
the end of a block it stands in, token by token; whole segments; whole blocks; and the
beginning of a last block, padded. A row that has nothing to read holds still meanwhile.
"""

import jax
import numpy as np
from flax import nnx

from brt.generation.memory import Memory
from brt.generation.sampling import GREEDY
from brt.models.caches import select_rows
from brt.progress import Progress
from brt.training.losses import token_losses


class Prefill:
    """Reads tokens into memories; compiled once for each number of rows.

    Args:
        graph: of the model, from `nnx.split`.
        window: W, in tokens.
        segment_length: N, in tokens, a multiple of W.
        decode_loop: from `make_decode_loop`, jitted.
        chunk: C, tokens a call of it.
    """

    def __init__(self, graph, window: int, segment_length: int, decode_loop, chunk: int):
        self.window, self.segment_length = window, segment_length
        self.decode_loop, self.chunk = decode_loop, chunk

        def segment(params, inputs_BT, targets_BT, caches, reads_B, score):
            model = nnx.merge(graph, params)
            x_BTD, after, _ = model.stack(model.embed(inputs_BT), caches)
            nats_BT = token_losses(model.logits(x_BTD), targets_BT)[0] if score else None
            return select_rows(reads_B, after, caches), nats_BT

        def begin(params, caches, after, fill_B, moved_B, others):
            caches = nnx.merge(graph, params).begin_decoding(caches, after, fill_B)
            return select_rows(moved_B, caches, others)

        def end(params, caches):
            return nnx.merge(graph, params).end_decoding(caches)

        self._segment = jax.jit(segment, static_argnames="score")
        self._begin, self._end = jax.jit(begin), jax.jit(end)

    def __call__(self, params, memory: Memory, tokens, score=False, label=None):
        """Adds tokens to each document.

        Args:
            params: of the model.
            memory: of B documents.
            tokens: B arrays of ids, of any lengths, 0 too.
            score: whether to compute what each token costs.
            label: shows progress in tokens under this name, or None for silence.

        Returns:
            The memory, and a list of B float64 arrays, the nats of each token; None instead if
            they are not scored.
        """
        W, N, C = self.window, self.segment_length, self.chunk
        recent_BW, position_B = np.asarray(memory.recent_BW), np.asarray(memory.position_B)
        reading = _Reading(recent_BW[:, -1], tokens, score, label)

        fill_B = position_B % W
        to_border_B = np.minimum(np.where(fill_B > 0, W - fill_B, 0), reading.lengths_B)
        while (counts_B := np.minimum(to_border_B - reading.done_B, C)).any():
            _, given_BC = reading.next(counts_B, C)
            seeds_B = np.zeros(len(counts_B), np.uint32)
            memory, _, nats_BC, _ = self.decode_loop(
                params, memory, given_BC, counts_B.astype(np.int32), seeds_B, GREEDY
            )
            reading.advance(counts_B, nats_BC, memory.caches)

        caches, moved_B = memory.caches, reading.left_B > 0
        if moved_B.any():
            caches = self._end(params, caches)
            for length in (N, W):
                while (reads_B := reading.left_B >= length).any():
                    counts_B = np.where(reads_B, length, 0)
                    batch = reading.next(counts_B, length)
                    caches, nats_BT = self._segment(params, *batch, caches, reads_B, score=score)
                    reading.advance(counts_B, nats_BT, caches)
            after, fill_B = caches, reading.left_B.astype(np.int32)
            if fill_B.any():
                batch, every_B = reading.next(fill_B, W), np.ones(len(fill_B), bool)
                after, nats_BT = self._segment(params, *batch, caches, every_B, score=score)
                reading.advance(fill_B, nats_BT, after)
            caches = self._begin(params, caches, after, fill_B, moved_B, memory.caches)
        reading.close()

        recent_BW = [np.append(old, new)[-W:] for old, new in zip(recent_BW, reading.tokens)]
        position_B = position_B + reading.lengths_B
        recent_BW, position_B = jax.device_put(
            (np.array(recent_BW, np.int32), position_B.astype(np.int32)), memory.position_B.sharding
        )
        return Memory(caches, recent_BW, position_B), reading.scores()


class _Reading:
    """How far each row is, on the host: what it reads next, and what that cost."""

    def __init__(self, last_B, tokens, score, label):
        self.tokens = [np.asarray(x, np.int32) for x in tokens]
        self.lines = [np.append(last, x) for last, x in zip(last_B, self.tokens)]
        self.lengths_B = np.array([len(x) for x in self.tokens])
        self.done_B = np.zeros_like(self.lengths_B)
        self.costs = [] if score else None
        self.progress = Progress(label or "", int(self.lengths_B.sum()), quiet=not label)
        self.running = None

    @property
    def left_B(self):
        return self.lengths_B - self.done_B

    def next(self, counts_B, length):
        """Inputs and targets, int32 (B, length): so many of each row, then padding."""
        batch = np.zeros((2, len(self.lines), length), np.int32)
        for row, (line, done, count) in enumerate(zip(self.lines, self.done_B, counts_B)):
            batch[:, row, :count] = line[done : done + count], line[done + 1 : done + count + 1]
        return batch[0], batch[1]

    def advance(self, counts_B, nats_BT, caches):
        if self.costs is not None:
            self.costs.append((counts_B, nats_BT))
        # One call runs while the next is prepared; without a limit all would be queued.
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

    def close(self):
        self.progress.close()
