"""Compares two recordings token by token: of two models, or of one with its state kept and ablated.

Source: Block-Recurrent, section 4.6 and appendix G.
"""

from collections.abc import Container, Sequence
from typing import Annotated, NamedTuple

import numpy as np

from brt.checks import OneOf, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording, check_aligned
from brt.evaluation.segment_reader import STATE_ABLATIONS
from brt.evaluation.token_kinds import KINDS, by_kind, since_last_occurrence, token_kinds
from brt.evaluation.words import NAME, OTHER, TITLE, Words
from brt.studies.study import (
    LN2,
    Content,
    Runs,
    Study,
    choose_documents,
    content,
    curve,
    scored_weights,
    weighted,
)

SHOWN, COUNTED = 4, 40
"""Largest differences of a document that are excerpted and counted, as in the paper."""
DRAWN = 5
"""Documents with a curve and excerpts, as in the paper; numbers are of all that are read."""
POINTS = 4000
"""Points of a curve; longer documents show the largest difference of each stretch."""
WHERE = ("window", "segment", "beyond", "never")
"""Last occurrence of a word: within attention, within the segment, before it, nowhere."""
DISTANCES = 1, 32, 100, 320, 1_000, 3_200, 10_000, 32_000, 100_000
"""Bins of a curve: tokens since a word's last occurrence; the last one is an end."""
ABLATIONS = tuple(name for name in STATE_ABLATIONS if name != "kept")
DIRECTIONS = ("better", "worse")


class WordOfToken(NamedTuple):
    """The word of a token, or None; kind: one of `brt.evaluation.words`; where: one of `WHERE`.

    last_seen: tokens since the word (or else the token) occurred last, or None.
    recalled: whether title or author are repeated at the document's end.
    """

    token: int
    word: str | None
    kind: str
    last_seen: int | None
    where: str
    recalled: bool


@configurable
class Compare(Study):
    """Compares a run with another one, or with an ablation of its own state."""

    title = "Token by token"
    caption = (
        "Above zero the run predicts better than what it is compared with; in Figures 4 and 5 of "
        "the paper the spikes are names. Of a long document the largest difference of each stretch "
        "is drawn. Thin lines are segment boundaries, where they can be distinguished."
    )
    most_others = 1

    def __init__(self, against: Annotated[str, OneOf(ABLATIONS)] = "cleared"):
        self._against = against

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        if not others and not run.has_state:
            raise ValueError(
                f"{run.workdir} has no state to compare with and without: name another run with "
                "--other."
            )
        kept = run.recording("kept", documents)
        if others:
            (other,) = (each.recording("kept", documents) for each in others.values())
        else:
            other = run.recording(self._against, documents)
        drawn = choose_documents(run.store, DRAWN, seed)
        found = compare(kept, other, run.store, run.vocabulary, documents, drawn)
        return found if others else found | {"against": self._against}


