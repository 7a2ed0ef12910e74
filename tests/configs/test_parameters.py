"""A parameter that gin may bind is bound by a config or a sweep, or a page names it."""

import re

from paths import CONFIGS, ROOT

from brt.bindings.gin_private import registered
from brt.bindings.registry import known_names

FROM_FOLDERS = ("brt.pretrained.decoders.", "brt.pretrained.encoders.")
"""Modules of pretrained families, whose parameters come from the files of a folder."""


def words_of_code(page):
    """In lower case, as `FILE` may name a parameter `file`."""
    code = re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL)
    return set(re.findall(r"\w+", "".join(code).lower()))


def test_every_parameter_is_in_a_config_a_sweep_or_a_page():
    configs = [*CONFIGS.rglob("*.gin"), *CONFIGS.rglob("*.txt"), *ROOT.glob("docs/**/*.gin")]
    bound = {name for path in configs for name in re.findall(r"\w+\.\w+", path.read_text())}
    pages = [*map(words_of_code, [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])]
    names, missing = known_names(), []
    modules = {name: entry.module for name, entry in registered()}
    for owner, parameters in names.items():
        for parameter in parameters:
            name = f"{owner}.{parameter}"
            on_page = any({owner.lower(), parameter.lower()} <= words for words in pages)
            if not (on_page or name in bound or modules[owner].startswith(FROM_FOLDERS)):
                missing.append(name)
    assert len(names) > 50 and not missing, missing
