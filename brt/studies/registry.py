"""The studies of `brt.evaluate --study=NAME`: what they read, and what they measure.

`brt.reporting.studies` makes sentences, charts and files of what is measured.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.evaluation.recorded_run import RecordedRun
from brt.storage.paths import is_remote
from brt.studies.attention_length import AttentionLength, attention_length
from brt.studies.attention_maps import AttentionMaps, attention
from brt.studies.compare import Comparison, choose_documents, compare
from brt.studies.context_losses import LONGEST, POSITIONS, STEP, EffectiveContext, recl
from brt.studies.continuations import (
    CONTEXTS,
    LENGTH,
    Continuations,
    continuations,
)
from brt.studies.memory_use import MemoryUse, NothingCarried, memory_use
from brt.studies.positions import LossByPosition, positions
from brt.studies.reach import TOKENS, Reach, reach
from brt.studies.topics import Topics, topics

BOOKS = 5
"""Documents that `compare` looks at, unless told otherwise; the paper's number."""


class Choices(NamedTuple):
    """Choices of a study, besides the runs.

    documents: to read, integers.
    against: what `compare` sets against a kept state: a name of `STATE_ABLATIONS`.
    seed: of what is drawn.
    tokens: `reach` reads for each distance, and `attention` in all.
    context_step, longest_context: contexts of `recl`, or lengths of `attention_length`, in tokens.
    positions: tokens that `recl` scores.
    lengthened: the setting that `attention_length` lengthens.
    contexts, written: of `continuations` and `topics`: how many contexts, and tokens written after
        each.
    """

    documents: np.ndarray
    against: str = "cleared"
    seed: int = 0
    tokens: int = TOKENS
    context_step: int = STEP
    longest_context: int = LONGEST
    positions: int = POSITIONS
    lengthened: str = "TransformerXL.memory_length"
    contexts: int = CONTEXTS
    written: int = LENGTH


Others = Mapping[str, RecordedRun]
"""Further runs of a study, by their folders' names."""


def study_compare(run: RecordedRun, others: Others, choices: Choices) -> Comparison:
    """Compares two runs, or one with its state kept and with it changed."""
    documents = choices.documents
    own = run.recording("kept", documents)
    if others:
        ((_, other),) = others.items()
        beside = other.recording("kept", documents)
    else:
        beside = run.recording(choices.against, documents)
    return compare(own, beside, run.store, run.vocabulary, documents)


def study_positions(run: RecordedRun, others: Others, choices: Choices) -> LossByPosition:
    """Measures the run, and beside it another."""
    runs = {run.workdir: run, **others}
    recordings = {name: each.recording("kept", choices.documents) for name, each in runs.items()}
    return positions(recordings, run.store, choices.documents)


def study_memory_use(
    run: RecordedRun, others: Others, choices: Choices
) -> MemoryUse | NothingCarried:
    """Measures whether the run's memory is used."""
    return memory_use(run, choices.documents)


def study_reach(run: RecordedRun, others: Others, choices: Choices) -> Reach:
    """Measures how far back the run's memory reaches."""
    return reach(run, choices.documents, choices.seed, choices.tokens)


def study_recl(run: RecordedRun, others: Others, choices: Choices) -> EffectiveContext:
    """Measures the run and any number of others, a group."""
    sizes = choices.context_step, choices.longest_context, choices.positions
    return recl(run, others, choices.documents, choices.seed, *sizes)


def study_attention_length(run: RecordedRun, others: Others, choices: Choices) -> AttentionLength:
    """Lengthens the run's memory while it helps."""
    settings = choices.context_step, choices.longest_context, choices.lengthened
    return attention_length(run, choices.documents, *settings)


def study_attention(run: RecordedRun, others: Others, choices: Choices) -> AttentionMaps:
    """Measures what the run's heads attend to."""
    return attention(run, choices.documents, choices.seed, choices.tokens)


def study_continuations(run: RecordedRun, others: Others, choices: Choices) -> Continuations:
    """Writes on from contexts, with the run and with others."""
    sizes = choices.contexts, choices.written
    return continuations(run, others, choices.documents, choices.seed, *sizes)


