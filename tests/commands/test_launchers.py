"""Launchers of pods and clusters: what gcloud and Slurm are asked for, and a run of two."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile

import pytest
from apart import run
from paths import ROOT, SCRIPTS

from brt.benchmarks import topologies

GIN = ["--gin_file=configs/quickstart.gin", '--gin.Corpus.store="gs://b/it\'s"']
GIN += ["--allow_imports=own_memories", "--text=books"]
TRAINED = [*GIN, "--workdir=gs://b/run", "--allow_changes"]
TPU = ["--name=pod", "--zone=us-central2-b", "--type=v4-32", "--every=0"]

RECORDER = """\
#!/usr/bin/env python
import json, os, shutil, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""
GCLOUD = (
    RECORDER
    + """
def take(name):
    path = os.path.join(os.environ["ANSWERS"], name)
    lines = open(path).read().split("\\n") if os.path.exists(path) else []
    if len(lines) > 1:
        open(path, "w").write("\\n".join(lines[1:]))
    return lines[0] if lines else ""

if "describe" in sys.argv:
    state = take("states")
    if state in ("NOT_FOUND", "no route"):
        sys.exit("ERROR: " + state)
    print(state)
elif "scp" in sys.argv:
    shutil.copy(sys.argv[5], os.path.join(os.environ["ANSWERS"], "sent.tar"))
elif "accelerator-types" in sys.argv:
    print((take("types") or "v4-32").replace("none", ""))
elif "quotas" in sys.argv:
    print(take("quota"))
elif any("kill -0" in argument for argument in sys.argv):
    sys.exit(int(take("running") or 1))
elif any("brt.train --distributed" in argument for argument in sys.argv):
    sys.exit(int(take("statuses") or 0))
"""
)
PYTHON = (
    RECORDER
    + """
print(os.environ.get("SETTINGS", ""))
sys.exit(int(os.environ.get("STATUS", 0)))
"""
)
SBATCH = (
    RECORDER
    + """
print("4711;cluster" if "--parsable" in sys.argv else "Submitted batch job 4712")
"""
)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts programs of these names before all others; scripts call `python_of_test` for Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("ANSWERS", str(tmp_path))

    def make(**programs):
        for name, text in programs.items():
            text = text.replace("#!/usr/bin/env python\n", f"#!{sys.executable}\n")
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
            if name == "python_of_test":
                monkeypatch.setenv("PYTHON", str(folder / name))
        return folder

    return make


