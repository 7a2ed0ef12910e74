"""scripts/cloud: keys that the documentation has, and their commands as far as the cloud."""

import json
import math
import os
import re
import shutil
import subprocess
import sys

import pytest
from apart import run
from paths import ROOT, SCRIPTS
from tiny_run import quick_environment

from brt.benchmarks import topologies

CLOUD = SCRIPTS / "cloud"
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
EXTRAS = set(re.findall(r'^    "([\w-]+)": \[', SETUP, re.M))

SKYPILOT = {
    *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "volumes", "file_mounts"),
    *("setup", "run", "config"),
}
"""https://docs.skypilot.co/en/latest/reference/yaml-spec.html"""
RESOURCES = {
    *("infra", "accelerators", "accelerator_args", "cpus", "memory", "instance_type", "use_spot"),
    *("disk_size", "disk_tier", "network_tier", "image_id", "ports", "labels", "autostop"),
    *("any_of", "ordered", "job_recovery"),
}


def load(name):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((CLOUD / name).read_text(encoding="utf-8"))


RECORDER = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
"""


def run_of_skypilot(folder, nodes, rank, flags):
    """The arguments of Python in the task's `run`, on a node."""
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text(RECORDER)
    (folder / ".venv/bin/python").chmod(0o755)
    shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        "PATH": os.environ["PATH"],
        "FLAGS": flags,
        "SKYPILOT_NODE_IPS": "\n".join(f"10.0.0.{number}" for number in range(nodes)),
        "SKYPILOT_NUM_NODES": str(nodes),
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    }
    line = ["bash", "-c", load("skypilot.yaml")["run"]]
    done = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_task_of_skypilot_has_known_keys_and_extras():
    task = load("skypilot.yaml")
    assert task.keys() <= SKYPILOT and task["resources"].keys() <= RESOURCES
    assert set(task["envs"]["EXTRAS"].split(",")) <= EXTRAS
    for part in ("setup", "run"):
        run("bash", "-n", "-c", task[part])


def test_each_node_of_skypilot_starts_its_process_of_the_run(tmp_path):
    flags = "--workdir=gs://b/run --gin.Corpus.store='\"gs://b/a b\"'"
    given = ["--workdir=gs://b/run", '--gin.Corpus.store="gs://b/a b"']
    assert run_of_skypilot(tmp_path / "several", 2, 1, flags) == [
        *("-m", "brt.train", "--devices=2x8", "--coordinator_address=10.0.0.0:8476"),
        *("--num_processes=2", "--process_id=1", *given),
    ]
    alone = run_of_skypilot(tmp_path / "alone", 1, 0, flags)
    assert alone == ["-m", "brt.train", "--devices=1x8", *given]


def test_the_job_of_gke_has_the_hosts_and_chips_of_its_slices():
    job = load("gke_tpu.yaml")
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job["spec"].keys() <= {"failurePolicy", "successPolicy", "replicatedJobs", "network"}
    (replicated,) = job["spec"]["replicatedJobs"]
    of_slice = replicated["template"]["spec"]
    assert of_slice["completions"] == of_slice["parallelism"] and not of_slice["backoffLimit"]
    pod = of_slice["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # the JobSet starts all of them again
    selector = pod["nodeSelector"]
    sides = selector["cloud.google.com/gke-tpu-topology"]
    (container,) = pod["containers"]
    chips = of_slice["parallelism"] * container["resources"]["limits"]["google.com/tpu"]
    assert chips == math.prod(map(int, sides.split("x")))
    assert selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    target = topologies.find(f"{replicated['replicas']}xv5e:{sides}")
    assert f"--devices={target.slices}x{target.chips}" in container["args"]
    assert container["args"][:2] == ["train", "--distributed"]
    (gin,) = (word for word in container["args"] if word.startswith("--gin_file="))
    assert (ROOT / gin.partition("=")[2]).is_file()


def test_the_image_has_the_files_that_brt_needs(tmp_path):
    lines = (CLOUD / "Dockerfile").read_text(encoding="utf-8").splitlines()
    instructions = [line.split() for line in lines if line and not line.startswith("#")]
    for name, *words in instructions:
        if name == "COPY":
            *sources, place = words
            for source in sources:
                path, end = ROOT / source, tmp_path / place
                assert path.exists(), source
                if path.is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                    shutil.copytree(path, end, ignore=ignored, dirs_exist_ok=True)
                else:
                    shutil.copy(path, end)
    line = "-m", "brt", "train", "--gin_file=configs/quickstart.gin", "--dry_run"
    environment = quick_environment() | {"PYTHONPATH": str(tmp_path)}
    assert "parameters, all" in run(sys.executable, *line, cwd=tmp_path, **environment)


@pytest.mark.parametrize("accelerator", ["", "gpu", "gpu12", "tpu"])
def test_the_image_is_built_for_cpus_or_what_the_argument_names(accelerator):
    text = (CLOUD / "Dockerfile").read_text(encoding="utf-8")
    (default,) = re.findall(r"^ARG EXTRAS=(.*)", text, re.M)
    (install,) = re.findall(r'^RUN pip install .*(".*")$', text, re.M)
    said = run("sh", "-c", f"echo {install}", EXTRAS=default, ACCELERATOR=accelerator)
    (named,) = re.findall(r"^\.\[(.*)\]$", said.strip())
    found = {*named.split(",")}
    assert found <= EXTRAS and found - {*default.split(",")} == {accelerator} - {""}
