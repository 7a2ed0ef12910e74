"""Quadratic equations with integer roots, solved in steps: one sample per document.

    -4*x^2+392*x-2208=0             the equation: the source
    x^2-98*x+552=0;                 divided by its multiplier
    D=98^2-4*1*552=7396=86^2;       the discriminant
    x=(98-86)/2=6;                  the smaller root
    x=(98+86)/2=92                  the larger one
    6,92                            the answer

Every stage is padded to 30 characters, and the start token follows the first. Without real roots
the stages after the discriminant are empty.

Source: Bulatov et al. 2022, arXiv:2207.06881 (Recurrent Memory Transformer), appendix A.3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from brt.checks import Count, Range, Share, configurable
from brt.data.order import permutation
from brt.data.tasks.algorithmic import PAD, START, SampleTask, distinct_rows

STAGES, STAGE = 6, 30
SYMBOLS = "_>0123456789+-*/^=()xD;,"


@configurable
@dataclass(eq=False, kw_only=True)
class QuadraticEquations(SampleTask):
    """Equations a (x - x1) (x - x2) = 0 with integer a, x1, x2, and their solutions.

    Equations with real roots are drawn uniformly from all different ones. The others are
    a (x^2 + b x + c) with b uniform in [0, 2 max_root) and c between b^2 / 4 and max_root^2.

    Args:
        max_root, max_multiplier: largest absolute values of roots and multipliers.
        signed: multipliers may be negative, as in the paper's example but not in its text.
        rootless: share of equations without real roots, exact in every split.
    """

    num_validation: Count = 10_000
    num_test: Count = 20_000
    max_root: Annotated[int, Range("a whole number from 1 to 100", 1, 100)] = 100
    max_multiplier: Annotated[int, Range("a whole number from 1 to 10", 1, 10)] = 10
    signed: bool = True
    rootless: Share = 0.2

    def __post_init__(self) -> None:
        self.multipliers = np.arange(1, self.max_multiplier + 1)
        if self.signed:
            self.multipliers = np.concatenate([-self.multipliers[::-1], self.multipliers])
        special, scored = {"pad": PAD, "start": START}, (STAGES - 1) * STAGE
        self._define("equations", SYMBOLS, special, STAGES * STAGE + 1, scored)

    def _sources(self, count: int) -> np.ndarray:
        # At equal intervals, so that every split has its share.
        rootless = np.diff(np.floor(np.arange(count + 1) * self.rootless)) > 0
        sources = np.empty((count, 3), np.int64)
        sources[rootless] = self._rootless(int(rootless.sum()))
        sources[~rootless] = self._with_roots(int((~rootless).sum()))
        return sources

    def _with_roots(self, count):
        values = np.arange(-self.max_root, self.max_root + 1)
        smaller, larger = np.triu_indices(len(values))
        self._check_possible(count, len(smaller) * len(self.multipliers))
        chosen = permutation(len(smaller) * len(self.multipliers), self.seed, 2)[:count]
        pair, multiplier = np.divmod(chosen, len(self.multipliers))
        x1 = values[smaller[pair]]
        x2 = values[larger[pair]]
        return np.stack([self.multipliers[multiplier], -(x1 + x2), x1 * x2], axis=1)

    def _rootless(self, count):
        lowest = np.arange(2 * self.max_root) ** 2 // 4 + 1
        room = self.max_root**2 - lowest
        self._check_possible(count, int(room.sum()) * len(self.multipliers) // 2)
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, 3))
            b = np.floor(uniform[:, 0] * 2 * self.max_root).astype(int)
            c = lowest[b] + np.floor(uniform[:, 1] * room[b]).astype(int)
            multiplier = np.floor(uniform[:, 2] * len(self.multipliers)).astype(int)
            drawn = np.stack([self.multipliers[multiplier], b, c], axis=1)
            return drawn[room[b] > 0]

        return distinct_rows(draw, count) if count else np.empty((0, 3), np.int64)

    def _samples(self, sources: np.ndarray) -> Iterator[np.ndarray]:
        ids = np.zeros(128, np.uint8)
        ids[np.frombuffer(SYMBOLS.encode(), np.uint8)] = np.arange(len(SYMBOLS))
        for source in sources.tolist():
            text = "".join(stage.ljust(STAGE, "_") for stage in stages(*source))
            codes = ids[np.frombuffer(text.encode(), np.uint8)]
            yield np.concatenate([codes[:STAGE], [START], codes[STAGE:]])


def stages(multiplier: int, b: int, c: int) -> list[str]:
    """Returns the six stages of `multiplier` (x^2 + b x + c) = 0; real roots must be integers."""
    square = b * b - 4 * c
    equations = [_polynomial(a, a * b, a * c) + "=0" for a in (multiplier, 1)]
    discriminant = f"D={abs(b)}^2-4*1*{c}={square}"
    if square < 0:
        return [equations[0], equations[1] + ";", discriminant, "", "", ""]
    root = round(square**0.5)
    smaller = (-b - root) // 2
    larger = (-b + root) // 2
    return [
        equations[0],
        equations[1] + ";",
        f"{discriminant}={root}^2;",
        f"x=({-b}-{root})/2={smaller};",
        f"x=({-b}+{root})/2={larger}",
        f"{smaller},{larger}",
    ]


def _polynomial(a, b, c):
    terms = []
    for factor, power in ((a, "x^2"), (b, "x"), (c, "")):
        if not factor:
            continue
        size = str(abs(factor))
        body = (power if size == "1" else f"{size}*{power}") if power else size
        terms.append(("-" if factor < 0 else "+") + body)
    return "".join(terms).removeprefix("+")
