"""Greedy continuations of contexts, with the state kept and cleared.

A context is one segment of a document; its continuation begins the next. A model without a state
reads only the last token of the context.

Source: Adding Recurrence to Pretrained Transformers, section 5.3 (Tables 4 and 5).
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from brt.checks import Count, configurable
from brt.data.order import permutation
from brt.data.stores.token_store import TokenStore
from brt.evaluation.free_running import write_greedily
from brt.evaluation.recorded_run import RecordedRun
from brt.host.progress import Progress
from brt.models.caches import clear_state
from brt.models.model import LanguageModel
from brt.studies.study import Content, Runs, Study, content
from brt.token_ids import BEGIN
from brt.training.sharding import to_host


@configurable
@dataclass(eq=False)
class Continuations(Study):
    """Greedy continuations of contexts, by the run and by others."""

    title = "Continuations"
    caption = "Greedy continuations of contexts, with the state kept and cleared before them."
    most_others = math.inf
    any_stream = True

    contexts: Count = 10
    written: Count = 30

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        T, titles = run.segment_length, run.store.titles()
        texts = continued_texts(run, others, documents, seed, self.contexts, self.written)
        passages = [
            {
                "title": titles[document],
                "document": document,
                "token": start,
                "context": texts.contexts[n],
                "written": {name: written[n] for name, written in texts.written.items()},
            }
            for n, (document, start) in enumerate(texts.positions)
        ]
        numbers = {"contexts": len(passages), "context_tokens": T, "written_tokens": self.written}
        summary = (
            f"{len(passages):,} contexts of {T:,} tokens, each continued greedily for "
            f"{self.written:,} tokens"
        )
        if "cleared" in texts.written:
            pairs = zip(texts.written["kept"], texts.written["cleared"])
            alike = sum(kept == cleared for kept, cleared in pairs)
            numbers["same_when_cleared"] = alike
            summary += f"; {alike:,} are the same with the state cleared before them"
        return content(numbers, [], summary + ".", passages=passages)


class ContinuedTexts(NamedTuple):
    """Contexts: their documents and first tokens, texts, and continuations.

    written: by "kept", "cleared" (of a run with a state), and the folders' names of other runs.
    """

    positions: list[tuple[int, int]]
    contexts: list[str]
    written: dict[str, list[str]]


def continued_texts(
    run: RecordedRun, others: Runs, documents: np.ndarray, seed: int, contexts: int, length: int
) -> ContinuedTexts:
    T = run.segment_length
    for other in others.values():
        if other.segment_length != T:
            raise ValueError(
                f"{other.workdir} reads segments of {other.segment_length} tokens and "
                f"{run.workdir} of {T}, and a context is one: bind Evaluation.segment_length."
            )
    positions = draw_contexts(run.store, documents, T, contexts, seed)
    tokens = [run.store.tokens(document, start, start + T) for document, start in positions]
    contexts_NT = np.stack(tokens).astype(np.int32)
    written = {"kept": _texts(run, contexts_NT, length, False)}
    if run.has_state:
        written["cleared"] = _texts(run, contexts_NT, length, True)
    for name, other in others.items():
        written[name] = _texts(other, contexts_NT, length, False)
    return ContinuedTexts(positions, list(map(run.vocabulary.decode, contexts_NT)), written)


def draw_contexts(
    store: TokenStore, documents: np.ndarray, length: int, number: int, seed: int
) -> list[tuple[int, int]]:
    """Draws disjoint whole segments, as (document, first token)."""
    positions = [
        (int(document), start)
        for document in documents
        for start in range(0, int(store.lengths_D[document]) - length + 1, length)
    ]
    if not positions:
        raise ValueError(
            f"{store.folder} has no document of {length} tokens to continue: bind "
            "Evaluation.segment_length to fewer."
        )
    order = permutation(len(positions), seed, 0, 0, 8)[:number]
    return [positions[n] for n in sorted(order.tolist())]


def _texts(run: RecordedRun, contexts_NT: np.ndarray, length: int, cleared: bool) -> list[str]:
    write = jax.jit(functools.partial(_write, run, length, cleared))
    texts: list[str] = []
    state = ", state cleared" if cleared else ""
    label = None if run.quiet else f"{run.workdir}{state}, continuations"
    progress = Progress(label, len(contexts_NT))
    for start in range(0, len(contexts_NT), run.rows):
        part_NT = contexts_NT[start : start + run.rows]
        rows_BT = np.resize(part_NT, (run.rows, part_NT.shape[1]))
        written_BL = to_host(write(run.params, rows_BT))
        texts += [run.vocabulary.decode(row) for row in written_BL[: len(part_NT)]]
        progress.update(len(texts))
    progress.close()
    return texts


def _write(run: RecordedRun, length: int, cleared: bool, params: Any, tokens_BT: jax.Array):
    model = cast(LanguageModel, run.experiment.bind_evaluated(params, run.segment_length))
    empty = model.init_caches(tokens_BT.shape[0])
    begins_B1 = jnp.full_like(tokens_BT[:, :1], BEGIN)
    x_BTD = model.embed(jnp.concatenate([begins_B1, tokens_BT[:, :-1]], axis=1))
    _, caches, _ = model.stack(x_BTD, empty)
    if cleared:
        caches = clear_state(caches, empty)

    return write_greedily(model, tokens_BT[:, -1], model.begin_decoding(caches), length)
