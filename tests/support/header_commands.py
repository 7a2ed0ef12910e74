"""The commands and flags that configs and sweeps give in their headers."""

import re
import shlex

from paths import CONFIGS, ROOT

FLAG = r"""--gin(?:_file=[^\s'",;()]+|\.[\w./]+=(?:'[^']*'|[^\s'";()]+))"""
FLAGS = re.compile(rf"{FLAG}(?:\s+{FLAG})*")
"""Flags with nothing but white space between them, which are given together."""


def header(path):
    """The comment a file begins with, with its command lines joined."""
    lines = path.read_text(encoding="utf-8").replace("\\\n#", " ").splitlines()
    comments = (line for line in lines if line.startswith("#"))
    return "\n".join(line.removeprefix("#").strip() for line in comments)


def files_and_bindings(flags):
    """Gin files and gin lines of flags, given as one text."""
    words = [word.rstrip(".,:") for word in shlex.split(flags)]
    files = tuple(f"{ROOT}/{w[11:]}" for w in words if w.startswith("--gin_file="))
    bound = [w[6:].split("=", 1) for w in words if w.startswith("--gin.")]
    return files, tuple(f"{name} = {value}" for name, value in bound)


def header_commands():
    """Gin file of each header's training command to the files and the bindings it gives."""
    found = {}
    for path in sorted(CONFIGS.rglob("*.gin")):
        if line := re.search(r"^Run: +(python -m brt\.train .*)", header(path), re.M):
            found[str(path.relative_to(CONFIGS))] = files_and_bindings(line[1])
    return found


COMMANDS = header_commands()
ALONE = [
    "quickstart.gin",
    *(f"benchmark/{p.name}" for p in sorted(CONFIGS.glob("benchmark/*.gin"))),
]
ALONE.remove("benchmark/common.gin")
COMMANDS |= {name: ((str(CONFIGS / name),), ()) for name in ALONE}
"""Name of a config to the files and bindings of the training command in its header."""


def further_commands():
    """All other flags of headers, `NAME: FLAGS`, to the files and the bindings they make up.

    Flags that name a model of their own stand alone; others come after the config's training
    command. Flags that ask for a folder of weights are left out.
    """
    found = {}
    for path in sorted(CONFIGS.rglob("*.gin")):
        name = str(path.relative_to(CONFIGS))
        run = COMMANDS.get(name, ((), ()))
        text = header(path)
        for match in FLAGS.finditer(text):
            if text[match.end() :].lstrip().startswith("--text"):  # needs a folder of texts
                continue
            files, bound = files_and_bindings(match[0])
            alone = any(not re.search("/(corpora|tasks)/|/test_", file) for file in files)
            if any(line.startswith("Pretrained.folder") for line in bound):
                continue
            if (files, bound) == run or not (alone or run[0]):
                continue
            if not alone:
                replaces = text[match.end() :].lstrip().startswith("in place of")
                own = run[0][: -int(replaces) or None]
                files, bound = (*own, *files), (*run[1], *bound)
            found[f"{name}: {' '.join(match[0].split())}"] = files, bound
    return found


FURTHER = further_commands()
