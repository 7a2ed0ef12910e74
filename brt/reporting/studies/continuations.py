"""The studies `continuations` and `topics` in sentences, numbers and passages."""

from typing import Any

from brt.reporting.studies.content import Content, content
from brt.studies.continuations import Continuations
from brt.studies.topics import Topics, how_often_lower


def present_continuations(found: Continuations) -> Content:
    """Returns the passages: each context, and what was written after it (ARPT, Tables 4 and 5)."""
    passages: list[dict[str, Any]] = []
    alike = 0
    for each in found.continuations:
        written: dict[str, str] = {"kept": each.kept}
        if each.cleared is not None:
            written["cleared"] = each.cleared
            alike += each.kept == each.cleared
        passages.append({
            "title": each.title,
            "document": each.document,
            "token": each.start,
            "context": each.context,
            "written": written | each.others,
        })  # fmt: skip
    number = len(found.continuations)
    numbers = {
        "contexts": number,
        "context_tokens": found.context_tokens,
        "written_tokens": found.written_tokens,
    }
    verdict = f"{number:,} contexts of {found.context_tokens:,} tokens, each gone on from greedily"
    verdict += f" for {found.written_tokens:,} tokens"
    if passages and "cleared" in passages[0]["written"]:
        numbers["same_when_cleared"] = alike
        verdict += f"; {alike:,} are the same with the state cleared before them"
    return content(numbers, [], verdict + ".", passages=passages)


def present_topics(found: Topics) -> Content:
    """Returns mean divergences, and how often that of the kept state is lower."""
    mean = float(found.kept.mean())
    numbers = {
        "contexts": len(found.kept),
        "topics": found.topics,
        "training_documents": found.documents,
        "divergence, kept": mean,
    }
    sentences = [
        f"Topics of {len(found.kept):,} contexts of {found.context_tokens:,} tokens and of greedy "
        f"continuations of {found.written_tokens:,}: mean divergence {mean:.4f} (base 2)"
    ]
    for name, values in found.beside.items():
        lower = how_often_lower(found.kept, values)
        numbers[f"divergence, {name}"] = float(values.mean())
        numbers[f"lower_than, {name}"] = lower.share
        numbers[f"p, {name}"] = lower.p
        sentences.append(
            f"{name} {values.mean():.4f}, kept lower in {lower.share:.1%} of those that differ "
            f"(sign test, p {lower.p:.2g})"
        )
    return content(numbers, [], "; ".join(sentences) + ".")
