"""Losses with exactly c tokens of context.

l(c, t) is the loss of token t in a window that begins c tokens before it with empty caches. One
window gives a loss for every c, so positions are drawn in stretches. A model without memory sees
only its segment.

C contexts    P positions
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.segment_reader import SegmentReader
from brt.experiment import Experiment
from brt.studies.reach import Stretches


def contexts(step: int, longest: int) -> np.ndarray:
    """Returns the contexts step, 2 step ... up to the longest, int64 (C,)."""
    if step < 1 or longest < 2 * step:
        raise ValueError(
            f"Recl.step = {step} and Recl.longest = {longest} give no two contexts to "
            "compare: the longest must be twice the step or more."
        )
    return np.arange(step, longest + 1, step)


def draw_positions(
    store: TokenStore,
    documents: Sequence[int] | np.ndarray,
    contexts_C: np.ndarray,
    number: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws at most `number` tokens with the longest context before them.

    Returns:
        The document of each position and the token's index in it, int64 (P,).
    """
    step, longest = int(contexts_C[0]), int(contexts_C[-1])
    stretch = 2 * len(contexts_C)  # then a position costs 1.5 windows
    stretches = []
    for document in documents:
        tokens_P = np.arange(longest, store.lengths_D[document], step)
        for begin in range(0, len(tokens_P), stretch):
            stretches.append((document, tokens_P[begin : begin + stretch]))
    if not stretches:
        raise ValueError(
            f"No document of {store.folder} is longer than Recl.longest = {longest} tokens: "
            "give a shorter one."
        )
    order = permutation(len(stretches), seed, 0, 0, 7)
    owners, offsets = zip(*(stretches[i] for i in order))
    owners_P = np.repeat(owners, [len(tokens_P) for tokens_P in offsets])
    return owners_P[:number], np.concatenate(offsets)[:number]


def context_losses(
    run: RecordedRun, owners_P: np.ndarray, offsets_P: np.ndarray, contexts_C: np.ndarray
) -> np.ndarray:
    """Computes l(c, t) of one model in nats, float64 (C, P)."""
    T, rows = run.segment_length, run.rows
    seen_C = np.minimum(contexts_C, own_reach(run.experiment, T))
    # By window: context, position, and index in the window, of each of its losses.
    losses_of_window: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for position, (document, offset) in enumerate(zip(owners_P.tolist(), offsets_P.tolist())):
        for context, seen in enumerate(seen_C.tolist()):
            losses = losses_of_window.setdefault((document, offset - seen), [])
            losses.append((context, position, seen - 1))
    windows = sorted(losses_of_window)
    owners, begins = np.array(windows).T
    length = -(-int(seen_C.max()) // T)
    # A segment is identified by its first target, a window by its first input, one token earlier.
    stretches = Stretches(run.store, rows, T, owners, begins + 1, length)
    reader = SegmentReader(run.experiment, run.mesh, rows, T)
    label = run.label(f"contexts up to {contexts_C[-1]:,}, segments")
    losses_CP = np.full((len(contexts_C), len(offsets_P)), np.nan)
    for step, segment in enumerate(reader.read(run.params, stretches, label=label)):
        group, number = divmod(step, length)
        for row, window in enumerate(windows[group * rows : (group + 1) * rows]):
            for context, position, index in losses_of_window[window]:
                if index // T == number:
                    losses_CP[context, position] = segment.nats_BT[row, index % T]
    return losses_CP


def own_reach(experiment: Experiment, segment_length: int) -> int:
    """Returns how many tokens a prediction can depend on, by the model's caches."""
    caches = jax.eval_shape(
        lambda params: experiment.bind_evaluated(params, segment_length).init_caches(1),
        experiment.abstract_params,
    )
    floats = (x for x in jax.tree.leaves(caches) if jnp.issubdtype(x.dtype, jnp.floating))
    return np.iinfo(np.int64).max if any(x.size for x in floats) else segment_length
