"""Accuracy of answers by length, depth, distance and number of facts.

An answer is right if each of its tokens has the highest logit after the true ones before it.
`text_bits_per_token` is the loss, with the state kept, on the scored tokens outside of answers;
`carried_bytes` the size of a document's caches between segments.
"""

import collections
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from brt.data.tasks.answers import Answers
from brt.evaluation.answer_accuracy import answers_of_store
from brt.evaluation.recorded_run import RecordedRun
from brt.studies.study import Content, Runs, Study, add_map, content, curve

DEPTHS = 10
LABELS = {
    "length": "length, tokens",
    "facts": "facts",
    "distance": "distance, tokens (from powers of two)",
    "depth": "depth (tenths of the text)",
}

SHARE = "share of answers right"


class Scored(NamedTuple):
    """One answer of a document, and whether it is right with each state.

    depth: tenth of the text before it that contains its statement. distance: tokens from the
    statement, rounded down to a power of two. Both None if it needs the whole text. rank: as of
    an `Answer`.
    """

    length: int
    facts: int
    depth: int | None
    distance: int | None
    rank: int | None
    right: dict[str, bool]


class AnswerAccuracy(Study):
    """Accuracy of answers, with the state kept, cleared and swapped."""

    title = "Answers by length, depth and number of facts"
    caption = (
        "Share of right answers; the state is kept, cleared before every segment, or swapped with "
        "another document's. Depth 0 is the beginning of the document."
    )

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        answers = answers_of_store(run.store)
        states = ["kept"]
        if run.has_state:
            states.append("cleared")
            if min(len(documents), run.rows) > 1:
                states.append("swapped")
        recordings = {state: run.recording(state, documents) for state in states}
        scored, text_nats = [], []
        for document in documents.tolist():
            scores = {state: r.document(document) for state, r in recordings.items()}
            correct = {state: each.correct_T for state, each in scores.items()}
            scored += scores_of(answers[document], correct)
            is_text_T = run.store.weights(document) > 0
            for answer in answers[document].answers:
                is_text_T[answer.start : answer.stop] = False
            text_nats.append(scores["kept"].nats_T[is_text_T])
        result = accuracies(scored)
        if (nats := np.concatenate(text_nats)).size:
            result["numbers"]["text_bits_per_token"] = float(nats.mean() / np.log(2))
        caches = jax.tree.leaves(jax.eval_shape(run.reader.empty, run.params))
        size = sum(x.size * x.dtype.itemsize for x in caches)
        result["numbers"]["carried_bytes"] = size // run.rows
        return result


def accuracies(result: list[Scored]) -> Content:
    """Returns shares of right answers, and heat maps."""
    states = list(result[0].right)
    numbers: dict[str, float] = {"answers": len(result)}
    for state in states:
        numbers[f"accuracy_{state}"] = float(np.mean([s.right[state] for s in result]))
    shares = ", ".join(f"{numbers[f'accuracy_{state}']:.3f} ({state})" for state in states)
    summary = f"Of {len(result):,} answers this share is right, by state: {shares}."
    if ranks := [s.rank for s in result if s.rank is not None]:
        rank, count = collections.Counter(ranks).most_common(1)[0]
        numbers |= {"rule_accuracy": count / len(ranks), "rule_rank": rank}
        summary += (
            f" Without the question, always naming what {rank} other words follow is right in "
            f"{numbers['rule_accuracy']:.3f}."
        )
    study = content(numbers, [], summary, arrays={}, maps=[])
    for name, label in LABELS.items():
        for state in states if name != "depth" else ():
            x, y, _ = _shares(result, state, operator.attrgetter(name))
            if len(x) > 1:
                study["series"].append(curve(f"state {state}, by {name}", x, y, label, SHARE))
    counts = sorted({s.facts for s in result})
    for facts in counts if len(counts) > 1 else ():
        own = [s for s in result if s.facts == facts]
        x, y, _ = _shares(own, "kept", operator.attrgetter("length"))
        if len(x) > 1:
            name = f"state kept, {facts} facts, by length"
            study["series"].append(curve(name, x, y, LABELS["length"], SHARE))
    for state in states:
        for rows, columns in (("length", "depth"), ("facts", "length"), ("facts", "distance")):
            if (table := _table(result, state, rows, columns)) is None:
                continue
            y_values, x_values, values, (fewest, most) = table
            add_map(
                study,
                f"{state}_{rows}_{columns}",
                values,
                f"Answers by {rows} and {columns}, state {state}",
                f"Share of answers right, of {fewest:,} to {most:,} in a cell; a cell without a "
                "number has no answer.",
                (LABELS[columns], LABELS[rows]),
                ([x_values[0], x_values[-1]], [y_values[0], y_values[-1]]),
                x_values=x_values,
                y_values=y_values,
                most=1.0,
            )
    return study


def scores_of(answers: Answers, correct: dict[str, np.ndarray]) -> list[Scored]:
    """Returns the scored answers of a document; `correct` is bool (tokens,) by state."""
    scored = []
    for answer in answers.answers:
        span = slice(answer.start, answer.stop)
        right = {state: bool(correct_T[span].all()) for state, correct_T in correct.items()}
        depth = distance = None
        if answer.needed is not None and answer.distance is not None:
            depth = answer.needed * DEPTHS // answer.start
            distance = 1 << (answer.distance.bit_length() - 1)
        place = answers.length, answers.facts, depth, distance, answer.rank
        scored.append(Scored(*place, right))
    return scored


def _shares(scored: list[Scored], state: str, group: Callable[[Scored], Any]):
    groups: dict = {}
    for each in scored:
        if (key := group(each)) is not None:
            groups.setdefault(key, []).append(each.right[state])
    keys = sorted(groups)
    counts = [len(groups[key]) for key in keys]
    return keys, [float(np.mean(groups[key])) for key in keys], counts


def _table(scored: list[Scored], state: str, rows: str, columns: str):
    """Returns values of rows and columns, shares (rows, columns), and fewest and most answers."""

    def cell(each):
        y, x = getattr(each, rows), getattr(each, columns)
        return None if y is None or x is None else (y, x)

    cells, shares, counts = _shares(scored, state, cell)
    y_values = sorted({y for y, _ in cells})
    x_values = sorted({x for _, x in cells})
    if columns == "depth" and cells:
        x_values = list(range(DEPTHS))
    if len(y_values) * len(x_values) < 2:
        return None
    values = np.full((len(y_values), len(x_values)), -1.0, np.float32)
    for (y, x), share in zip(cells, shares):
        values[y_values.index(y), x_values.index(x)] = share
    return y_values, x_values, values, (min(counts), max(counts))