def compare(
    own: Recording,
    other: Recording,
    store: TokenStore,
    vocabulary: Vocabulary,
    documents: Sequence[int] | np.ndarray,
    drawn: Container[int] | None = None,
) -> Content:
    """Compares two aligned recordings of a store; differences are other's nats minus own's.

    Args:
        drawn: the documents with curves and excerpts; None for all.

    Returns:
        `difference_bits` is positive where the run is better; `better_top4_recalled` and the like
        count the `SHOWN` and `COUNTED` largest differences of each document, and excerpts are of
        the `SHOWN` largest. Curves are of each document (Figures 4 and 5), and of words
        by the tokens since their last occurrence, with the number of words and of their tokens.
    """
    check_aligned(own, other)
    window = max(own.manifest["window"], other.manifest["window"])
    segment_length = own.manifest["segment_length"]
    titles = store.titles()
    top: dict[str, list[tuple[int, WordOfToken]]] = {direction: [] for direction in DIRECTIONS}
    weights = scored_weights(store, documents)
    curves, differences, own_nats, other_nats, kinds, since, excerpts = [], [], [], [], [], [], []
    for document, weights_T in zip(map(int, documents), weights):
        nats_T, other_T = own.document(document).nats_T, other.document(document).nats_T
        scored_T, is_drawn = weights_T > 0, drawn is None or document in drawn
        difference_T = np.zeros(len(nats_T))
        np.subtract(other_T, nats_T, out=difference_T, where=scored_T, dtype=np.float64)
        differences.append(difference_T)
        own_nats.append(weighted(nats_T, weights_T))
        other_nats.append(weighted(other_T, weights_T))
        tokens = store.tokens(document)
        words = Words(vocabulary, tokens)
        kinds.append(token_kinds(words))
        since.append(since_last_occurrence(words))
        for direction, values_T in zip(DIRECTIONS, (difference_T, -difference_T)):
            for rank, token in enumerate(largest(values_T, words, COUNTED, scored_T)):
                word = describe(words, tokens, token, window, segment_length)
                top[direction].append((rank, word))
                if rank < SHOWN and is_drawn:
                    excerpt = {
                        "rank": rank,
                        "nats": float(nats_T[token]),
                        "other_nats": float(other_T[token]),
                        "document": document,
                        "title": titles[document],
                        **dict(zip(("before", "text", "after"), words.around(token))),
                    }
                    excerpts.append({"direction": direction, **word._asdict(), **excerpt})
        if is_drawn:
            curves.append(_curve(titles[document], difference_T, scored_T, segment_length))
    numbers = _means(sum(float(x.sum()) for x in own_nats), differences, weights, segment_length)
    numbers |= by_kind(own_nats, other_nats, kinds, weights)
    for direction, ranked in top.items():
        for number in (SHOWN, COUNTED):
            first = [word for rank, word in ranked if rank < number]
            counts = _counts(first, segment_length)
            numbers |= {f"{direction}_top{number}_{name}": n for name, n in counts.items()}
    both = {"run": own_nats, "compared with": other_nats}
    curves += _by_distance(both, since, kinds, weights)
    return content(numbers, curves, _summary(numbers), excerpts=excerpts)


def largest(values_T: np.ndarray, words: Words, number: int, scored_T: np.ndarray) -> list[int]:
    """Returns scored tokens with the largest values first, one of each occurrence of a word."""
    chosen: dict[int, int] = {}
    order = np.argsort(-values_T, kind="stable")
    for token in order[scored_T[order]].tolist():
        word = words.at(token)
        chosen.setdefault(-1 - token if word is None else word, token)
        if len(chosen) == number:
            break
    return list(chosen.values())


def describe(
    words: Words, tokens: np.ndarray, token: int, window: int, segment_length: int
) -> WordOfToken:
    """Returns the word of a token of a document; window and segment are in tokens."""
    number = words.at(token)
    if number is None:
        before = np.flatnonzero(tokens[:token] == tokens[token])
        last_seen = token - int(before[-1]) if len(before) else None
        where = _where(token, last_seen, window, segment_length)
        return WordOfToken(token, None, OTHER, last_seen, where, False)
    last_seen = words.last_seen(number)
    return WordOfToken(
        token,
        words.words[number],
        words.kind(number),
        last_seen,
        _where(int(words.starts[number]), last_seen, window, segment_length),
        words.is_recalled_opening(number),
    )


def _where(begin, last_seen, window, segment_length):
    if last_seen is None:
        return "never"
    if last_seen - 1 <= window:  # the input at a token's index is the token before it
        return "window"
    read = begin - last_seen + 1
    return "segment" if read // segment_length == begin // segment_length else "beyond"


def _means(nats, differences, weights, segment_length) -> dict[str, float]:
    joined, weights_N = np.concatenate(differences), np.concatenate(weights)
    first_N = np.concatenate([np.arange(len(d)) < segment_length for d in differences])
    scored_N, extra_N = weights_N > 0, joined * weights_N / LN2
    bits, difference = nats / weights_N.sum() / LN2, extra_N.sum() / weights_N.sum()
    numbers = {
        "documents": len(differences),
        "tokens": int(scored_N.sum()),
        "bits_per_token": float(bits),
        "other_bits_per_token": float(bits + difference),
        "difference_bits": float(difference),
        "better_share": float((joined[scored_N] > 0).mean()),
        "largest_difference_bits_first_segment": float(np.abs(joined[first_N]).max() / LN2),
    }
    for name, chosen_N in (("first_segment", first_N), ("later_segments", ~first_N)):
        if total := weights_N[chosen_N].sum():
            numbers[f"difference_bits_{name}"] = float(extra_N[chosen_N].sum() / total)
    return numbers


