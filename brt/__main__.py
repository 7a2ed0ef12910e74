"""The command `brt`: `brt train ...` is `python -m brt.train ...`."""

import ast
import importlib.util
import os
import runpy
import sys
from pathlib import Path

COMMANDS = ("prepare", "train", "evaluate", "generate", "sweep", "report", "export", "benchmark")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        del sys.argv[1]
        if not sys.flags.safe_path:  # as with `python -m`: finds modules of the current folder
            sys.path.insert(0, os.getcwd())
        runpy.run_module(f"brt.{name}", run_name="__main__", alter_sys=True)
        return
    lines = [f"  {command:<10} {_summary(command)}" for command in COMMANDS]
    text = "\n".join(["usage: brt COMMAND [--help | FLAGS]", "", *lines])
    if name in ("", "-h", "--help", "help"):
        print(text)
    else:
        sys.exit(f"Error: brt has no command {name!r}.\n\n{text}")


def _summary(command: str) -> str:
    spec = importlib.util.find_spec(f"brt.{command}")
    assert spec and spec.origin
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


if __name__ == "__main__":
    main()