def calls(tmp_path):
    path = tmp_path / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def launch(name, *arguments, scripts=SCRIPTS, status=0):
    """Runs a launcher, which must end with `status`; standard output and error."""
    command = ["bash", str(scripts / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def checkout_at(folder):
    """Makes a checkout of the scripts and a config; git ignores the other files."""
    shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.py", folder)
    (folder / ".gitignore").write_text("/vocabularies/\n/stores/\n/text/\n")
    for name in (
        "configs/mine.gin",
        "vocabularies/t5.model",
        "stores/a/tokens",
        "text/train/a.txt",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("committed")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "All"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def launch_tpu(stand_in, tmp_path, states, statuses, *options, trained=TRAINED, status=0):
    """Runs the launcher against a slice that is in these states, one after another; its errors."""
    if not (checkout := tmp_path / "checkout").exists():
        checkout_at(checkout)
    scripts = checkout / "scripts"
    stand_in(gcloud=GCLOUD, python_of_test=PYTHON)
    (tmp_path / "states").write_text("\n".join(states))
    (tmp_path / "statuses").write_text("\n".join(map(str, statuses)))
    arguments = *TPU, *options, "--", *trained
    return launch("launch_tpu_pod.sh", *arguments, scripts=scripts, status=status)[1]


def verbs(tmp_path):
    """What was done, in order: calls of gcloud by their last words, without the looks."""
    found = []
    for call in calls(tmp_path):
        words = " ".join(call)
        if call[0] != "gcloud":
            found.append("plan")
        elif "--zone" not in words or "describe" in call or "list" in call or "kill -0" in words:
            continue
        elif "ssh" in call:
            line = call[-2].removeprefix("--command=")
            (what,) = [w for w in ("pip install", "brt.prepare", "brt.train") if w in line]
            found.append(f"{what} on {call[6].removeprefix('--worker=')}")
        else:
            found.append(call[4])
    return found


ONCE = ["pip install on all", "brt.prepare on 0", "brt.train on all"]


def test_a_slice_is_created_installed_prepared_and_deleted(stand_in, tmp_path):
    states = ["NOT_FOUND", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    launch_tpu(stand_in, tmp_path, states, [0], "--spot")
    assert verbs(tmp_path) == ["plan", "create", "scp", *ONCE, "delete"]
    (first,) = (call for call in calls(tmp_path) if call[0] != "gcloud")
    (create,) = (call for call in calls(tmp_path) if "create" in call)
    assert first[1:] == ["-m", "brt.train", "--dry_run", "--topology=v4-32", *GIN]
    assert create[1:5] == ["compute", "tpus", "queued-resources", "create"]
    assert {"pod", "--node-id=pod", "--accelerator-type=v4-32", "--spot"} <= set(create)
    assert "--zone=us-central2-b" in create


def test_several_slices_are_one_request_and_train_together(stand_in, tmp_path):
    launch_tpu(stand_in, tmp_path, ["NOT_FOUND", "ACTIVE"], [0], "--slices=2")
    found, nodes = calls(tmp_path), {}
    for call in found:
        if "ssh" in call:
            assert call[4] == "ssh"
            (what,) = [
                w for w in ("kill -0", "pip install", "brt.prepare", "brt.train") if w in call[-2]
            ]
            nodes.setdefault(what, []).append((call[5], call[6]))
    every = [("pod-0", "--worker=all"), ("pod-1", "--worker=all")]
    assert {what: sorted(asked) for what, asked in nodes.items()} == {
        **{what: every for what in ("kill -0", "pip install", "brt.train")},
        "brt.prepare": [("pod-0", "--worker=0")],
    }
    assert [call[6] for call in found if "scp" in call] == ["pod-0:brt.tar", "pod-1:brt.tar"]
    assert sum("delete" in call for call in found) == 1


PREEMPTED = ["ACTIVE", "ACTIVE", "SUSPENDED", "NOT_FOUND", "PROVISIONING", "ACTIVE"]
AGAIN = ["create", "scp", ONCE[0], ONCE[2]]  # stores lie in the bucket
COURSES = {
    "a preemption": (PREEMPTED, [255, 0], ["--spot", "--keep"], ["scp", *ONCE, "delete", *AGAIN]),
    "a command that fails on a living slice": (["ACTIVE"], [1], [], ["scp", *ONCE, "delete"]),
    "one of several slices that fails": (["ACTIVE"], [1, 0], ["--slices=2"], None),
    "a lost connection": (["ACTIVE"], [255, 0], [], ["scp", *ONCE, ONCE[2], "delete"]),
    "no answer of a slice": (["no route", *["ACTIVE"] * 2], [0], [], ["scp", *ONCE, "delete"]),
}
"""States of a slice, statuses of its training, options, and the calls after the plan."""


@pytest.mark.parametrize("course", COURSES)
def test_only_a_preempted_command_takes_another_slice(stand_in, tmp_path, course):
    states, statuses, options, done = COURSES[course]
    (tmp_path / "running").write_text("1\n0\n0" if course == "a lost connection" else "")
    options, status = ["--no_plan", *options], int(1 in statuses)
    said = launch_tpu(stand_in, tmp_path, states, statuses, *options, status=status)
    assert ("no route" if "no route" in states else "status 1" * status) in said
    assert done is None or verbs(tmp_path) == ["plan", *done]
    trained = {str(call) for call in calls(tmp_path) if "brt.train" in call[-2]}
    assert len(trained) == 1 + ("--slices=2" in options)


@pytest.mark.parametrize(
    ("types", "quota", "options"),
    [
        ("none", "", []),
        ("v4-32", "TPUV4PodPerProjectPerZone,0,us-central2-b", []),
        ("v4-32", "TPUV4PreemptiblePodPerProjectPerZone,0,us-central2-b", ["--spot"]),
    ],
)
def test_a_slice_that_the_project_may_not_have_is_not_asked_for(
    stand_in, tmp_path, types, quota, options
):
    (tmp_path / "types").write_text(types)
    (tmp_path / "quota").write_text(quota)
    said = launch_tpu(stand_in, tmp_path, ["NOT_FOUND"], [0], *options, status=1)
    assert "us-central2-b" in said and not verbs(tmp_path)


def test_a_job_of_a_host_outlives_its_connection(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("tpu_job.sh", "malloc.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (python := tmp_path / ".venv/bin/python").parent.mkdir(parents=True)
    python.write_text("#!/bin/bash\necho begun $2\nuntil [ -e go ]; do sleep 0.05; done\nexit 3\n")
    python.chmod(0o755)
    command = ["bash", str(tmp_path / "scripts/tpu_job.sh"), "brt.train"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as connection:
        assert connection.stdout.readline() == "begun brt.train\n"
        connection.kill()
    (tmp_path / "go").touch()
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 3 and again.stdout == "begun brt.train\n"


def planned(*options):
    """The commands that the dry mode for a pod prints, and those of its hosts, as words."""
    printed, _ = launch("launch_tpu_pod.sh", *TPU, *options, "--dry", "--", *TRAINED)
    lines = [shlex.split(line) for line in printed.splitlines()]
    on_hosts = [shlex.split(line[-2].removeprefix("--command=")) for line in lines if "ssh" in line]
    return lines, on_hosts


def test_flags_reach_the_hosts_of_a_pod_as_they_were_written(stand_in, tmp_path):
    stand_in(gcloud=GCLOUD)
    (plan, *_), (_, prepare, train) = planned("--no_plan")
    assert plan[1:] == ["-m", "brt.train", "--dry_run", *GIN, "--gin.Trainer.mesh=(-1, 1)"]
    assert prepare[-len(GIN) :] == GIN and "--splits=train,validation" in prepare
    assert train[-len(TRAINED) - 1 :] == ["--distributed", *TRAINED]
    assert "scripts/tpu_job.sh" in train[1] and not calls(tmp_path)


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        *[(kind, "tpu-ubuntu2204-base") for kind in ("v2-32", "v3-32", "v4-32")],
        ("v5litepod-64", "v2-alpha-tpuv5-lite"),
        ("v5p-64", "v2-alpha-tpuv5"),
        ("v6e-64", "v2-alpha-tpuv6e"),
    ],
)
def test_a_pods_plan_and_software_are_of_its_type(kind, runtime):
    (plan, *lines), (install, *_) = planned(f"--type={kind}", "--slices=2", "--python=3.13")
    (create,) = (line for line in lines if "create" in line)
    assert {f"--accelerator-type={kind}", f"--runtime-version={runtime}"} <= set(create)
    assert {"--node-count=2", "--node-prefix=pod"} <= set(create)
    assert not any("--node-id" in word for word in create)
    (asked,) = (word.partition("=")[2] for word in plan if word.startswith("--topology="))
    assert asked.startswith("2x") and topologies.find(asked).chips
    assert "uv venv -q --clear --python 3.13 .venv" in " ".join(install)


def sent(tmp_path):
    with tarfile.open(tmp_path / "sent.tar") as file:
        return {name: file.extractfile(name).read() for name in file.getnames() if "." in name}


SETTINGS = """\
Corpus.store                          = 'stores/a'
SentencePieceVocabulary.model_file    = 'vocabularies/t5.model'
TextFiles.path                        = 'text/{split}'
"""


def test_hosts_get_the_commit_and_what_is_not_in_it(stand_in, tmp_path, monkeypatch):
    launch_tpu(stand_in, tmp_path, ["ACTIVE"], [0])
    names = {"configs/mine.gin", "scripts/malloc.sh"}
    assert names <= set(sent(tmp_path)) and "vocabularies/t5.model" not in sent(tmp_path)
    monkeypatch.setenv("SETTINGS", SETTINGS)
    checkout = tmp_path / "checkout"
    (checkout / "configs/mine.gin").write_text("changed")
    (checkout / "configs/new.gin").write_text("new")
    (checkout / "configs/m\u00f6n.gin").write_text("staged")
    subprocess.run(["git", "add", "configs"], cwd=checkout, check=True)
    said = launch_tpu(stand_in, tmp_path, ["ACTIVE"], [0])
    found = sent(tmp_path)
    assert found["configs/mine.gin"] == b"changed" and found["configs/new.gin"] == b"new"
    assert found["configs/m\u00f6n.gin"] == b"staged"
    assert found["vocabularies/t5.model"] == found["text/train/a.txt"] == b"committed"
    assert "stores/a/tokens" not in found
    for name in ("mine.gin", "new.gin", "t5.model", "text/train"):
        assert name in said


def test_nothing_is_created_for_a_file_of_this_machine(stand_in, tmp_path):
    (tmp_path / "elsewhere.gin").write_text("")
    trained = [f"--gin_file={tmp_path}/elsewhere.gin", "--workdir=gs://b/run"]
    said = launch_tpu(stand_in, tmp_path, ["NOT_FOUND"], [0], trained=trained, status=1)
    assert f"{tmp_path}/elsewhere.gin" in said
    assert verbs(tmp_path) == ["plan"]


@pytest.mark.parametrize("options", [[], ["--no_plan"]])
def test_nothing_is_asked_for_where_the_dry_run_fails(stand_in, tmp_path, monkeypatch, options):
    monkeypatch.setenv("STATUS", "1")
    launch_tpu(stand_in, tmp_path, ["NOT_FOUND"], [0], *options, status=1)
    assert verbs(tmp_path) == ["plan"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*TPU, "--python=3.10", "--", *TRAINED], "3.11"),
        (["--name=pod", "--", *TRAINED], "--zone"),
        ([*TPU, "--", *GIN, "--workdir=runs/here"], "gs://"),
        ([*TPU, "--gin_file=x.gin"], "follow after --"),
        ([*TPU, "--extras=tpu,stroage", "--", *TRAINED], "stroage"),
    ],
)
def test_what_a_pod_cannot_do_is_refused_first(stand_in, tmp_path, arguments, said):
    stand_in(gcloud=GCLOUD)
    _, errors = launch("launch_tpu_pod.sh", *arguments, status=2)
    assert said in errors and not calls(tmp_path)


# Slurm.

OPTIONS = ["--nodes=2", "--gpus-per-node=8", "--time=12:00:00"]
SHARED = [*GIN, "--workdir=/shared/run"]


def test_a_job_prepares_and_another_trains_after_it(stand_in, tmp_path):
    stand_in(sbatch=SBATCH, python_of_test=PYTHON)
    launch("launch_slurm.sh", *OPTIONS, "--splits=train", "--", *SHARED)
    plan, prepare, train = calls(tmp_path)
    assert plan[1:] == ["-m", "brt.train", "--dry_run", *GIN, "--devices=2x8"]
    job = prepare.index("scripts/slurm_job.sh")
    assert prepare[job + 1 :] == ["brt.prepare", "--splits=train", *GIN]
    assert {"--parsable", "--time=12:00:00", "--nodes=1"} <= set(prepare[:job])
    assert not [option for option in prepare[:job] if "gpu" in option or option == "--nodes=2"]
    assert "--cpus-per-task=8" in prepare[:job] and "--cpus-per-task=8" in train
    job = train.index("scripts/slurm_job.sh")
    assert train[job + 1 :] == ["brt.train", "--distributed", *SHARED]
    assert {*OPTIONS, "--requeue", "--dependency=afterok:4711"} <= set(train[:job])
    assert "--signal=B:TERM@120" in train and "--ntasks-per-node=1" in train


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ("--nodes=2 --gpus-per-node=8", "2x8"),
        ("-N 4 --gres=gpu:h100:4", "4x4"),
        ("-N2 --gres gpu:2 --time=1", "2x2"),
        ("--nodes 2 --gpus-per-node a100:8", "2x8"),
        ("--gpus-per-node=8", "1x8"),
        ("--nodes=2-4 --gpus-per-node=8", None),
        ("--nodelist=n[1-2] --gpus-per-node=8", None),
        ("-n 4 --gres=gpu:4", None),
        ("--nodes=2 --gpus=16", None),
        ("--time=1", None),
        ("", None),
    ],
)
def test_a_job_is_planned_for_its_nodes_and_gpus(options, devices):
    printed, _ = launch("launch_slurm.sh", "--dry", *options.split(), "--", *SHARED)
    (plan,) = (line for line in map(shlex.split, printed.splitlines()) if "--dry_run" in line)
    assert plan[-1] == (f"--devices={devices}" if devices else "--gin.Trainer.mesh=(-1, 1)")


