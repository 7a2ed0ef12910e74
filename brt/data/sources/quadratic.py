"""A source of quadratic equations with integer roots, solved in steps: one sample a document.

    -4*x^2+392*x-2208=0             the equation: the source
    x^2-98*x+552=0;                 divided by its multiplier
    D=98^2-4*1*552=7396=86^2;       the discriminant
    x=(98-86)/2=6;                  the smaller root
    x=(98+86)/2=92                  the larger one
    6,92                            the answer

Every stage is filled up to 30 characters with id 0, and the start token stands between the
first and the others: 181 tokens, of which a model reads 180 and is scored on the last 150. Where
there is no real root the discriminant is the last stage that is not empty.

Source: Bulatov et al. 2022, arXiv:2207.06881 (Recurrent Memory Transformer), appendix A.3.
"""

import numpy as np

from brt.checks import Count, Part, Seed, configurable
from brt.data.order import permutation
from brt.data.sources.algorithmic import PAD, START, SampleTask, SymbolVocabulary, distinct_rows

STAGES, STAGE = 6, 30
"""Stages of a sample, and characters of each."""
SYMBOLS = "_>0123456789+-*/^=()xD;,"


@configurable
class QuadraticEquations(SampleTask):
    """A source of equations a (x - x1) (x - x2) = 0 with integer a, x1, x2, and their solutions.

    Those with real roots are drawn uniformly from all different ones: from -30 to 30 there are
    61 * 62 / 2 = 1,891 pairs of roots and, with 20 multipliers, 37,820 equations; from -100 to 100
    406,020. Those without are a (x^2 + b x + c) with b uniform in [0, 2 max_root) and c above
    b^2 / 4, below max_root^2.

    Args:
        max_root: roots are whole numbers from -max_root to max_root; at most 100, so that every
            stage has room.
        max_multiplier: multipliers are 1 to max_multiplier.
        signed: multipliers are negative as well, as in the paper's example; its text says
            otherwise.
        rootless: share of equations without real roots, exact in every split.
        num_train, num_validation, num_test: samples of the splits; the paper has 100,000, 10,000
            and 20,000.
        padded_length, seed: as of `CopyTask`.

    Raises:
        ValueError: a range or share that is none; from `documents`, more samples than there are
            different equations.
    """

    def __init__(
        self,
        max_root: Count = 100,
        max_multiplier: Count = 10,
        signed: bool = True,
        rootless: Part = 0.2,
        num_train: Count = 100_000,
        num_validation: Count = 10_000,
        num_test: Count = 20_000,
        padded_length: Count | None = None,
        seed: Seed = 0,
    ):
        if not 1 <= max_root <= 100 or not 1 <= max_multiplier <= 10 or not 0 <= rootless < 1:
            raise ValueError(
                f"QuadraticEquations.max_root = {max_root} must lie between 1 and 100, "
                f"max_multiplier = {max_multiplier} between 1 and 10, and rootless = {rootless} "
                "between 0 and 1."
            )
        self.max_root = max_root
        self.rootless = rootless
        self.multipliers = np.arange(1, max_multiplier + 1)
        if signed:
            self.multipliers = np.concatenate([-self.multipliers[::-1], self.multipliers])
        super().__init__(
            vocabulary=SymbolVocabulary("equations", SYMBOLS, {"pad": PAD, "start": START}),
            tokens=STAGES * STAGE + 1,
            scored=(STAGES - 1) * STAGE,
            counts=(num_train, num_validation, num_test),
            seed=seed,
            padded_length=padded_length,
            settings={
                "max_root": max_root,
                "multipliers": self.multipliers.tolist(),
                "rootless": rootless,
            },
        )

    def _sources(self, count):
        """Multiplier, b and c of a x^2 + a b x + a c = 0: int64 (count, 3)."""
        # Every so many-th, so that every stretch of samples has its share of each kind.
        rootless = np.diff(np.floor(np.arange(count + 1) * self.rootless)) > 0
        sources = np.empty((count, 3), np.int64)
        sources[rootless] = self._rootless(int(rootless.sum()))
        sources[~rootless] = self._with_roots(int((~rootless).sum()))
        return sources

    def _with_roots(self, count):
        values = np.arange(-self.max_root, self.max_root + 1)
        smaller, larger = np.triu_indices(len(values))
        self._refuse_too_many(count, len(smaller) * len(self.multipliers))
        chosen = permutation(len(smaller) * len(self.multipliers), self.seed, 2)[:count]
        pair, multiplier = np.divmod(chosen, len(self.multipliers))
        x1 = values[smaller[pair]]
        x2 = values[larger[pair]]
        return np.stack([self.multipliers[multiplier], -(x1 + x2), x1 * x2], axis=1)

    def _rootless(self, count):
        lowest = np.arange(2 * self.max_root) ** 2 // 4 + 1
        room = self.max_root**2 - lowest
        self._refuse_too_many(count, int(room.sum()) * len(self.multipliers) // 2)
        random = self._random()

        def draw(rows):
            uniform = random.random((rows, 3))
            b = np.floor(uniform[:, 0] * 2 * self.max_root).astype(int)
            c = lowest[b] + np.floor(uniform[:, 1] * room[b]).astype(int)
            multiplier = np.floor(uniform[:, 2] * len(self.multipliers)).astype(int)
            drawn = np.stack([self.multipliers[multiplier], b, c], axis=1)
            return drawn[room[b] > 0]

        return distinct_rows(draw, count) if count else np.empty((0, 3), np.int64)

    def _stacked(self, sources):
        ids = np.zeros(128, np.uint8)
        ids[np.frombuffer(SYMBOLS.encode(), np.uint8)] = np.arange(len(SYMBOLS))
        for source in sources.tolist():
            text = "".join(stage.ljust(STAGE, "_") for stage in stages(*source))
            codes = ids[np.frombuffer(text.encode(), np.uint8)]
            yield np.concatenate([codes[:STAGE], [START], codes[STAGE:]])


def stages(multiplier: int, b: int, c: int) -> list[str]:
    """Writes the six stages of `multiplier` (x^2 + b x + c) = 0.

    Real roots have to be whole numbers. Each stage has at most 30 characters. Without real roots
    the last three are empty.
    """
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
    """a x^2 + b x + c as it is usually written: without factors 1 and terms 0."""
    terms = []
    for factor, power in ((a, "x^2"), (b, "x"), (c, "")):
        if not factor:
            continue
        size = str(abs(factor))
        body = (power if size == "1" else f"{size}*{power}") if power else size
        terms.append(("-" if factor < 0 else "+") + body)
    return "".join(terms).removeprefix("+")
