"""Losses with exactly c tokens of context, and RECL of a group of runs made of them.

l(c, t) is read off a window that begins c tokens before token t with empty caches. One window gives
a loss for every c: that of the token c places behind its beginning. So positions are drawn in
stretches, one step of the contexts apart, where neighbours share almost all their windows.

Windows are read in segments of the run's own evaluation, the last one with whatever text follows:
no prediction depends on what comes after it. For a model whose memory moves at the ends of segments
the window's beginning is the beginning of a segment. A model without memory sees its segment and no
more: beyond that l(c, t) is the loss with the whole segment.

C contexts    P positions    M models of the group
"""

import csv
import io

import jax
import jax.numpy as jnp
import numpy as np

from brt.data.streams.documents import permutation
from brt.evaluation.reading import SegmentReader
from brt.evaluation.studies import context_length
from brt.evaluation.studies.reach import Stretches

STEP, LONGEST, POSITIONS = 100, 1000, 1000
"""Step of the contexts that fits Table 6, the longest one, and how many tokens are looked at."""


def contexts(step: int, longest: int) -> np.ndarray:
    """The contexts step, 2 step ... up to the longest, int64 (C,).

    Raises:
        ValueError: fewer than two.
    """
    if step < 1 or longest < 2 * step:
        raise ValueError(
            f"--context_step={step} and --longest_context={longest} give no two contexts to "
            "compare: the longest must be twice the step or more."
        )
    return np.arange(step, longest + 1, step)


def draw_positions(store, documents, contexts_C, number: int, seed: int):
    """Tokens that have the longest context before them in their document.

    Args:
        store: a token store.
        documents: to draw from.
        contexts_C: of `contexts`.
        number: P at most; as many as there are, if fewer.
        seed: decides which.

    Returns:
        The document and the place in it of each position, two int64 arrays (P,).

    Raises:
        ValueError: no document is longer than the longest context.
    """
    step, longest = int(contexts_C[0]), int(contexts_C[-1])
    stretch = 2 * len(contexts_C)  # then a position costs 1.5 windows
    owners, places = [], []
    for document in documents:
        tokens_P = np.arange(longest, store.lengths_D[document], step)
        for begin in range(0, len(tokens_P), stretch):
            places.append(tokens_P[begin : begin + stretch])
            owners.append(np.full(len(places[-1]), document))
    if not places:
        raise ValueError(
            f"No document of {store.folder} is longer than --longest_context={longest} tokens: "
            "give a shorter one."
        )
    order = permutation(len(places), seed, 0, 0, 7)
    owners_P = np.concatenate([owners[i] for i in order])[:number]
    return owners_P, np.concatenate([places[i] for i in order])[:number]


