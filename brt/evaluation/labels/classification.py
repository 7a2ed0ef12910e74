"""Metrics of a classification, from a confusion matrix."""

from collections.abc import Sequence

import numpy as np


def class_figures(confusion_CC: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns accuracy, and precision, recall and F1 of each class, as shares; 0 if undefined.

    confusion_CC: number of documents by true and predicted class.

    Returns:
        `accuracy`, `macro_f1` (the mean over classes), `precision/NAME`, `recall/NAME` and
        `f1/NAME`; for two classes also `precision`, `recall` and `f1` of the second.
    """
    sums = confusion_CC.sum(axis=0), confusion_CC.sum(axis=1)
    figures = label_figures(np.stack([np.diag(confusion_CC), *sums]), names)
    figures["accuracy"] = figures["micro_f1"]  # all classes together
    for head in ("precision", "recall", "f1"):
        del figures[f"micro_{head}"]
        if len(names) == 2:
            figures[head] = figures[f"{head}/{names[1]}"]
    return figures


def label_figures(counts_3C: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Returns precision, recall and F1 for documents with several classes, as shares.

    counts_3C: int (3, C): true positives, predicted, true documents of each class.

    Returns:
        `micro_f1`, `micro_precision` and `micro_recall` of all decisions, `macro_f1` (the mean over
        classes), and `precision/NAME`, `recall/NAME` and `f1/NAME`.
    """
    both_C, predicted_C, right_C = counts_3C.astype(float)
    figures = {}
    for head, part_C, whole_C in (
        ("precision", both_C, predicted_C),
        ("recall", both_C, right_C),
        ("f1", 2 * both_C, predicted_C + right_C),
    ):
        sums = part_C.sum(keepdims=True), whole_C.sum(keepdims=True)
        figures[f"micro_{head}"] = float(_shares(*sums)[0])
        values_C = _shares(part_C, whole_C)
        if head == "f1":
            figures["macro_f1"] = float(values_C.mean())
        figures |= {f"{head}/{name}": float(x) for name, x in zip(names, values_C, strict=True)}
    return figures


def _shares(part_C: np.ndarray, whole_C: np.ndarray) -> np.ndarray:
    return np.divide(part_C, whole_C, out=np.zeros(len(part_C)), where=whole_C > 0)
