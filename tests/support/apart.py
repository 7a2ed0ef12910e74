"""Programs in processes of their own."""

import os
import subprocess
import sys

from paths import ROOT


def run(*line, cwd=ROOT, status=0, **variables):
    """Runs a program, which must end with `status`; returns its standard output.

    variables: of its environment, besides those of this process; it finds this checkout's brt.
    """
    done = subprocess.run(
        list(map(str, line)),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr[-3000:]
    return done.stdout


def python(code, *arguments, **options):
    """The same, of Python code."""
    return run(sys.executable, "-c", code, *arguments, **options)
