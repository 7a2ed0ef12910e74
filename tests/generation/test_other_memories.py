"""Generation works with any memory: here one that no model of brt has.

It is updated at the ends of segments of six tokens and holds neither keys nor windows. After a
padded segment it cannot be recovered from the cache. The reference is a plain loop over tokens.
"""

import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from brt.data.vocabularies.base import BEGIN, ByteVocabulary
from brt.generation.generator import Generator
from brt.generation.sampling import Sampling
from brt.models.caches import select_rows

V, D, PERIOD = 11, 5, 6
LENGTHS = (0, 1, PERIOD - 1, PERIOD, 2 * PERIOD + 1, 5 * PERIOD + 3)
WRITTEN = 2 * PERIOD + 1


class Ids(ByteVocabulary):
    size = V


class Summary(NamedTuple):
    """Of all segments that have ended. past_BD: (B, D)."""

    past_BD: jax.Array


class OpenSummary(NamedTuple):
    """Of a segment being filled too. sum_BD: its embedded tokens; count_B: how many."""

    past_BD: jax.Array
    sum_BD: jax.Array
    count_B: jax.Array


class Summariser(nnx.Module):
    """Sees the sum of its segment so far, and a summary of the segments before."""

    period, vocabulary_size, dtype = PERIOD, V, jnp.dtype("float32")

    def __init__(self):
        self.embedding_VD = nnx.Param(jax.random.normal(jax.random.key(0), (V + 1, D)))

    def logits(self, past, total):  # BEGIN, -1, is the last row
        return 3 * jnp.tanh(past + total) @ self.embedding_VD[:V].T

    def init_caches(self, rows):
        return (Summary(jnp.zeros((rows, D))),)

    def __call__(self, tokens_BT, caches):
        (cache,), found = caches, []
        for tokens_BP in jnp.split(tokens_BT, tokens_BT.shape[1] // PERIOD, axis=1):
            x_BPD = self.embedding_VD[...][tokens_BP]
            found.append(self.logits(cache.past_BD[:, None], jnp.cumsum(x_BPD, axis=1)))
            cache = Summary(jnp.tanh(0.5 * cache.past_BD - x_BPD.sum(axis=1)))
        return jnp.concatenate(found, axis=1), (cache,)

    def begin_decoding(self, caches):
        past_BD = caches[0].past_BD
        zero_B = jnp.zeros(len(past_BD), jnp.int32)
        return (OpenSummary(past_BD, jnp.zeros_like(past_BD), zero_B),)

    def end_decoding(self, caches):
        return (Summary(caches[0].past_BD),)

    def read_part(self, tokens_BT, caches, counts_B):
        logits_BTV, _ = self(tokens_BT, caches)
        read_BT = jnp.arange(PERIOD) < counts_B[:, None]
        sum_BD = jnp.where(read_BT[..., None], self.embedding_VD[...][tokens_BT], 0).sum(axis=1)
        return logits_BTV, (OpenSummary(caches[0].past_BD, sum_BD, counts_B),)

    def decode(self, tokens_B, caches, reads_B=True):
        (old,) = caches
        sum_BD, count_B = old.sum_BD + self.embedding_VD[...][tokens_B], old.count_B + 1
        logits_BV = self.logits(old.past_BD, sum_BD)
        past_BD = jnp.tanh(0.5 * old.past_BD - sum_BD)
        full = OpenSummary(past_BD, jnp.zeros_like(sum_BD), jnp.zeros_like(count_B))
        new = select_rows(count_B == PERIOD, full, OpenSummary(old.past_BD, sum_BD, count_B))
        return logits_BV, (select_rows(reads_B, new, old),)


def by_hand(table, prompt, count):
    """The most likely tokens after a prompt, and what each token of the document costs."""
    past, total, document, nats = np.zeros(D), np.zeros(D), list(prompt), []
    inputs = [BEGIN]
    for position in range(len(prompt) + count):
        total = total + table[inputs[-1]]
        logits = 3 * np.tanh(past + total) @ table[:V].T
        if position == len(document):
            document.append(int(logits.argmax()))
        inputs.append(document[position])
        nats.append(np.log(np.exp(logits).sum()) - logits[document[position]])
        if len(inputs) % PERIOD == 1:
            past, total = np.tanh(0.5 * past - total), np.zeros(D)
    return document[len(prompt) :], np.array(nats)


@pytest.mark.parametrize("segment_length", [PERIOD, 3 * PERIOD])
def test_any_memory_is_read_written_saved_and_loaded(segment_length, tmp_path):
    model, rng = Summariser(), np.random.default_rng(0)
    generator = Generator(model, Ids(), segment_length, 4)
    prompts = [rng.integers(0, V, length) for length in LENGTHS]
    table = np.asarray(model.embedding_VD[...], np.float64)
    expected = [by_hand(table, prompt, WRITTEN) for prompt in prompts]

    memory, nats = generator.score(prompts)
    writing = generator.write(memory, WRITTEN, Sampling(0)).run()
    for row, (tokens, nats_T) in enumerate(expected):
        assert writing.tokens[row] == tokens
        found = np.append(nats[row], writing.nats[row])
        np.testing.assert_allclose(found, nats_T, rtol=0, atol=1e-4)

    sizes = set()
    for prompt, (tokens, _) in zip(prompts, expected):
        generator.save(tmp_path / "memory", generator.read([prompt]))
        sizes.add(os.path.getsize(tmp_path / "memory"))
        memory = generator.read([tokens[:3]], generator.load(tmp_path / "memory"))
        assert generator.write(memory, WRITTEN - 3, Sampling(0)).run().tokens[0] == tokens[3:]
    assert len(sizes) == 1
