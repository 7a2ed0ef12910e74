"""Installs brt for the notebooks in this folder, with a JAX that uses the GPU.

An installed jax and CUDA plugin stay if brt runs with them; else the extra for the GPU's driver is
installed.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("report", "notebooks", "text")
PINNED = re.compile(r"jax|jaxlib|jax[-_]cuda\d+[-_](plugin|pjrt)|libtpu")
"""Packages tied to one version of JAX."""
CUDA_13 = 580
"""The first driver that runs CUDA 13; CUDA 12 runs from 525 on."""
LOOK = "import brt, jax; print(jax.__version__, jax.default_backend(), jax.devices())"


def install(shell: Any) -> None:
    """Installs brt and prints JAX's devices; failing commands stop the notebook."""
    stop_at_failures(shell)
    driver = driver_version()
    before = jax_packages()
    extras, pins = plan(before, driver)
    said = ", ".join(pins) or "the newest that brt runs with"
    print(f"Installing brt with the extras {', '.join(extras)}; JAX: {said}.", flush=True)
    stale = [name for name in before if not pins and "cuda" in name]
    if stale:
        pip("uninstall", "-q", "-y", *stale)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pins) + "\n")
        constraints.flush()
        pip("install", "-q", "-c", constraints.name, "-e", f"{ROOT}[{','.join(extras)}]")
    if "jax" in sys.modules and jax_packages() != before:
        raise SystemExit(
            "Another version of JAX is in use by this session: restart it (Runtime > Restart "
            "session) and run all cells again."
        )
    look_at_devices(driver)


def plan(packages: dict[str, str], driver: int | None) -> tuple[list[str], list[str]]:
    usable = packages.get("jax", "0") in allowed_jax()
    has_plugin = any("cuda" in name for name in packages)
    if usable and (has_plugin or driver is None):
        return list(EXTRAS), [f"{name}=={version}" for name, version in sorted(packages.items())]
    if driver is not None:
        return [*EXTRAS, "gpu" if driver >= CUDA_13 else "gpu12"], []
    return [*EXTRAS, "tpu"] if "libtpu" in packages else list(EXTRAS), []


def allowed_jax() -> SpecifierSet:
    found = re.search(r'"jax([<>=!~][^"]*)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert found is not None
    return SpecifierSet(found[1])


def jax_packages() -> dict[str, str]:
    found = importlib.metadata.distributions()
    named = ((distribution.metadata["Name"] or "", distribution.version) for distribution in found)
    return {name: version for name, version in named if PINNED.fullmatch(name)}


def driver_version() -> int | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True)
    number = re.match(r"\d+", found.stdout)
    return int(number[0]) if found.returncode == 0 and number else None


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        print(found.stdout, found.stderr)
        raise SystemExit(f"`{' '.join(command)}` failed: its last lines say why.")


def look_at_devices(driver: int | None) -> None:
    """Prints a new process's devices; ends the notebook if JAX does not use the GPU."""
    found = subprocess.run([sys.executable, "-c", LOOK], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        print(found.stderr)
        raise SystemExit("brt cannot be imported after it was installed: the lines above say why.")
    print(f"JAX {found.stdout.strip()}", flush=True)
    if " cpu " not in found.stdout:
        return
    if driver is not None:
        print(found.stderr)
        raise SystemExit(
            "This machine has a GPU and JAX does not use it: restart the session (Runtime > "
            "Disconnect and delete runtime) and run this cell again, or install the extra gpu "
            "(CUDA 13) or gpu12 (CUDA 12) of brt by hand."
        )
    print(
        "No GPU: everything runs on the CPU, several times as long. In Colab: Runtime > Change "
        "runtime type."
    )


def stop_at_failures(shell: Any) -> None:
    plain = shell.system

    def system(command: str) -> None:
        plain(command)
        if shell.user_ns.get("_exit_code"):
            raise SystemExit("The command above failed: its last lines say why.")

    shell.system = system
