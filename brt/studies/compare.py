"""Compares the losses of two recordings token by token, and finds the largest differences.

The recordings are of two models, or of one model with its state kept and with an ablation of it.

Source: Block-Recurrent, section 4.6 and appendix G.
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from brt.checks import OneOf, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.vocabularies.base import Vocabulary
from brt.evaluation.reading import STATE_ABLATIONS
from brt.evaluation.recorded_run import RecordedRun
from brt.evaluation.recording import Recording, check_aligned
from brt.evaluation.token_kinds import KindDifference, by_kind, token_kinds
from brt.evaluation.words import NAME, OTHER, TITLE, Words
from brt.studies.study import Content, Runs, Study, content, curve, scored_weights, weighted

SHOWN, LOOKED_AT = 4, 40
"""Tokens of a document that are excerpted, and counted, as in the paper."""
POINTS = 4000
"""Points of a curve; longer documents show the largest difference of each stretch."""
PARTS = 16
"""Parts of a segment in which top tokens are counted."""
WHERE = ("window", "segment", "beyond", "never")
"""Where a word was last seen: within attention, within the segment, before it, nowhere."""
ABLATIONS = tuple(name for name in STATE_ABLATIONS if name != "kept")
DIRECTIONS = ("better", "worse")
"""The run predicts the token better than the other, or worse."""


class WordOfToken(NamedTuple):
    """The word of a token.

    word: None for a token that is part of none.
    kind: of the word, one of `brt.evaluation.words`.
    last_seen: tokens since the word (or else the token) occurred last, or None.
    where: one of `WHERE`.
    recalled: whether title or author are repeated at the document's end.
    """

    token: int
    word: str | None
    kind: str
    last_seen: int | None
    where: str
    recalled: bool


class TopToken(NamedTuple):
    """A token with one of the largest differences of its document.

    rank: 0 for the largest.
    nats, other_nats: its losses.
    around: text before it, of it and after it; None beyond the first `SHOWN`.
    """

    of: WordOfToken
    rank: int
    nats: float
    other_nats: float
    document: int
    title: str
    around: tuple[str, str, str] | None


class DifferenceCurve(NamedTuple):
    """Differences of a document (Figures 4 and 5).

    tokens: indices; all, or the largest difference of each stretch.
    nats: the other's loss minus the run's own.
    borders: first tokens of the segments after the first.
    """

    title: str
    tokens: list[int]
    nats: list[float]
    borders: list[int]


class DifferenceByPart(NamedTuple):
    """Differences by offset in a segment.

    bits: mean difference per token.
    top_tokens: number of tokens among the `LOOKED_AT` largest differences of a document.
    """

    offsets: list[int]
    bits: list[float]
    top_tokens: list[int]


class Differences(NamedTuple):
    """Weighted means over the scored tokens of all documents, in bits per token.

    difference: positive where the run is better; also in first and in later segments (None without
        scored tokens there).
    largest_in_first_segment: the largest of either sign.
    better_share: of the tokens that the run predicts better.
    """

    documents: int
    tokens: int
    bits: float
    other_bits: float
    difference: float
    better_share: float
    first_segment: float | None
    largest_in_first_segment: float
    later_segments: float | None


class TopCounts(NamedTuple):
    """Counts of top tokens.

    kinds, where: by kind of word, and by where the word was last seen.
    recalled: title or author repeated at the document's end.
    first_quarter: in the first quarter of a segment.
    median_distance, largest_distance: tokens since the word was last seen; None if none was.
    """

    of: int
    kinds: dict[str, int]
    where: dict[str, int]
    recalled: int
    first_quarter: int
    median_distance: int | None
    largest_distance: int | None


class Comparison(NamedTuple):
    """Sorted token differences of two recordings.

    top: the `LOOKED_AT` first tokens of each document, by direction.
    counts: by direction and number of tokens of a document, `SHOWN` and `LOOKED_AT`.
    """

    differences: Differences
    curves: list[DifferenceCurve]
    by_part: DifferenceByPart
    by_kind: list[KindDifference]
    top: dict[str, list[TopToken]]
    counts: dict[tuple[str, int], TopCounts]


@configurable
class Compare(Study):
    """Compares a run with another one, or with an ablation of its own state.

    Args:
        against: the ablation, if there is no other run.
    """

    title = "Token by token"
    caption = (
        "Above zero the run predicts better than what it is compared with; in Figures 4 and 5 of "
        "the paper the spikes are names. Of a long document the largest difference of each stretch "
        "is drawn. Thin lines are segment boundaries, where they can be distinguished."
    )
    most_others = 1
    num_documents = 5  # the paper's number

    def __init__(self, against: Annotated[str, OneOf(ABLATIONS)] = "cleared"):
        self._against = against

    def against(self, others: Runs) -> str | None:
        return None if others else self._against

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int = 0):
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
        return compare(kept, other, run.store, run.vocabulary, documents)

    @staticmethod
    def present(result: Comparison) -> Content:
        series = []
        for document in result.curves:
            labels = "token", "difference, nats"
            values = document.tokens, document.nats
            series.append(curve(document.title, *values, *labels, borders=document.borders))
        offsets, label = result.by_part.offsets, "place in the segment"
        name = "difference by place in the segment"
        series.append(
            curve(name, offsets, result.by_part.bits, label, "difference, bits per token")
        )
        name = "top tokens by place in the segment"
        what = f"of the {LOOKED_AT} largest differences of each document"
        series.append(curve(name, offsets, result.by_part.top_tokens, label, what))
        return content(_numbers(result), series, summary(result), excerpts=_excerpts(result))


def compare(
    own: Recording,
    other: Recording,
    store: TokenStore,
    vocabulary: Vocabulary,
    documents: Sequence[int] | np.ndarray,
) -> Comparison:
    """Compares two aligned recordings of a store; differences are other's nats minus own's."""
    check_aligned(own, other)
    window = max(own.manifest["window"], other.manifest["window"])
    segment_length = own.manifest["segment_length"]
    titles = store.titles()
    top: dict[str, list[TopToken]] = {direction: [] for direction in DIRECTIONS}
    weights = scored_weights(store, documents)
    curves, differences, kept, others, kinds = [], [], [], [], []
    for document, weights_T in zip(map(int, documents), weights):
        nats_T, other_T = own.document(document).nats_T, other.document(document).nats_T
        scored_T = weights_T > 0
        difference_T = np.zeros(len(nats_T))
        np.subtract(other_T, nats_T, out=difference_T, where=scored_T, dtype=np.float64)
        differences.append(difference_T)
        kept.append(weighted(nats_T, weights_T))
        others.append(weighted(other_T, weights_T))
        tokens = store.tokens(document)
        words = Words(vocabulary, tokens)
        kinds.append(token_kinds(words))
        for direction, values_T in zip(DIRECTIONS, (difference_T, -difference_T)):
            for rank, token in enumerate(largest(values_T, words, LOOKED_AT, scored_T)):
                top[direction].append(
                    TopToken(
                        describe(words, tokens, token, window, segment_length),
                        rank,
                        float(nats_T[token]),
                        float(other_T[token]),
                        document,
                        titles[document],
                        words.around(token) if rank < SHOWN else None,
                    )
                )
        curves.append(_curve(titles[document], difference_T, scored_T, segment_length))
    nats = sum(float(nats_T.sum()) for nats_T in kept)
    counts = {}
    for direction, tokens_of in top.items():
        for number in (SHOWN, LOOKED_AT):
            first = [token for token in tokens_of if token.rank < number]
            counts[direction, number] = _counts(first, segment_length)
    return Comparison(
        _differences(nats, differences, weights, segment_length),
        curves,
        _by_part(differences, weights, top["better"], segment_length),
        by_kind(kept, others, kinds, weights),
        top,
        counts,
    )


def largest(
    values_T: np.ndarray, words: Words, number: int, scored_T: np.ndarray | None = None
) -> list[int]:
    """Returns scored tokens with the largest values first, one of each occurrence of a word."""
    chosen: list[int] = []
    seen = set()
    for token in np.argsort(-values_T, kind="stable").tolist():
        word = words.at(token)
        if (word is not None and word in seen) or (scored_T is not None and not scored_T[token]):
            continue
        seen.add(word)
        chosen.append(token)
        if len(chosen) == number:
            break
    return chosen


def describe(
    words: Words, tokens: np.ndarray, token: int, window: int, segment_length: int
) -> WordOfToken:
    """Returns the word of a token of a document; window and segment are in tokens."""
    number = words.at(token)
    word: str | None = None
    kind = OTHER
    recalled = False
    begin = token
    if number is None:
        before = np.flatnonzero(tokens[:token] == tokens[token])
        last_seen = token - int(before[-1]) if len(before) else None
    else:
        word = words.words[number]
        kind = words.kind(number)
        recalled = words.is_recalled_opening(number)
        begin = int(words.starts[number])
        last_seen = words.last_seen(number)
    where = _where(begin, last_seen, window, segment_length)
    return WordOfToken(token, word, kind, last_seen, where, recalled)


def _where(begin, last_seen, window, segment_length):
    if last_seen is None:
        return "never"
    if last_seen - 1 <= window:  # the input at a token's index is the token before it
        return "window"
    read = begin - last_seen + 1
    return "segment" if read // segment_length == begin // segment_length else "beyond"


def _differences(nats, differences, weights, segment_length) -> Differences:
    joined, weights_N = np.concatenate(differences), np.concatenate(weights)
    first_N = np.concatenate([np.arange(len(d)) < segment_length for d in differences])
    scored_N = weights_N > 0

    def mean(chosen_N):
        total = weights_N[chosen_N].sum()
        return float((joined * weights_N)[chosen_N].sum() / total / math.log(2)) if total else None

    bits = float(nats / weights_N.sum() / math.log(2))
    difference = float((joined * weights_N).sum() / weights_N.sum() / math.log(2))
    return Differences(
        documents=len(differences),
        tokens=int(scored_N.sum()),
        bits=bits,
        other_bits=bits + difference,
        difference=difference,
        better_share=float((joined[scored_N] > 0).mean()),
        first_segment=mean(first_N),
        largest_in_first_segment=float(np.abs(joined[first_N]).max() / math.log(2)),
        later_segments=mean(~first_N),
    )


def _counts(top: list[TopToken], segment_length) -> TopCounts:
    words = [token.of for token in top]
    seen = [word.last_seen for word in words if word.last_seen is not None]
    return TopCounts(
        of=len(top),
        kinds={kind: sum(word.kind == kind for word in words) for kind in (NAME, TITLE, OTHER)},
        where={where: sum(word.where == where for word in words) for where in WHERE},
        recalled=sum(word.recalled for word in words),
        first_quarter=sum(4 * (word.token % segment_length) < segment_length for word in words),
        median_distance=int(np.median(seen)) if seen else None,
        largest_distance=max(seen, default=None),
    )


def _curve(title, difference_T, scored_T, segment_length) -> DifferenceCurve:
    tokens = np.flatnonzero(scored_T)
    if len(tokens) > POINTS:
        cuts = np.linspace(0, len(tokens), POINTS + 1).astype(int)[:-1]
        stretches = zip(cuts, [*cuts[1:], len(tokens)])
        size_T = np.abs(difference_T[tokens])
        tokens = tokens[[a + np.argmax(size_T[a:b]) for a, b in stretches]]
    borders = list(range(segment_length, len(difference_T), segment_length))
    return DifferenceCurve(
        title, tokens.tolist(), np.round(difference_T[tokens], 4).tolist(), borders
    )


def _by_part(differences, weights, top: list[TopToken], segment_length) -> DifferenceByPart:
    parts = min(PARTS, segment_length)
    cuts = np.linspace(0, segment_length, parts + 1)
    sums, counts = np.zeros(parts), np.zeros(parts)
    for difference_T, weights_T in zip(differences, weights):
        part_T = np.arange(len(difference_T)) % segment_length * parts // segment_length
        sums += np.bincount(part_T, difference_T * weights_T, parts)
        counts += np.bincount(part_T, weights_T, parts)
    part_of = [token.of.token % segment_length * parts // segment_length for token in top]
    return DifferenceByPart(
        np.round(cuts[:-1]).astype(int).tolist(),
        np.round(sums / np.where(counts > 0, counts, 1.0) / math.log(2), 6).tolist(),
        np.bincount(np.array(part_of, int), minlength=parts).tolist(),
    )


def _numbers(result):
    differences = result.differences
    numbers = {
        "documents": differences.documents,
        "tokens": differences.tokens,
        "bits_per_token": differences.bits,
        "other_bits_per_token": differences.other_bits,
        "difference_bits": differences.difference,
        "better_share": differences.better_share,
        "largest_difference_bits_first_segment": differences.largest_in_first_segment,
    }
    if differences.first_segment is not None:
        numbers["difference_bits_first_segment"] = differences.first_segment
    if differences.later_segments is not None:
        numbers["difference_bits_later_segments"] = differences.later_segments
    for kind in result.by_kind:
        name = kind.kind.replace(" ", "_")
        numbers |= {
            f"{name}_tokens": kind.tokens,
            f"{name}_bits": kind.bits,
            f"{name}_other_bits": kind.other_bits,
            f"{name}_contribution_bits": kind.contribution,
        }
    for (direction, top), counts in result.counts.items():
        named = _named_counts(counts)
        numbers |= {f"{direction}_top{top}_{name}": value for name, value in named.items()}
    return numbers


def _named_counts(counts: TopCounts):
    named: dict[str, int | None] = {
        "of": counts.of,
        **{kind.replace(" ", "_"): number for kind, number in counts.kinds.items()},
        **{f"last_seen_{where}": number for where, number in counts.where.items()},
        "outside_window": counts.of - counts.where["window"],
        "recalled": counts.recalled,
        "first_quarter_of_segment": counts.first_quarter,
    }
    if counts.largest_distance is not None:
        named["recall_distance_median"] = counts.median_distance
        named["recall_distance_largest"] = counts.largest_distance
    return named


def _excerpts(result):
    """Returns the first tokens, document by document, in both directions."""
    shown = [
        (token.document, number, direction, token)
        for number, (direction, tokens) in enumerate(result.top.items())
        for token in tokens
        if token.around is not None
    ]
    order = {document: i for i, document in enumerate(dict.fromkeys(d for d, *_ in shown))}
    shown.sort(key=lambda entry: (order[entry[0]], entry[1], entry[3].rank))
    return [_excerpt(direction, token) for _, _, direction, token in shown]


def _excerpt(direction, token: TopToken):
    before, text, after = token.around or ("", "", "")
    return {
        "direction": direction,
        **token.of._asdict(),
        "rank": token.rank,
        "nats": token.nats,
        "other_nats": token.other_nats,
        "document": token.document,
        "title": token.title,
        "before": before,
        "text": text,
        "after": after,
    }


def summary(result: Comparison) -> str:
    differences, top = result.differences, result.counts["better", SHOWN]

    def share(number):
        return f"{number} of {top.of}"

    sign = "better" if differences.difference > 0 else "worse"
    documents = f"{differences.documents:,} document{'s' * (differences.documents != 1)}"
    return (
        f"Over {differences.tokens:,} tokens of {documents} the run is "
        f"{abs(differences.difference):.4f} bits "
        f"per token {sign} ({differences.bits:.4f} against {differences.other_bits:.4f}); where it "
        f"is better most, {share(top.kinds[NAME])} tokens are proper names, "
        f"{share(top.kinds[TITLE])} chapter titles, {share(top.of - top.where['window'])} were "
        f"seen outside the attention window or never, and {share(top.recalled)} repeat the "
        "document's title or author at its end."
    )