def context_losses(run, owners_P, places_P, contexts_C) -> np.ndarray:
    """l(c, t) of one model.

    Args:
        run: a `RecordedRun`.
        owners_P, places_P: of `draw_positions`; contexts may reach to the document's beginning.
        contexts_C: c in tokens.

    Returns:
        (C, P) float64, in nats.
    """
    T, rows = run.segment_length, run.rows
    seen_C = np.minimum(contexts_C, own_reach(run.experiment, T))
    wanted = {}  # by window: context, position, and place in the window, of each loss it gives
    for position, (document, place) in enumerate(zip(owners_P.tolist(), places_P.tolist())):
        for context, seen in enumerate(seen_C.tolist()):
            found = wanted.setdefault((document, place - seen), [])
            found.append((context, position, seen - 1))
    windows = sorted(wanted)
    owners, begins = np.array(windows).T
    length = -(-int(seen_C.max()) // T)
    # A segment is known by its first target, and a window by its first input, one token earlier.
    stretches = Stretches(run.store, rows, T, owners, begins + 1, length)
    reader = SegmentReader(run.experiment, run.mesh, rows, T)
    label = None if run.quiet else f"{run.workdir}, contexts up to {contexts_C[-1]:,}, segments"
    losses_CP = np.full((len(contexts_C), len(places_P)), np.nan)
    for step, segment in enumerate(reader.read(run.params, stretches, label=label)):
        group, number = divmod(step, length)
        for row, window in enumerate(windows[group * rows : (group + 1) * rows]):
            for context, position, place in wanted[window]:
                if place // T == number:
                    losses_CP[context, position] = segment.nats_BT[row, place % T]
    return losses_CP


def own_reach(experiment, segment_length: int) -> int:
    """Tokens a prediction can depend on: the segment, if the model carries nothing beyond it."""

    def empty(params):
        return experiment.bind_evaluated(params, segment_length).init_caches(1)

    caches = jax.eval_shape(empty, experiment.abstract_params)
    floats = (x for x in jax.tree.leaves(caches) if jnp.issubdtype(x.dtype, jnp.floating))
    return np.iinfo(np.int64).max if sum(x.size for x in floats) else segment_length


def recl(run, others, documents, seed, step=STEP, longest=LONGEST, positions=POSITIONS) -> dict:
    """RECL of the group of a run and others, on the same tokens.

    Args:
        run, others: a `RecordedRun`, and more of them by name.
        documents, seed, positions: see `draw_positions`.
        step, longest: of the `contexts`, in tokens.

    Returns:
        "numbers", "series" (Figure 4) and "verdict" of a study; "table", a row a model (Table 6);
        and "gains", by model, (C, C) lists with None where c' < c (Figure 3, r = 0.1).
    """
    contexts_C = contexts(step, longest)
    owners_P, places_P = draw_positions(run.store, documents, contexts_C, positions, seed)
    group = {run.workdir: run, **others}
    losses_MCP = np.stack(
        [context_losses(each, owners_P, places_P, contexts_C) for each in group.values()]
    )
    rows, series, found_gains = [], [], {}
    for i, name in enumerate(map(str, group)):
        row = {"run": name, "step": list(group.values())[i].step}
        for share in context_length.SHARES:
            tokens, ended = context_length.effective_context(losses_MCP, i, contexts_C, share)
            row[f"r{share}"], row[f"r{share}_ended"] = tokens, ended
        rows.append(row)
        gains_CC = context_length.gains(losses_MCP, i, context_length.SHARES[0])
        found_gains[name] = [[None if np.isnan(x) else x for x in line] for line in gains_CC]
        series.append(
            {
                "name": name,
                "x": contexts_C.tolist(),
                "y": context_length.perplexities(losses_MCP)[i].tolist(),
                "x_label": "tokens of context",
                "y_label": "perplexity",
            }
        )
    numbers = {"positions": len(places_P), "models": len(group), "context_step": step}
    for row in rows:
        numbers |= {f"{row['run']}/recl_r{r}": row[f"r{r}"] for r in context_length.SHARES}
    return {
        "numbers": numbers,
        "series": series,
        "verdict": verdict(rows),
        "contexts": contexts_C.tolist(),
        "table": rows,
        "gains": found_gains,
    }


def verdict(rows) -> str:
    """One sentence: who makes use of the longest context, at r = 0.1."""
    share = context_length.SHARES[0]

    def text(row):
        more = "" if row[f"r{share}_ended"] else " or more"
        return f"{row[f'r{share}']:,} tokens{more} for {row['run']}"

    ranked = sorted(rows, key=lambda row: -row[f"r{share}"])
    return f"Relative effective context length at r = {share}: {', '.join(map(text, ranked))}."


def as_csv(result: dict) -> dict[str, str]:
    """A study's table, Figure 3 and Figure 4 as CSV texts by name."""
    shares = context_length.SHARES
    contexts_C, gains_of = result["contexts"], result["gains"]
    table = [["run", *(f"r = {r}" for r in shares), *(f"r = {r}, search ended" for r in shares)]]
    for row in result["table"]:
        ended = [row[f"r{r}_ended"] for r in shares]
        table.append([row["run"], *(row[f"r{r}"] for r in shares), *ended])
    figure_3 = [["run", "context", "longer context", "gain in perplexity"]]
    for name, gains in gains_of.items():
        for c, line in zip(contexts_C, gains):
            figure_3 += [[name, c, d, x] for d, x in zip(contexts_C, line) if x is not None]
    figure_4 = [["run", "context", "perplexity"]]
    for series in result["series"]:
        figure_4 += [[series["name"], c, y] for c, y in zip(series["x"], series["y"])]
    texts = {}
    for name, lines in (("table", table), ("gains", figure_3), ("perplexity", figure_4)):
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(lines)
        texts[name] = file.getvalue()
    return texts
