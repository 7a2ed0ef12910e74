"""Which tokens one recording predicts better than another, and what they are.

The two are of two models on the same documents, or of one model with its state kept and with it
cleared. Tokens are sorted by the difference of their losses, in both directions, and the first of
them looked at: what kind of word each is part of, how long ago that word was last seen, and whether
attention could still see it.

Source: Block-Recurrent, section 4.6 and appendix G.
"""

import math

import numpy as np

from brt.data.streams.documents import permutation
from brt.evaluation.recording import Recording, check_aligned
from brt.evaluation.words import NAME, OTHER, TITLE, Words

SHOWN, LOOKED_AT = 4, 40
"""Tokens of a document that are excerpted, and that are counted; the paper's numbers."""
POINTS = 4000
"""Points of a curve; a longer document shows the largest difference of each stretch."""
PLACES = 16
"""Parts of a segment that top tokens are counted in."""
WHERE = ("window", "segment", "beyond", "never")
"""Where a word was last seen: in reach of attention, in the segment, before it, nowhere."""


def choose_documents(store, number: int, seed: int = 0) -> list[int]:
    """Documents drawn without a look at them; all of them where there are no more."""
    return sorted(permutation(store.num_documents, seed, 0, 0, 4)[:number].tolist())


def compare(own: Recording, other: Recording, store, vocabulary, documents) -> dict:
    """Sorted token differences of two recordings.

    Args:
        own, other: aligned recordings that hold the documents.
        store: what they are recordings of.
        vocabulary: the store's.
        documents: which to look at.

    Returns:
        "numbers", "series", "excerpts" and "verdict" of a study; differences are the other's nats
        minus the own's, so they are positive where `own` predicts better.

    Raises:
        ValueError: recordings that do not align, or documents that are not recorded.
    """
    check_aligned(own, other)
    window = max(own.manifest["window"], other.manifest["window"])
    segment_length = own.manifest["segment_length"]
    titles, found = store.titles(), {"better": [], "worse": []}
    series, excerpts, differences = [], [], []
    for document in documents:
        nats_T, other_T = own.document(document).nats_T, other.document(document).nats_T
        difference_T = other_T.astype(np.float64) - nats_T
        differences.append(difference_T)
        tokens = store.tokens(document)
        words = Words(vocabulary, tokens)
        for direction, values_T in (("better", difference_T), ("worse", -difference_T)):
            places = largest(values_T, words, LOOKED_AT)
            for rank, place in enumerate(places):
                entry = describe(words, tokens, place, window, segment_length)
                entry |= {"rank": rank, "nats": nats_T[place], "other_nats": other_T[place]}
                entry = {key: _plain(value) for key, value in entry.items()}
                entry |= {"document": int(document), "title": titles[document]}
                found[direction].append(entry)
                if rank < SHOWN:
                    before, text, after = words.around(place)
                    texts = {"before": before, "text": text, "after": after}
                    excerpts.append({"direction": direction, **entry, **texts})
        series.append(_curve(titles[document], difference_T, segment_length))
    numbers = _numbers(own, other, documents, differences, segment_length)
    for direction, entries in found.items():
        first = [e for e in entries if e["rank"] < SHOWN]
        numbers |= _counts(direction, first, SHOWN, segment_length)
        numbers |= _counts(direction, entries, LOOKED_AT, segment_length)
    series += _by_place(differences, found["better"], segment_length)
    return {
        "numbers": numbers,
        "series": series,
        "excerpts": excerpts,
        "verdict": _verdict(numbers),
    }


def largest(values_T, words: Words, number: int) -> list[int]:
    """Tokens with the largest values, largest first, at most one of each occurrence of a word."""
    chosen, seen = [], set()
    for place in np.argsort(-values_T, kind="stable").tolist():
        word = words.at(place)
        if word is not None and word in seen:
            continue
        seen.add(word)
        chosen.append(place)
        if len(chosen) == number:
            break
    return chosen


def describe(words: Words, tokens, place: int, window: int, segment_length: int) -> dict:
    """What is known of a token: its word, the word's kind, and where that was last seen.

    Returns:
        "token", its index in the document; "word", None for a token that is part of none; "kind";
        "last_seen", how many tokens before it the word (or else the token) stood last, or None;
        "where", one of `WHERE`; "recalled", whether title or author are repeated at the end.
    """
    number = words.at(place)
    if number is None:
        before = np.flatnonzero(tokens[:place] == tokens[place])
        word, kind, recalled = None, OTHER, False
        begin, last_seen = place, place - int(before[-1]) if len(before) else None
    else:
        word, kind, recalled = words.words[number], words.kind(number), None
        recalled = words.is_recalled_opening(number)
        begin, last_seen = int(words.starts[number]), words.last_seen(number)
    if last_seen is None:
        where = "never"
    elif last_seen - 1 <= window:  # what is read at a place is the token before it
        where = "window"
    else:
        read = begin - last_seen + 1
        where = "segment" if read // segment_length == begin // segment_length else "beyond"
    return {
        "token": place,
        "word": word,
        "kind": kind,
        "last_seen": last_seen,
        "where": where,
        "recalled": recalled,
    }


