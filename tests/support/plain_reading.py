"""A plain reader of documents, one segment at a time, softmax in NumPy; scores of made-up hits."""

import functools

import jax
import numpy as np

from brt.data.streams.select import evaluation_pass
from brt.data.token_scores import TokenScores
from brt.data.vocabularies.base import BEGIN


@functools.lru_cache(maxsize=8)
def _reading(experiment):
    return jax.jit(lambda params, tokens, caches: experiment.bind(params)(tokens, caches))


def segments(experiment, params, store, document, length, begin=0, change=None, keep_own=False):
    """Yields first token, logits (t, V), targets (t,) and earlier caches of each segment.

    Args:
        begin: token at which empty caches begin to read the document.
        change: from a segment's first token and its caches to the caches that it is read with.
        keep_own: whether the caches after a segment are those of its own, unchanged caches.
    """
    read = _reading(experiment)
    targets = store.tokens(document).astype(int)
    inputs = np.concatenate([[BEGIN], targets[:-1]])
    caches = experiment.bind(params).init_caches(1)
    for start in range(begin, len(targets), length):
        part = slice(start, start + length)
        tokens = np.ones((1, length), np.int32)  # padding may be anything
        tokens[0, : len(inputs[part])] = inputs[part]
        used = change(start, caches) if change else caches
        logits, after = read(params, tokens, used)
        yield start, np.float64(logits[0, : len(targets[part])]), targets[part], caches
        caches = read(params, tokens, caches)[1] if keep_own else after


def nats_of(logits, targets):
    """Returns -log p of the targets, (t,)."""
    return np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets]


def states_of(caches):
    """The states of the recurrent layer, the second of two."""
    (memory,) = caches[1].memories
    return memory.states_BSD


def with_states(caches, states_BSD):
    """The caches with other states of the recurrent layer."""
    (memory,) = caches[1].memories
    memory = memory._replace(states_BSD=states_BSD)
    return caches[0], caches[1]._replace(memories=(memory,))


def scalars_of(score, store, rows, length, right, steps=None, stride=None):
    """Scalars of a score if the token at (document, position) is right where `right` is true."""
    sums = {"nats": 0.0}  # shared with other scores
    stream = evaluation_pass("documents", store, rows, length, stride)
    for step in range(steps or stream.num_steps):
        documents, offsets = stream.positions(step)
        correct = np.array(
            [[right(d, offset + t) for t in range(length)] for d, offset in zip(documents, offsets)]
        )
        weights, nats = stream.batch(step).weights_KBT[0], np.zeros((rows, length))
        score.add(sums, store, TokenScores(documents, offsets, None, weights, nats, correct))
    return score.scalars(sums, store, steps is None)
