"""Documents for the page's reader: text, losses, distances to words' last occurrences.

Tokens that a task does not score have a loss of 0.
"""

import base64

import numpy as np

from brt.bindings.errors import message
from brt.data.stores.layout import token_difference
from brt.data.stores.token_store import TokenStore
from brt.evaluation.recording import Recording
from brt.evaluation.token_kinds import since_last_occurrence
from brt.evaluation.words import Words
from brt.reporting.runs import Run
from brt.training.settings import Trainer

NO_WORD = 2**32 - 1
"""In `last_seen`, for white space and punctuation; also in page.js."""
MOST_TOKENS = 150_000
"""Tokens of all documents of a page together."""


def reader_documents(runs: list[Run]) -> tuple[list[dict], list[str]]:
    """Returns documents with recordings, and sentences on omissions."""
    opened, problems = _open(runs)
    if not opened:
        return [], problems
    first, base = opened[0]
    manifest = base.manifest["store"]
    same = []
    for run, recording in opened:
        if why := token_difference(manifest, recording.manifest["store"]):
            names = f"{base.folder} and {recording.folder}"
            problems.append(f"{names} {why}; the reader shows the first.")
        else:
            same.append((run, recording))
    try:
        store = TokenStore(manifest["folder"])
        opened = [(run, Recording(recording.folder, store)) for run, recording in same]
        vocabulary = _vocabulary(first, base)
        titles = store.titles()
    except (OSError, ValueError) as error:
        return [], [*problems, f"The reader has no text: {message(error)}"]
    held_D = np.sum([recording.done_D for _, recording in opened], axis=0)
    # Documents in most recordings first: a study may have recorded only some.
    numbers = np.argsort(-held_D, kind="stable")[: np.count_nonzero(held_D)].tolist()
    documents, left = [], MOST_TOKENS
    for number in numbers:
        if left <= 0:
            break
        holding = []
        for run, recording in opened:
            if recording.done_D[number]:
                try:
                    holding.append((run, recording.manifest, recording.document(number)))
                except (OSError, ValueError) as error:
                    problems.append(f"A recording was left out: {message(error)}")
        if holding:
            length = min(int(store.lengths_D[number]), left)
            try:
                words = Words(vocabulary, store.tokens(number, 0, length))
            except (OSError, ValueError) as error:  # a file of the store
                problems.append(f"A document was left out: {message(error)}")
                continue
            documents.append(_document(words, store, number, titles[number], holding))
            left -= length
    return documents, problems


def _open(runs):
    opened, problems = [], []
    for run in runs:
        for folder in run.recordings:
            try:
                opened.append((run, Recording(folder)))
            except (OSError, ValueError) as error:
                problems.append(f"A recording was left out: {error}")
    return opened, problems


def _vocabulary(run, recording):
    run.bind()
    vocabulary = Trainer().corpus.vocabulary  # type: ignore[call-arg]  # bound by gin
    recorded = recording.manifest["store"]["vocabulary"]
    if vocabulary.fingerprint != recorded["fingerprint"]:
        raise ValueError(
            f"{recording.folder} was made with the tokenizer {recorded['name']}, and the config of "
            f"{run.folder} has {vocabulary.name}: record the run again."
        )
    return vocabulary


def _document(words, store, number, title, holding):
    length = len(words.texts)
    scored_T = store.weights(number, 0, length) > 0
    recordings = []
    for run, manifest, scores in holding:
        name = f"{run.name}, state {manifest['state']}"
        nats, entropy = (
            _packed(np.where(scored_T, values_T[:length], 0), "<f4")
            for values_T in (scores.nats_T, scores.entropy_T)
        )
        recordings.append({"name": name, "nats": nats, "entropy": entropy})
    shown = [text.encode("utf-16-le", "surrogatepass") for text in words.texts]
    # 0: the word did not occur before.
    last_seen = np.nan_to_num(since_last_occurrence(words), nan=NO_WORD, posinf=0)
    return {
        "number": number,
        "title": title,
        "text": words.text,
        "tokens": length,
        "scored": int(scored_T.sum()),
        "whole": int(store.lengths_D[number]),
        "segment_length": holding[0][1]["segment_length"],
        "lengths": _packed([len(text) // 2 for text in shown], "<u2"),  # as JavaScript counts
        "last_seen": _packed(last_seen, "<u4"),
        "recordings": recordings,
    }


def _packed(values, dtype):
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode("ascii")