def _counts(top: list[WordOfToken], segment_length) -> dict[str, int]:
    counts = {"of": len(top)}
    for kind in (NAME, TITLE, OTHER):
        counts[kind.replace(" ", "_")] = sum(word.kind == kind for word in top)
    for where in WHERE:
        counts[f"last_seen_{where}"] = sum(word.where == where for word in top)
    counts["outside_window"] = len(top) - counts["last_seen_window"]
    counts["recalled"] = sum(word.recalled for word in top)
    quarter = [4 * (word.token % segment_length) < segment_length for word in top]
    counts["first_quarter_of_segment"] = sum(quarter)
    if seen := [word.last_seen for word in top if word.last_seen is not None]:
        counts["recall_distance_median"] = int(np.median(seen))
        counts["recall_distance_largest"] = max(seen)
    return counts


def _curve(title, difference_T, scored_T, segment_length):
    tokens = np.flatnonzero(scored_T)
    if len(tokens) > POINTS:
        cuts = np.linspace(0, len(tokens), POINTS + 1).astype(int)[1:-1]
        stretches = np.split(tokens, cuts)
        tokens = np.array([part[np.argmax(np.abs(difference_T[part]))] for part in stretches])
    bits = np.round(difference_T[tokens] / LN2, 4).tolist()
    borders = list(range(segment_length, len(difference_T), segment_length))
    return curve(title, tokens.tolist(), bits, "token", "difference, bits", borders=borders)


def _by_distance(nats: dict[str, list[np.ndarray]], since, kinds, weights):
    since_N, weights_N, kinds_N = map(np.concatenate, (since, weights, kinds))
    edges = np.array(DISTANCES, float)
    chosen_N = (since_N >= edges[0]) & (since_N < edges[-1]) & (weights_N > 0)
    at_N, bins = np.digitize(since_N[chosen_N], edges) - 1, len(edges) - 1
    totals = np.bincount(at_N, weights_N[chosen_N], bins)
    is_start_N = kinds_N[chosen_N] == KINDS.index("first of a word")
    kept = totals > 0
    x = np.array(DISTANCES[:-1])[kept].tolist()
    labels = "tokens since the word's last occurrence, at least", "bits per token of words"
    counts = {
        "words": np.bincount(at_N[is_start_N], minlength=bins)[kept].tolist(),
        "tokens": np.bincount(at_N, minlength=bins)[kept].tolist(),
    }
    return [
        curve(name, x, np.round(sums[kept] / totals[kept], 6).tolist(), *labels, **counts)
        for name, values in nats.items()
        for sums in [np.bincount(at_N, np.concatenate(values)[chosen_N] / LN2, bins)]
    ]


def _summary(numbers: dict[str, float]) -> str:
    def share(name):
        top = f"better_top{SHOWN}_"
        return f"{numbers[top + name.replace(' ', '_')]} of {numbers[f'{top}of']}"

    difference, count = numbers["difference_bits"], numbers["documents"]
    return (
        f"Over {numbers['tokens']:,} tokens of {count:,} document{'s' * (count != 1)} the run is "
        f"{abs(difference):.4f} bits per token {'better' if difference > 0 else 'worse'} "
        f"({numbers['bits_per_token']:.4f} against {numbers['other_bits_per_token']:.4f}); where "
        f"it is better most, {share(NAME)} tokens are proper names, {share(TITLE)} chapter titles, "
        f"{share('outside_window')} were seen outside the attention window or never, and "
        f"{share('recalled')} are near the document's end and repeat its title or author."
    )