def _numbers(own, other, documents, differences, segment_length):
    joined = np.concatenate(differences)
    nats = sum(own.document(d).nats_T.sum(dtype=np.float64) for d in documents)
    first = np.concatenate([d[:segment_length] for d in differences])
    later = np.concatenate([d[segment_length:] for d in differences])
    numbers = {
        "documents": len(documents),
        "tokens": len(joined),
        "bits_per_token": nats / len(joined) / math.log(2),
        "other_bits_per_token": (nats + joined.sum()) / len(joined) / math.log(2),
        "difference_bits": joined.mean() / math.log(2),
        "better_share": (joined > 0).mean(),
        "difference_bits_first_segment": first.mean() / math.log(2),
        "largest_difference_bits_first_segment": np.abs(first).max() / math.log(2),
    }
    if len(later):
        numbers["difference_bits_later_segments"] = later.mean() / math.log(2)
    return {name: _plain(value) for name, value in numbers.items()}


def _counts(direction, entries, top, segment_length):
    """Of so many top tokens of each document: how many are names, outside the window, ..."""
    seen = [e["last_seen"] for e in entries if e["last_seen"] is not None]
    counts = {
        "of": len(entries),
        **{kind.replace(" ", "_"): _count(entries, "kind", kind) for kind in (NAME, TITLE, OTHER)},
        **{f"last_seen_{where}": _count(entries, "where", where) for where in WHERE},
        "outside_window": len(entries) - _count(entries, "where", "window"),
        "recalled": _count(entries, "recalled", True),
        # A quarter of them if they did not cluster where a segment begins.
        "first_quarter_of_segment": sum(
            4 * (e["token"] % segment_length) < segment_length for e in entries
        ),
    }
    if seen:
        counts |= {
            "recall_distance_median": int(np.median(seen)),
            "recall_distance_largest": max(seen),
        }
    return {f"{direction}_top{top}_{name}": value for name, value in counts.items()}


def _count(entries, key, value):
    return sum(entry[key] == value for entry in entries)


def _curve(title, difference_T, segment_length):
    """Figures 4 and 5: the difference at each token of a document, with the segments' borders."""
    x = np.arange(len(difference_T))
    if len(x) > POINTS:
        cuts = np.linspace(0, len(x), POINTS + 1).astype(int)[:-1]
        ends = [*cuts[1:], len(x)]
        x = np.array([a + np.argmax(np.abs(difference_T[a:b])) for a, b in zip(cuts, ends)])
    return {
        "name": title,
        "x": x.tolist(),
        "y": np.round(difference_T[x], 4).tolist(),
        "x_label": "token",
        "y_label": "difference, nats",
        "borders": list(range(segment_length, len(difference_T), segment_length)),
    }


def _by_place(differences, entries, segment_length):
    """How far into a segment differences are, and top tokens stand."""
    parts = min(PLACES, segment_length)
    cuts = np.linspace(0, segment_length, parts + 1)
    sums, counts = np.zeros(parts), np.zeros(parts)
    for difference_T in differences:
        part = np.arange(len(difference_T)) % segment_length * parts // segment_length
        sums += np.bincount(part, difference_T, parts)
        counts += np.bincount(part, minlength=parts)
    top = [e["token"] % segment_length * parts // segment_length for e in entries]
    common = {"x": np.round(cuts[:-1]).astype(int).tolist(), "x_label": "place in the segment"}
    mean = np.round(sums / np.maximum(counts, 1) / math.log(2), 6)
    return [
        {
            "name": "difference by place in the segment",
            **common,
            "y": mean.tolist(),
            "y_label": "difference, bits per token",
        },
        {
            "name": "top tokens by place in the segment",
            **common,
            "y": np.bincount(np.array(top, int), minlength=parts).tolist(),
            "y_label": f"of the {LOOKED_AT} largest differences of each document",
        },
    ]


def _verdict(numbers):
    def top(name):
        return f"{numbers[f'better_top{SHOWN}_{name}']} of {numbers[f'better_top{SHOWN}_of']}"

    sign = "better" if numbers["difference_bits"] > 0 else "worse"
    return (
        f"Over {numbers['tokens']:,} tokens the run is {abs(numbers['difference_bits']):.4f} bits "
        f"per token {sign} ({numbers['bits_per_token']:.4f} against "
        f"{numbers['other_bits_per_token']:.4f}); where it is better most, {top('proper_name')} "
        f"tokens are proper names, {top('chapter_title')} chapter titles, {top('outside_window')} "
        "outside the attention window, and "
        f"{top('recalled')} repeat the document's title or author at its end."
    )


def _plain(value):
    return value.item() if isinstance(value, np.generic) else value
