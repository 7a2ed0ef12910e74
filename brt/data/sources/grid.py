"""The base of tasks that are measured by length and by number of facts."""

import itertools

from brt.data.sources.drawn import DrawnTask


class GridTask(DrawnTask):
    """A task whose documents take each length with each number of facts in turn.

    Args:
        num_documents, num_held_out, seed, settings: as of `DrawnTask`.
        lengths: of documents, in tokens; one or several.
        num_facts: one number or several.
    """

    def __init__(
        self,
        num_documents: int,
        num_held_out: int,
        seed: int,
        lengths: int | tuple[int, ...],
        num_facts: int | tuple[int, ...],
        settings: dict,
    ):
        grid = {"lengths": _as_list(lengths), "num_facts": _as_list(num_facts)}
        super().__init__(num_documents, num_held_out, seed, {**grid, **settings})
        self._cells = list(itertools.product(grid["lengths"], grid["num_facts"]))
        if not self._cells:
            raise ValueError(f"{type(self).__name__}.lengths and its number of facts need values.")

    def cell(self, number: int) -> tuple[int, int]:
        """Returns the length and the number of facts of a document."""
        return self._cells[number % len(self._cells)]

    def too_short(self, length: int, needed: int, what: str) -> ValueError:
        """Returns the error of a length without room for what a document must contain."""
        return ValueError(
            f"{type(self).__name__}.lengths = {length} is too short: {what} need {needed} tokens."
        )


def _as_list(values: int | tuple[int, ...]) -> list[int]:
    return list(values) if isinstance(values, tuple | list) else [values]
