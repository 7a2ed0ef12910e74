"""Greedy continuations of contexts, with what the model carries from them, and without.

A context is one segment of a document; what is written after it begins the next. So a model that
carries nothing from segment to segment is given the last token of the context and no more.

Source: Adding Recurrence to Pretrained Transformers, section 5.3 (Tables 4 and 5).
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore
from brt.evaluation.reading import to_host
from brt.evaluation.recorded_run import RecordedRun
from brt.models.caches import clear_state
from brt.models.model import LanguageModel
from brt.progress import Progress
from brt.token_ids import BEGIN

CONTEXTS = 10
"""Contexts that are gone on from, unless told otherwise."""
LENGTH = 30
"""Tokens that are written after each; the paper's number."""


class Continuation(NamedTuple):
    """One context and what was written after it.

    document, start: where the context begins.
    title: of the document.
    context: its text.
    kept, cleared: what was written with the state kept, and cleared before; None without a state.
    others: what other runs wrote, by their folders' names.
    """

    document: int
    start: int
    title: str
    context: str
    kept: str
    cleared: str | None
    others: dict[str, str]


class Continuations(NamedTuple):
    """All that were written.

    context_tokens, written_tokens: of each.
    """

    continuations: list[Continuation]
    context_tokens: int
    written_tokens: int


def continuations(
    run: RecordedRun,
    others: Mapping[str, RecordedRun],
    documents: np.ndarray,
    seed: int = 0,
    number: int = CONTEXTS,
    length: int = LENGTH,
) -> Continuations:
    """Goes on from contexts that a seed draws, with the run and with others.

    Args:
        run: its segment length is that of a context.
        others: by name, with the same segment length.
        documents: to draw from.
        seed: of what is drawn.
        number: of contexts, at most.
        length: tokens that are written after each.

    Raises:
        ValueError: no document is as long as a context, or another run has other segments.
    """
    T = run.segment_length
    for other in others.values():
        if other.segment_length != T:
            raise ValueError(
                f"{other.workdir} reads segments of {other.segment_length} tokens and "
                f"{run.workdir} of {T}, and a context is one: bind Evaluation.segment_length."
            )
    places = draw_contexts(run.store, documents, T, number, seed)
    contexts_NT = np.stack([run.store.tokens(d, at, at + T) for d, at in places]).astype(np.int32)
    written = {"kept": _texts(run, contexts_NT, length, False)}
    if run.has_state:
        written["cleared"] = _texts(run, contexts_NT, length, True)
    beside = {name: _texts(other, contexts_NT, length, False) for name, other in others.items()}
    titles = run.store.titles()
    found = [
        Continuation(
            document=document,
            start=start,
            title=titles[document],
            context=run.vocabulary.decode(contexts_NT[n]),
            kept=written["kept"][n],
            cleared=written["cleared"][n] if "cleared" in written else None,
            others={name: texts[n] for name, texts in beside.items()},
        )
        for n, (document, start) in enumerate(places)
    ]
    return Continuations(found, T, length)


def draw_contexts(
    store: TokenStore, documents: np.ndarray, length: int, number: int, seed: int
) -> list[tuple[int, int]]:
    """Draws disjoint whole segments of documents: (document, first token), in their order.

    Raises:
        ValueError: there is none.
    """
    places = [
        (int(document), start)
        for document in documents
        for start in range(0, int(store.lengths_D[document]) - length + 1, length)
    ]
    if not places:
        raise ValueError(
            f"{store.folder} has no document of {length} tokens to go on from: bind "
            "Evaluation.segment_length to fewer."
        )
    order = permutation(len(places), seed, 0, 0, 8)[:number]
    return [places[n] for n in sorted(order.tolist())]


def _texts(run: RecordedRun, contexts_NT: np.ndarray, length: int, cleared: bool) -> list[str]:
    """What the run writes after each context."""
    write = jax.jit(functools.partial(_write, run, length, cleared))
    texts: list[str] = []
    state = ", state cleared" if cleared else ""
    progress = Progress(f"{run.workdir}{state}, continuations", len(contexts_NT), quiet=run.quiet)
    for start in range(0, len(contexts_NT), run.rows):
        part_NT = contexts_NT[start : start + run.rows]
        rows_BT = np.resize(part_NT, (run.rows, part_NT.shape[1]))
        written_BL = to_host(write(run.params, rows_BT))
        texts += [run.vocabulary.decode(row) for row in written_BL[: len(part_NT)]]
        progress.update(len(texts))
    progress.close()
    return texts


def _write(run: RecordedRun, length: int, cleared: bool, params: Any, tokens_BT: jax.Array):
    """Returns the most likely tokens after each row, int32 (B, length)."""
    model = cast(LanguageModel, run.experiment.bind_evaluated(params, run.segment_length))
    empty = model.init_caches(tokens_BT.shape[0])
    begins_B1 = jnp.full_like(tokens_BT[:, :1], BEGIN)
    x_BTD = model.embed(jnp.concatenate([begins_B1, tokens_BT[:, :-1]], axis=1))
    _, caches, _ = model.stack(x_BTD, empty)
    if cleared:
        caches = clear_state(caches, empty)

    def step(carry, _):
        tokens_B, caches = carry
        logits_BV, caches = model.decode(tokens_B, caches)
        tokens_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        return (tokens_B, caches), tokens_B

    carry = tokens_BT[:, -1], model.begin_decoding(caches)
    _, written_LB = jax.lax.scan(step, carry, length=length)
    return written_LB.T
