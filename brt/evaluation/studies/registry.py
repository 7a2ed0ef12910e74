"""The studies of `brt.evaluate --study=NAME`: what they read, what they write and how they print.

A study returns numbers, curves, perhaps excerpts and a verdict. They go to
`RUN/studies/<NAME>.json`, or `<NAME>-<other>.json` where something is set beside the run, and, as
a table, to the terminal. README.md beside this file says what is in them.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brt.data.stores.writer import replace_json
from brt.evaluation.studies.attention_length import attention_length
from brt.evaluation.studies.attention_maps import attention
from brt.evaluation.studies.compare import choose_documents, compare
from brt.evaluation.studies.context_losses import LONGEST, POSITIONS, STEP, as_csv, recl
from brt.evaluation.studies.memory_use import memory_use
from brt.evaluation.studies.positions import positions
from brt.evaluation.studies.reach import TOKENS, reach

BOOKS = 5
"""Documents that `compare` looks at, unless told otherwise; the paper's number."""


class Choices(NamedTuple):
    """What a study is asked to do, besides the runs.

    documents: to read, integers.
    against: what `compare` sets against a kept state: a name of `TREATMENTS`.
    seed: of what is drawn.
    tokens: `reach` reads for each distance, and `attention` in all.
    context_step, longest_context: contexts of `recl`, or lengths of `attention_length`, in tokens.
    positions: tokens that `recl` scores.
    lengthened: the setting that `attention_length` lengthens.
    """

    documents: np.ndarray
    against: str = "cleared"
    seed: int = 0
    tokens: int = TOKENS
    context_step: int = STEP
    longest_context: int = LONGEST
    positions: int = POSITIONS
    lengthened: str = "TransformerXL.memory_length"


def study_compare(run, others, choices):
    """Two runs, or one with its state kept and tampered with."""
    documents = choices.documents
    own = run.recording("kept", documents)
    if others:
        ((_, other),) = others.items()
        beside = other.recording("kept", documents)
    else:
        beside = run.recording(choices.against, documents)
    return compare(own, beside, run.store, run.vocabulary, documents)


def study_positions(run, others, choices):
    """The run, and beside it another."""
    runs = {run.workdir: run, **others}
    recordings = {name: each.recording("kept", choices.documents) for name, each in runs.items()}
    return positions(recordings, run.store, choices.documents)


def study_memory_use(run, others, choices):
    return memory_use(run, choices.documents)


def study_reach(run, others, choices):
    return reach(run, choices.documents, choices.seed, choices.tokens)


def study_recl(run, others, choices):
    """The run and any number of others, a group."""
    sizes = choices.context_step, choices.longest_context, choices.positions
    return recl(run, others, choices.documents, choices.seed, *sizes)


def study_attention_length(run, others, choices):
    settings = choices.context_step, choices.longest_context, choices.lengthened
    return attention_length(run, choices.documents, *settings)


def study_attention(run, others, choices):
    return attention(run, choices.documents, choices.seed, choices.tokens)


STUDIES = {
    "attention": study_attention,
    "compare": study_compare,
    "memory_use": study_memory_use,
    "reach": study_reach,
    "positions": study_positions,
    "recl": study_recl,
    "attention_length": study_attention_length,
}
WITH_OTHERS = ("compare", "positions", "recl")
WITH_MANY = ("recl",)
ANY_STREAM = ("attention", "attention_length", "recl")
"""Studies that need no whole documents."""


def run_study(
    name: str, run, others=None, number: int | None = None, seed: int = 0, **choices
) -> dict:
    """Runs a study.

    Args:
        name: one of `STUDIES`.
        run: a `RecordedRun`.
        others: more `RecordedRun`s by their folders' names; one at most, but for `WITH_MANY`.
        number: documents to read, drawn by the seed; None for `BOOKS` in `compare`, and all in
            the others.
        seed, choices: see `Choices`.

    Returns:
        What the study's file holds, a dict.

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
        if Path(other.workdir).resolve() == Path(run.workdir).resolve():
            raise ValueError(f"--other={other.workdir} is the run itself: name another one.")
    if name == "compare" and not others and not run.has_state:
        raise ValueError(
            f"{run.workdir} has no state to compare with and without: name another run with --other"
        )
    if number is None:
        number = BOOKS if name == "compare" else run.store.num_documents
    documents = np.array(choose_documents(run.store, number, seed))
    chosen = Choices(documents, seed=seed, **choices)
    found = STUDIES[name](run, others, chosen)
    heads = {"study": name, "run": str(run.workdir), "step": run.step, "split": run.split}
    if name in WITH_MANY:
        heads["others"] = list(map(str, others))
    elif others:
        heads["other"] = next(iter(others))
    elif name == "compare":
        heads["against"] = chosen.against
    return {**heads, "documents": documents.tolist(), **found}


def check_same_tokens(ours, theirs) -> None:
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


def write_study(result: dict) -> str:
    """Writes a study to its run folder; returns the file's path.

    One with another run beside it, or another treatment of the state, has a file of its own.
    Arrays go to an .npz beside it, which the study then names. The tables of `recl` stand beside
    it as CSV.
    """
    folder = Path(result["run"], "studies")
    folder.mkdir(exist_ok=True)
    beside = Path(result["other"]).resolve().name if "other" in result else result.get("against")
    name = f"{result['study']}-{beside}.json" if beside else f"{result['study']}.json"
    if arrays := result.get("arrays"):
        result = result | {"arrays": f"{Path(name).stem}.npz"}
        with open(folder / f"{result['arrays']}.new", "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(folder / f"{result['arrays']}.new", folder / result["arrays"])
    replace_json(folder, name, result)
    if "gains" in result:
        for part, text in as_csv(result).items():
            (folder / f"{result['study']}-{part}.csv").write_text(text, encoding="utf-8")
    return str(folder / name)


def _word(entry):
    """What the kind and the distance of an excerpt are of, where the token is a part of it."""
    word = entry.get("word")
    return f"in {word!r}, " if word and word != entry["text"].strip() else ""


def table(result: dict) -> str:
    """A study as aligned lines: numbers, curves in short, excerpts, verdict."""
    beside = f" beside {result['other']}" if "other" in result else ""
    beside += f", state kept against {result['against']}" if "against" in result else ""
    lines = [f"{result['study']}: {result['run']} at step {result['step']:,}, "]
    lines[0] += f"{result['split']}{beside}"
    width = max([len(name) for name in result["numbers"]], default=0)
    for name, value in result["numbers"].items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.6f}"
        lines.append(f"  {name:<{width}} {text:>16}")
    for series in result["series"]:
        if len(series["x"]) <= 20:
            lines.append(f"  {series['name']}: {series['x_label']}, {series['y_label']}")
            lines += [f"  {x:>12,} {y:>z14,.6f}" for x, y in zip(series["x"], series["y"])]
    for entry in result.get("excerpts", ()):
        seen = entry["last_seen"]
        ago = "not seen before"
        if seen is not None:
            ago = f"seen {seen:,} token{'s' * (seen != 1)} ago, {entry['where']}"
        lines.append(
            f"\n  {entry['title']}, {entry['direction']} {entry['rank'] + 1}: token "
            f"{entry['token']:,}, {entry['nats']:.4f} against {entry['other_nats']:.4f} nats, "
            f"{_word(entry)}{entry['kind']}, {ago}{', recalled' * entry['recalled']}"
        )
        shown = f"{entry['before']}|{entry['text']}|{entry['after']}"
        lines.append("    " + " ".join(shown.split()))
    return "\n".join([*lines, "", result["verdict"]])
