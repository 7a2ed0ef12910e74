"""How far back the memory reaches: what is lost when it is reset c tokens before.

The document is read with the state reset every c + W tokens, and only the last block of W tokens
before each reset is scored, against the same tokens read without a reset. So every scored block
follows a reset by exactly c tokens, and one pass over the documents measures one c. The second
curve resets windows and all, which measures the context that is used by whatever means; it is the
only one of a model without a state.
"""

import math

import numpy as np

from brt.data.document_stream import DocumentPass
from brt.evaluation.reading import SegmentReader, Treatment

SHARE = 0.1
"""The reach is where a reset costs no more than this share of what the nearest one costs."""

PROBES = {"state": "initial", "context": "everything"}


def reach(run, documents) -> dict:
    """Measures a `RecordedRun`; makes the recording it needs.

    Args:
        run: a `RecordedRun`.
        documents: which to read; only those longer than three blocks tell anything.

    Returns:
        "numbers", "series" and "verdict" of a study; costs are in bits per token, and 0 for a
        reset that lies before the document.
    """
    recording, W = run.recording("kept", documents), run.window
    longest = int(run.store.lengths_D[documents].max())
    if longest <= 3 * W:
        return {
            "numbers": {},
            "series": [],
            "verdict": f"No document is longer than three blocks of {W:,} tokens.",
        }
    distances = [W * 2**i for i in range(64) if W * (2 ** (i + 1) + 1) < longest]
    reader = SegmentReader(run.experiment, run.mesh, run.rows, W)
    numbers, series = {"documents": len(documents), "longest": longest}, []
    for name, by in PROBES.items():
        if by == "initial" and not run.has_state:
            continue
        costs, errors, tokens = zip(
            *(cost_of_reset(run, reader, recording, documents, by, c) for c in distances)
        )
        series.append(
            {
                "name": f"cost of resetting the {name}",
                "x": [*distances, longest],
                "y": [*costs, 0.0],
                "errors": [*errors, 0.0],
                "tokens": [*tokens, 0],
                "x_label": "tokens between the reset and the scored block",
                "y_label": "bits per token",
            }
        )
        numbers[f"{name}_cost_nearest"] = costs[0]
        numbers[f"{name}_cost_nearest_error"] = errors[0]
        used = costs[0] > 2 * errors[0]
        beyond = [c for c, cost in zip([*distances, longest], [*costs, 0.0]) if _small(cost, costs)]
        numbers[f"{name}_reach"] = beyond[0] if used else 0
    return {"numbers": numbers, "series": series, "verdict": verdict(numbers, W)}


def _small(cost, costs):
    return cost <= SHARE * costs[0]


def cost_of_reset(run, reader, recording, documents, by: str, distance: int):
    """What a reset `distance` tokens before a block costs it.

    Args:
        run: a `RecordedRun`.
        reader: a `SegmentReader` of single blocks, T = W.
        recording: of the same parameters with the state kept.
        documents: which to read.
        by: see `Treatment`.
        distance: c in tokens, a multiple of W.

    Returns:
        Bits per token more than without a reset, their standard error over blocks, and the
        tokens scored.
    """
    W, every = run.window, distance + run.window
    stream = DocumentPass(run.store, run.rows, W, documents=documents)
    kept = {int(d): recording.document(d).nats_T for d in documents}
    label = None if run.quiet else f"reset {distance:,} tokens before, blocks"
    extra, counts = [], []
    for segment in reader.read(run.params, stream, Treatment(by, every), label=label):
        for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
            # The document's own first blocks follow its start, not a reset.
            if document < 0 or offset < every or offset % every != distance:
                continue
            nats_T = kept[int(document)][offset : offset + W]
            reset_T = segment.nats_BT[row, : len(nats_T)]
            extra.append(np.sum(reset_T.astype(np.float64) - nats_T) / math.log(2))
            counts.append(len(nats_T))
    if not counts:
        return 0.0, 0.0, 0
    extra, counts = np.array(extra), np.array(counts)
    mean = extra.sum() / counts.sum()
    error = math.sqrt(np.square(extra - mean * counts).sum()) / counts.sum()
    return float(mean), float(error), int(counts.sum())


def verdict(numbers: dict, window: int) -> str:
    """One sentence with the reach of each probe."""
    parts = []
    for name in PROBES:
        if f"{name}_reach" not in numbers:
            continue
        cost, tokens = numbers[f"{name}_cost_nearest"], numbers[f"{name}_reach"]
        found = f"resetting the {name} {window:,} tokens before costs {cost:+.4f} bits per token"
        if tokens:
            found += f", and no more than {SHARE:.0%} of that from {tokens:,} tokens on"
        parts.append(found)
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."
