"""Tables in docs/results that are written manually, after a mark `<!-- checked NAME -->`."""

import re

from paths import ROOT

FOLDER = ROOT / "docs" / "results"
PAGES = sorted(page.name for page in FOLDER.glob("*.md"))
CHECKED = re.compile(r"<!-- checked (\w+) -->\n((?:\|.*\n)+)")


def manual_table(name):
    """The cells of a table, its heads first."""
    found = {m[1]: m[2] for page in PAGES for m in CHECKED.finditer((FOLDER / page).read_text())}
    heads, _, *rows = found[name].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (heads, *rows)]
