"""The study `compare` in sentences, curves and excerpts."""

from brt.evaluation.words import NAME, TITLE
from brt.reporting.studies.content import Content, content, curve
from brt.studies.compare import LOOKED_AT, SHOWN, Comparison, TopCounts, TopToken


def present(found: Comparison) -> Content:
    """Returns the study's content; differences are positive where the run predicts better."""
    series = []
    for document in found.curves:
        labels = "token", "difference, nats"
        values = document.tokens, document.nats
        series.append(curve(document.title, *values, *labels, borders=document.borders))
    offsets, label = found.by_part.offsets, "place in the segment"
    name = "difference by place in the segment"
    series.append(curve(name, offsets, found.by_part.bits, label, "difference, bits per token"))
    name = "top tokens by place in the segment"
    what = f"of the {LOOKED_AT} largest differences of each document"
    series.append(curve(name, offsets, found.by_part.top_tokens, label, what))
    return content(_numbers(found), series, verdict(found), excerpts=_excerpts(found))


def _numbers(found):
    differences = found.differences
    numbers = {
        "documents": differences.documents,
        "tokens": differences.tokens,
        "bits_per_token": differences.bits,
        "other_bits_per_token": differences.other_bits,
        "difference_bits": differences.difference,
        "better_share": differences.better_share,
        "difference_bits_first_segment": differences.first_segment,
        "largest_difference_bits_first_segment": differences.largest_in_first_segment,
    }
    if differences.later_segments is not None:
        numbers["difference_bits_later_segments"] = differences.later_segments
    for kind in found.by_kind:
        name = kind.kind.replace(" ", "_")
        numbers |= {
            f"{name}_tokens": kind.tokens,
            f"{name}_bits": kind.bits,
            f"{name}_other_bits": kind.other_bits,
            f"{name}_contribution_bits": kind.contribution,
        }
    for (direction, top), counts in found.counts.items():
        named = _counts(counts)
        numbers |= {f"{direction}_top{top}_{name}": value for name, value in named.items()}
    return numbers


def _counts(counts: TopCounts):
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


def _excerpts(found):
    """Returns the first tokens, document by document, in both directions."""
    shown = [
        (token.document, number, direction, token)
        for number, (direction, tokens) in enumerate(found.top.items())
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


def verdict(found: Comparison) -> str:
    """Returns one sentence: how much better the run is, and what it predicts better most."""
    differences, top = found.differences, found.counts["better", SHOWN]

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
