"""The cards at the top of a page of few runs: main metrics and generated text."""

import json
from html import escape

from brt.reporting.runs import Run

MOST_RUNS = 6
FIGURES = (
    ("bits_per_byte", "bits per byte", "{:.3f}"),
    ("bits_per_token", "bits per token", "{:.3f}"),
    ("recall_accuracy", "facts recalled", "{:.1%}"),
    ("answer_accuracy", "answers right", "{:.1%}"),
)


def headline_html(runs: list[Run]) -> str:
    """Returns the runs' cards; only those measured on the same text stand side by side."""
    beside: dict[str, str] = {}
    for run in runs if len(runs) <= MOST_RUNS else ():
        figures, source = _held_out(run)
        if card := _card(run, figures):
            beside[source] = beside.get(source, "") + card
    return "".join(
        f'<p class="quiet">{escape(source)}</p><div class="headline">{cards}</div>\n'
        for source, cards in beside.items()
    )


def _card(run, figures):
    known = [entry for entry in FIGURES if entry[0] in figures]
    # An accuracy is of the answers alone, and more informative than the loss.
    accuracies = [entry for entry in known if "accuracy" in entry[0]]
    shown = (accuracies or known)[:1]
    numbers = ""
    for name, label, form in shown:
        pairs = [("state kept", name), ("state cleared", f"cleared_{name}")]
        numbers += f"<p>{escape(label)}</p>" + "".join(
            f"<div><b>{form.format(figures[key])}</b><span>{words}</span></div>"
            for words, key in pairs
            if key in figures
        )
    sample = _sample(run)
    if not numbers and not sample:
        return ""
    return f"<article><h3>{escape(run.name)}</h3>{numbers}{sample}</article>\n"


def _held_out(run):
    for split in ("test", "validation"):
        if split in run.evaluations:
            return run.evaluations[split], f"The whole {split} split of {run.corpus}."
    for record in reversed(run.records):
        figures = {k.removeprefix("eval/"): v for k, v in record.items() if k.startswith("eval/")}
        if figures:
            return (
                figures,
                f"Part of the held-out text of {run.corpus}, at step {record['step']:,}.",
            )
    return {}, ""


def _sample(run):
    """Returns the last text of samples.jsonl, which `brt.generate --save_text` writes."""
    path = run.folder / "samples.jsonl"
    if not path.is_file():
        return ""
    try:
        last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        prompt, text = escape(str(last["prompt"])), escape(str(last["text"]))
    except (ValueError, KeyError, IndexError, TypeError) as error:
        run.problems.append(f"{path} was left out: it was cut short ({error})")
        return ""
    return (
        f'<p>Generated, after the prompt in grey</p><div class="text"><span class="quiet">{prompt}'
        f"</span>{text}</div>"
    )
