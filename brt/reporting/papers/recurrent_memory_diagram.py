"""Figure 7 of the Recurrent Memory Transformer paper: reverse in one and in four segments."""

from typing import Any, NamedTuple

from brt.reporting.drawing.plots import COLOURS, new_figure
from brt.reporting.papers.recurrent_memory import TITLE
from brt.storage.csv_text import csv_text

READ, COPIED = COLOURS[6], COLOURS[0]
CELL = 0.86
"""Width of a token's box, of the room it has."""


class TaskDiagram(NamedTuple):
    """A sample of a task, as a decoder reads and predicts it, in each cut into segments.

    Attributes:
        name, title, caption: as of a `Plot`.
        inputs: tokens read, one a place.
        targets: the token to be predicted at each place; empty where none is scored.
        cuts: numbers of segments, one a panel; each divides the length.
    """

    name: str
    title: str
    caption: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    cuts: tuple[int, ...]

    @property
    def has_measurements(self) -> bool:
        return False

    def as_csv(self) -> str:
        """One row a token and panel: segments, place, segment, input, target."""
        lines: list[list] = [["segments", "place", "segment", "input", "target"]]
        for cut in self.cuts:
            length = len(self.inputs) // cut
            for place, tokens in enumerate(zip(self.inputs, self.targets)):
                lines.append([cut, place, place // length, *tokens])
        return csv_text(lines)

    def draw(self, foreground: str) -> Any:
        """Returns a matplotlib figure, a panel for each cut."""
        figure = new_figure(7.2, 1.75 * len(self.cuts))
        for axes, cut in zip(figure.subplots(len(self.cuts), squeeze=False)[:, 0], self.cuts):
            self._panel(axes, cut, foreground)
        return figure

    def _panel(self, axes, cut, foreground):
        count = len(self.inputs)
        length = count // cut
        for place, (read, target) in enumerate(zip(self.inputs, self.targets)):
            _box(axes, place, 0, read, READ, foreground)
            if target:
                _box(axes, place, 2, target, COPIED, foreground)
        for segment in range(cut):
            left, right = segment * length, (segment + 1) * length
            _band(axes, left, right, "model", foreground)
            if segment:
                axes.axvline(left - 0.5, color=foreground, linestyle=":", linewidth=1.2)
                axes.annotate(
                    "", (left - 0.18, 1), (left - 0.82, 1),
                    arrowprops={"arrowstyle": "->", "color": COLOURS[1], "linewidth": 1.6},
                )  # fmt: skip
        axes.set_title(f"{cut} segment{'s' * (cut > 1)}", loc="left", fontsize=10)
        axes.set_xlim(-0.7, count - 0.3)
        axes.set_ylim(-0.6, 2.6)
        axes.set_xticks([])
        axes.set_yticks([0, 2], ["read", "predicted"])
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)


def _box(axes, x, y, text, colour, foreground):
    rectangle = _rectangle(x - CELL / 2, y - 0.36, CELL, 0.72, colour, 0.3)
    axes.add_patch(rectangle)
    axes.text(x, y, text, ha="center", va="center", color=foreground)


def _band(axes, left, right, text, foreground):
    """The model over the places of one segment, between what it reads and what it predicts."""
    axes.add_patch(_rectangle(left - 0.36, 0.72, right - left - 0.28, 0.56, foreground, 0.12))
    axes.text((left + right - 1) / 2, 1, text, ha="center", va="center", color=foreground)


def _rectangle(x, y, width, height, colour, alpha):
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, alpha=alpha, linewidth=0)


SYMBOLS = "482715"
reverse_in_segments = TaskDiagram(
    "rmt_figure_7",
    "RMT, Figure 7: reverse in one and in four segments",
    "What a decoder reads (below) and has to predict (above), here of six symbols; > is the start "
    "token, and nothing is scored before it. Dotted lines are segment borders: in four segments "
    "all that is to be written has left the sight of a model without recurrence, and must come "
    f"through the memory (arrows). Source: Figure 7 of {TITLE}.",
    (*SYMBOLS, ">", *SYMBOLS[:0:-1]),
    (*[""] * len(SYMBOLS), *SYMBOLS[::-1]),
    (1, 4),
)
