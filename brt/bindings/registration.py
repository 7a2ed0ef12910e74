"""Imports every module whose classes and functions gin may name, so that gin knows them.

A file put into one of the packages needs no list to be extended. A module outside brt is named by
gin's own `import` line: `import my_memories` as the first line of a gin file, and allowed by
`--allow_imports=my_memories`.
"""

import functools
import importlib
import pkgutil

PACKAGES = ("brt.models", "brt.pretrained", "brt.data", "brt.training", "brt.evaluation")


@functools.cache
def register_all() -> None:
    """Imports all modules of `PACKAGES`, those of their folders included.

    A process looks at the folders once: a page of reports asks for thousands of classes.
    """
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