def test_preparation_asks_for_no_gpu_however_it_is_written(stand_in, tmp_path):
    stand_in(sbatch=SBATCH, python_of_test=PYTHON)
    asked = ["-N", "2", "--gres=gpu:8", "-G", "16", "--mem-per-gpu=9G", "--exclusive", "-A", "us"]
    asked += ["--cpus-per-task=24", "--partition=gpu", "--prepare=--partition=cpu"]
    launch("launch_slurm.sh", *asked, "--", *SHARED)
    _, prepare, train = calls(tmp_path)
    own = prepare[prepare.index("--parsable") + 1 : prepare.index("scripts/slurm_job.sh")]
    account, partitions = ["-A", "us"], ["--partition=gpu", "--partition=cpu"]
    cpus = ["--cpus-per-task=8", *account, "--cpus-per-task=24"]  # the last one counts
    named = ["--job-name=brt-prepare", "--nodes=1", "--ntasks=1"]
    assert own == [*cpus, *partitions, *named]
    assert set(asked[:-1]) <= set(train) and "--partition=cpu" not in train


def test_flags_of_training_before_the_dashes_are_refused(stand_in, tmp_path):
    stand_in(sbatch=SBATCH)
    refused = {"write it after --": [*SHARED], "--workdir that": [*OPTIONS, "--", *GIN]}
    for said, arguments in refused.items():
        _, errors = launch("launch_slurm.sh", *arguments, status=2)
        assert said in errors and not calls(tmp_path)