def study_topics(run: RecordedRun, others: Others, choices: Choices) -> Topics:
    """Measures whether what the run writes, and others, keeps to the topics of the context."""
    sizes = choices.contexts, choices.written
    return topics(run, others, choices.documents, choices.seed, *sizes)


STUDIES: dict[str, Callable[[RecordedRun, Others, Choices], Any]] = {
    "attention": study_attention,
    "compare": study_compare,
    "memory_use": study_memory_use,
    "reach": study_reach,
    "positions": study_positions,
    "recl": study_recl,
    "attention_length": study_attention_length,
    "continuations": study_continuations,
    "topics": study_topics,
}
WITH_OTHERS = ("compare", "positions", "recl", "continuations", "topics")
WITH_MANY = ("recl", "continuations", "topics")
ANY_STREAM = ("attention", "attention_length", "recl", "continuations", "topics")
"""Studies that need no whole documents."""


class Study(NamedTuple):
    """A study that was run.

    name: one of `STUDIES`.
    run, step, split: the run folder, and what of it was read.
    others: further run folders.
    against: what a kept state was compared with; None where no state was changed.
    documents: numbers of those read.
    found: what the study's function returned.
    """

    name: str
    run: str
    step: int
    split: str
    others: list[str]
    against: str | None
    documents: list[int]
    found: Any


def run_study(
    name: str,
    run: RecordedRun,
    others: Others | None = None,
    number: int | None = None,
    seed: int = 0,
    **choices: Any,
) -> Study:
    """Runs a study.

    Args:
        name: one of `STUDIES`.
        run: the run.
        others: further runs; one at most, but for `WITH_MANY`.
        number: documents to read, drawn by the seed; None for `BOOKS` in `compare`, and all in
            the others.
        seed, choices: see `Choices`.

    Raises:
        ValueError: other runs that the study has no use for, or that were read from other tokens;
            or no state to compare with and without.
    """
    others = others or {}
    if others and name not in WITH_OTHERS:
        raise ValueError(f"--study={name} looks at one run: leave --other out.")
    if len(others) > 1 and name not in WITH_MANY:
        raise ValueError(f"--study={name} looks at two runs: name one with --other.")
    for other in others.values():
        check_same_tokens(run.store, other.store)
        if _resolved(other.workdir) == _resolved(run.workdir):
            raise ValueError(f"--other={other.workdir} is the run itself: name another one.")
    if name == "compare" and not others and not run.has_state:
        raise ValueError(
            f"{run.workdir} has no state to compare with and without: name another run with "
            "--other."
        )
    if number is None:
        number = BOOKS if name == "compare" else run.store.num_documents
    documents = np.array(choose_documents(run.store, number, seed))
    chosen = Choices(documents, seed=seed, **choices)
    return Study(
        name,
        str(run.workdir),
        run.step,
        run.split,
        list(map(str, others)),
        chosen.against if name == "compare" and not others else None,
        documents.tolist(),
        STUDIES[name](run, others, chosen),
    )


def _resolved(folder):
    """Returns a path in the one form that all its spellings have."""
    return str(folder) if is_remote(folder) else str(Path(folder).resolve())


def check_same_tokens(ours: TokenStore, theirs: TokenStore) -> None:
    """Refuses two runs that read different tokens, before either is recorded.

    Raises:
        ValueError: naming the stores, and the vocabularies where these differ.
    """
    if ours.manifest["content"] == theirs.manifest["content"]:
        return
    one, two = ours.manifest["vocabulary"], theirs.manifest["vocabulary"]
    why = "hold different documents; bind Corpus.store and Evaluation.split to the same ones"
    if one["fingerprint"] != two["fingerprint"]:
        why = (
            f"have different tokenizers, {one['name']} of size {one['size']} and {two['name']} of "
            f"size {two['size']}, so their tokens cannot be compared; compare bits per byte"
        )
    raise ValueError(f"{ours.folder} and {theirs.folder} {why}.")
