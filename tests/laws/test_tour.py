"""The core is small and independent: the files of docs/tour.md."""

import ast
import io
import re
import tokenize

from apart import python
from paths import ROOT, TESTS

NAMES = re.findall(r"^\d+\. .*", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), re.M)
TOUR = [name for line in NAMES for name in re.findall(r"`(brt/[\w/]+\.py)`", line)]
MAXIMUM = 2_240
"""Lines of code of all files together: lower this number, never raise it."""
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
EXTENSIONS = ("brt.pretrained", "brt.studies", "brt.reporting", "brt.benchmarks", "brt.sweeps")
PREPARATION = ("tensorflow", "seqio")


def code_lines(text: str) -> int:
    """Lines that are neither blank, comments nor docstrings."""
    code, silent = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*SILENT, tokenize.ENDMARKER):
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(code - silent)


def test_code_is_counted_without_comments_and_docstrings():
    assert code_lines('"""A\n\nmodule."""\n\n# Why.\nx = (1,  # one\n     2)\n') == 2


def test_the_tour_has_its_files_and_their_size():
    assert len(NAMES) == 16
    lines = sum(code_lines((ROOT / name).read_text(encoding="utf-8")) for name in TOUR)
    assert lines <= MAXIMUM


def test_training_loads_no_extension_and_no_tensorflow():
    loaded = python("import sys, brt.train; print(*sys.modules)").split()
    assert "brt.run.loop" in loaded
    assert not [name for name in loaded if name.startswith((*EXTENSIONS, *PREPARATION))]


def test_names_of_tests_have_at_most_60_characters():
    found = (re.findall(r"^ *def (test_\w+)", p.read_text(), re.M) for p in TESTS.rglob("*.py"))
    assert [name for names in found for name in names if len(name) > 60] == []