SRUN = """\
#!/usr/bin/env bash
trap 'echo saved; exit 0' TERM
echo "$@"
[ -z "${STATUS:-}" ] || exit "$STATUS"
while true; do sleep 0.05; done
"""


def test_a_job_that_is_told_to_end_waits_and_is_queued_again(stand_in, tmp_path, monkeypatch):
    stand_in(srun=SRUN, scontrol=RECORDER)
    for name, value in (("PYTHON", "python"), ("SLURM_JOB_ID", "7"), ("SLURM_SUBMIT_DIR", ROOT)):
        monkeypatch.setenv(name, str(value))
    command = ["bash", str(SCRIPTS / "slurm_job.sh"), "brt.train", "--distributed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "python -m brt.train --distributed\n"
        job.terminate()
        assert job.stdout.read() == "saved\n" and job.wait(60) == 0
    assert calls(tmp_path) == [["scontrol", "requeue", "7"]]
    monkeypatch.setenv("STATUS", "3")
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 3
    assert len(calls(tmp_path)) == 1


ANY_PYTHON = """\
#!/usr/bin/env bash
# A Python VERSION with venv and pip, which do nothing but take note.
echo "[\\"VERSION\\", \\"$*\\"]" >>"$CALLS"
case "$*" in
    --version) echo "Python VERSION" ;;
    "-m venv --clear "*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
esac
"""


def test_another_python_makes_the_environment_again(stand_in, tmp_path, monkeypatch):
    for name in "VENV", "PYTHON", "OLDEST":  # whoever runs the tests may have an environment
        monkeypatch.delenv(name, raising=False)
    versions = ("3.11.9", "3.12.3")
    folder = stand_in(**{f"python{v}": ANY_PYTHON.replace("VERSION", v) for v in versions})
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPTS / "environment.sh", checkout / "scripts")
    shutil.copy(ROOT / "setup.py", checkout)

    def enter(**settings):
        (tmp_path / "calls").unlink(missing_ok=True)
        command = "set -euo pipefail; source scripts/environment.sh [report]; python --version"
        said = run("bash", "-c", command, cwd=checkout, **settings)
        made = [call for call in calls(tmp_path) if "venv" in call[1] or "install" in call[1]]
        return said.split()[-1], bool(made)

    assert enter(PYTHON=str(folder / "python3.11.9")) == ("3.11.9", True)
    assert enter(PYTHON=str(folder / "python3.11.9")) == ("3.11.9", False)
    assert enter(PYTHON=str(folder / "python3.12.3")) == ("3.12.3", True)
    assert enter() == ("3.12.3", False)
    assert enter(PYTHON=str(folder / "python3.11.9"), VENV=".venv-3.11") == ("3.11.9", True)
    assert enter() == ("3.12.3", False)


def test_scripts_pass_shellcheck():
    program = shutil.which(
        "shellcheck", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    )
    if not program:
        pytest.skip("needs shellcheck, which the extra `dev` brings")
    run(program, "-x", *sorted(SCRIPTS.glob("*.sh")))
