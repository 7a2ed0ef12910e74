"""The commands that configs give in their headers."""

import re
import shlex

from paths import CONFIGS, ROOT


def header_commands():
    """Gin file of each header's training command to the files and the bindings it gives."""
    found = {}
    for path in sorted(CONFIGS.rglob("*.gin")):
        text = path.read_text(encoding="utf-8").replace("\\\n#", " ")
        if line := re.search(r"^# Run: +(python -m brt\.train .*)", text, re.M):
            words = shlex.split(line[1])[3:]
            files = tuple(f"{ROOT}/{w[11:]}" for w in words if w.startswith("--gin_file="))
            bound = [w[6:].split("=", 1) for w in words if w.startswith("--gin.")]
            found[str(path.relative_to(CONFIGS))] = files, tuple(f"{n} = {v}" for n, v in bound)
    return found


COMMANDS = header_commands()
ALONE = [
    "quickstart.gin",
    *(f"benchmark/{p.name}" for p in sorted(CONFIGS.glob("benchmark/*.gin"))),
]
ALONE.remove("benchmark/common.gin")
COMMANDS |= {name: ((str(CONFIGS / name),), ()) for name in ALONE}
"""Name of a config to the files and bindings of the training command in its header."""
