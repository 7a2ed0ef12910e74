"""Verdicts on pairs of systems, each trained on the same tokens in the same order."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from results_page.gain_tables import INTERVAL, shown, system
from results_page.gains import fresh_bits, paired, regime
from results_page.overview import BETTER, DEPENDS, NEITHER, WORSE, verdict

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Table, plain_table

WORDS = {BETTER: "yes", NEITHER: NEITHER, WORSE: "no"}
DISAGREE = "the losses disagree"
"""Verdict on two systems that carry nothing between segments."""


class Claim(NamedTuple):
    """A claim that one system is better than another, both as LADDER/SYSTEM or LADDER/SYSTEM W."""

    text: str
    better: str
    worse: str


CLAIMS = {
    "system_claims": (
        Claim("Rec:lstm:skip below XL:2048", "small/Rec:lstm:skip", "small/XL:2048"),
        Claim("Rec:fixed:skip below XL:2048", "small/Rec:fixed:skip", "small/XL:2048"),
        Claim("XL:2048 below XL:512", "small/XL:2048", "small/XL:512"),
        Claim("fixed gate below LSTM gate: skip", "small/Rec:fixed:skip", "small/Rec:lstm:skip"),
        Claim("fixed gate below LSTM gate: dual", "small/Rec:fixed:dual", "small/Rec:lstm:dual"),
        Claim("fixed gate below LSTM gate: single", "small/Rec:fixed:single",
              "small/Rec:lstm:single"),
        Claim("skip below single: fixed gate", "small/Rec:fixed:skip", "small/Rec:fixed:single"),
        Claim("skip below single: LSTM gate", "small/Rec:lstm:skip", "small/Rec:lstm:single"),
        Claim("feedback improves Rec:fixed:skip", "small/Feedback:fixed:skip",
              "small/Rec:fixed:skip"),
        Claim("feedback improves Rec:lstm:single", "small/Feedback:lstm:single",
              "small/Rec:lstm:single"),
        Claim("gate biases small, not zero: fixed", "short_gates/Rec:fixed:skip",
              "short_gates/Rec:fixed:skip, gate_biases = zero"),
        Claim("gate biases small, not zero: LSTM", "short_gates/Rec:lstm:skip",
              "short_gates/Rec:lstm:skip, gate_biases = zero"),
        Claim("gate biases small, not one: fixed", "short_gates/Rec:fixed:skip",
              "short_gates/Rec:fixed:skip, gate_biases = one"),
        Claim("gate biases small, not one: LSTM", "short_gates/Rec:lstm:skip",
              "short_gates/Rec:lstm:skip, gate_biases = one"),
    ),
    "window_claims": (
        Claim("Rec:lstm:skip, W = 8, below Slide, W = 16", "small/Rec:lstm:skip",
              "short_window/Slide:13L 16"),
        Claim("Rec:lstm:skip, W = 8, below Slide, W = 32", "small/Rec:lstm:skip",
              "short_window/Slide:13L 32"),
        Claim("Rec:fixed:skip, W = 8, below Slide, W = 16", "small/Rec:fixed:skip",
              "short_window/Slide:13L 16"),
        Claim("Slide, Adafactor, below Slide, AdamW", "short_gates/Slide:13L", "small/Slide:13L"),
        Claim("Rec:lstm:skip, AdamW, below Slide, Adafactor", "small/Rec:lstm:skip",
              "short_gates/Slide:13L"),
    ),
    "transformer_xl_claims": (
        Claim("recurrence, Transformer-XL's positions", "txl_corners/Tr-XL:7L, norm = pre",
              "txl_corners/Baseline:7L, norm = pre"),
        Claim("recurrence, Shaw et al.'s positions",
              "txl_corners/Tr-XL:7L, encoding = shaw, norm = pre",
              "txl_corners/Baseline:7L, encoding = shaw, norm = pre"),
        Claim("Transformer-XL's positions, not absolute", "txl_corners/Baseline:7L, norm = pre",
              "txl_corners/Baseline:7L, encoding = absolute, norm = pre"),
        Claim("Transformer-XL's positions, not Shaw et al.'s",
              "txl_corners/Baseline:7L, norm = pre",
              "txl_corners/Baseline:7L, encoding = shaw, norm = pre"),
        Claim("the same with recurrence", "txl_corners/Tr-XL:7L, norm = pre",
              "txl_corners/Tr-XL:7L, encoding = shaw, norm = pre"),
    ),
}  # fmt: skip


def claims_tables(ladders: Mapping[str, Sequence[Group]]) -> list[Table]:
    """Returns the tables of `CLAIMS` whose runs are there."""
    groups: dict[str, Group] = {}
    for ladder, some in ladders.items():
        for group in some:
            name = f"{ladder}/{system(group)}"
            groups.setdefault(name, group)
            groups.setdefault(f"{name} {regime(group).window}", group)
    tables = []
    for name, claims in CLAIMS.items():
        rows = [_row(claim, groups) for claim in claims
                if claim.better in groups and claim.worse in groups]  # fmt: skip
        if rows:
            tables.append(plain_table(name, "Claims", _CAPTION, _TITLES, rows))
    return tables


_TITLES = "claim", "improvement", "on fresh text", "verdict"
_CAPTION = (
    f"Bits per byte on validation, three seeds. {INTERVAL} Yes and no: both intervals are on that "
    f'side of zero; where the two losses disagree "{DEPENDS}", or "{DISAGREE}" if neither carries '
    "a state."
)


def _row(claim, groups):
    pair = groups[claim.better], groups[claim.worse]
    kept, fresh = paired(*pair), paired(*pair, fresh_bits)
    sides = {WORDS[verdict(values)] for values in (kept, fresh) if len(values) > 1}
    carries = any(group.position.states or group.position.memory for group in pair)
    words = sides.pop() if len(sides) == 1 else DEPENDS if carries else DISAGREE
    return [claim.text, shown(kept), shown(fresh), words]
