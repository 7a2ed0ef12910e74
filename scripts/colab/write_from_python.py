"""Writes from_python.ipynb: the page docs/python.md, after the first cells of train_and_look.ipynb.

python scripts/colab/write_from_python.py
"""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "python.md"
NOTEBOOK = FOLDER / "from_python.ipynb"
LINK = re.compile(r"\[(.*?)\]\(.*?\)")
"""Links to other pages lead nowhere in a notebook."""


def notebook() -> str:
    """Returns the text of the notebook."""
    other = json.loads((FOLDER / "train_and_look.ipynb").read_text(encoding="utf-8"))
    title, *parts = re.split(
        r"^(```python\n.*?)^```\n", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    heading, _, text = title.partition("\n## ")
    shared = [cell for cell in other["cells"] if cell["cell_type"] == "code"][:3]
    texts = [heading, *("".join(cell["source"]) for cell in shared), f"## {text}", *parts]
    cells = []
    for number, text in enumerate(texts):
        is_code = text.startswith("```python\n") or 1 <= number <= 3
        source = text.removeprefix("```python\n") if is_code else LINK.sub(r"\1", text)
        source = source.replace("runs/quickstart", "runs/notebook")
        if source.strip():
            cells.append(_cell(number, is_code, source.strip()))
    return json.dumps(other | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, is_code: bool, source: str) -> dict[str, Any]:
    cell = {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
    if is_code:
        return cell | {"cell_type": "code", "execution_count": None, "outputs": []}
    return cell | {"cell_type": "markdown"}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
