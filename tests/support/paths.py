"""Where the repository's folders are, and the shared data that tests use when it is there."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
SCRIPTS = ROOT / "scripts"
TESTS = ROOT / "tests"
SHARED = ROOT.parent / "shared"
"""Next to the checkout. If it is absent, tests that read it are skipped."""
GOLDEN = SHARED / "golden"
