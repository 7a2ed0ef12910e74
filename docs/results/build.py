"""Writes the tables and figures of the pages of results from archives of runs.

    python docs/results/build.py [FOLDER]

FOLDER (default: the folder of this file) holds README.md and other pages, runs/ and figures/. Needs
the extra `report`.
"""

import sys
from pathlib import Path

from results_page.page import write_results

from brt.host.terminal import printable

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for problem in write_results(folder).problems:
        print(f"Note: {printable(problem)}")
    print(f"Written: the pages and figures of {folder}")
