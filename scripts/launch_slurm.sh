#!/usr/bin/env bash
# Trains on a Slurm cluster, from nothing: installs brt, says what would run on the nodes and GPUs that
# are asked for, has one job prepare the token stores, and after it one train, which is queued again by
# itself until the run is done:
#   scripts/launch_slurm.sh --nodes=2 --gpus-per-node=8 --time=12:00:00 -- \
#       --gin_file=configs/pg19_rec_fixed_skip.gin --workdir=/shared/runs/rec
# What follows `--` is for brt.train; what stands before it is for sbatch (--cpus-per-task is 8 if it
# is not given: preparation runs one process a CPU), except:
#   --prepare=OPTION     for sbatch, of the job that prepares alone, as --prepare=--partition=cpu
#   --extras=NAMES       of brt to be installed (gpu,storage,data)
#   --splits=NAMES       to be prepared (train,validation)
#   --dry                print every command and run none
# One process a node, with every GPU of it; preparation takes one node and no GPU. Uses .venv, which
# is made if it is not there, or the Python named by PYTHON. scripts/slurm_job.sh is what runs on the
# nodes.
# It was tested against stand-ins of sbatch and srun, and with Slurm on one machine, without GPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/malloc.sh

extras=gpu,storage,data splits=train,validation dry='' options=()
alone=() preparing=() kept=1 # the second: options that ask for no nodes, tasks or GPUs
while [ $# -gt 0 ]; do
    case $1 in
        --extras=*) extras=${1#*=} ;;
        --splits=*) splits=${1#*=} ;;
        --prepare=*) alone+=("${1#*=}") ;;
        --dry) dry=1 ;;
        --help) sed -n '2,/^set /s/^# \{0,1\}//p' "scripts/${0##*/}"; exit ;;
        --) shift; break ;;
        --gin* | --workdir*) echo "Error: $1 is a flag of brt.train: write it after --." >&2; exit 2 ;;
        *)
            options+=("$1")
            case $1 in
                --gpu* | --gres* | --tres* | --*-per-gpu* | --*-per-node* | -G*) kept='' ;;
                --nodes* | -N* | --ntasks* | -n* | --exclusive*) kept='' ;;
                -*) kept=1 ;;
            esac
            [ -z "$kept" ] || preparing+=("$1") # or its value, in a word of its own
            ;;
    esac
    shift
done
case " $* " in
    *" --workdir="*) ;;
    *) echo "Error: give brt.train a --workdir that all nodes see, after --." >&2; exit 2 ;;
esac
for extra in ${extras//,/ }; do
    grep -q "^    \"$extra\": \[" setup.py ||
        { echo "Error: --extras: setup.py has no extra $extra." >&2; exit 2; }
done

described=()
for flag in "$@"; do
    case $flag in
        --gin_file=* | --gin.* | --gin_bindings=* | --gin_search_paths=*) described+=("$flag") ;;
        --allow_imports=* | --text=*) described+=("$flag") ;;
    esac
done

exec 3>&1 # standard output, inside of $( ) too
run() {
    if [ -n "$dry" ]; then
        printf '%q ' "$@" >&3
        echo >&3
    else
        "$@"
    fi
}

python=${PYTHON:-.venv/bin/python}
if [ -z "${PYTHON:-}" ] && [ ! -x .venv/bin/python ]; then
    run python3 -m venv .venv
    run .venv/bin/pip install -q -e ".[$extras]"
fi
# For the nodes and GPUs that are asked for; for one device where the options do not name them so.
asked=" ${options[*]-} " nodes=1 gpus='' type='[[:alpha:]][^:, ]*:'
if [[ $asked =~ \ (--nodes[= ]|-N\ ?)([^ ]+)\  ]]; then
    nodes=${BASH_REMATCH[2]}
fi
if [[ $asked =~ \ (--gpus-per-node[= ]|--gres[= ]gpu:)($type)?([0-9]+)\  ]]; then
    gpus=${BASH_REMATCH[3]}
fi
if [[ -n $gpus && $nodes =~ ^[0-9]+$ && ! $asked =~ \ (--ntasks[= ]|-n|--nodelist|-w) ]]; then
    plan=--devices=${nodes}x$gpus
else
    plan="--gin.Trainer.mesh=(-1, 1)"
fi
run "$python" -m brt.train --dry_run ${described[@]+"${described[@]}"} "$plan"
prepared=$(run sbatch --parsable --cpus-per-task=8 ${preparing[@]+"${preparing[@]}"} \
    ${alone[@]+"${alone[@]}"} --job-name=brt-prepare --nodes=1 --ntasks=1 scripts/slurm_job.sh \
    brt.prepare --splits="$splits" ${described[@]+"${described[@]}"})
prepared=${prepared:-JOB}
# Two minutes before the time limit the script of the job is told, which saves and queues it again.
run sbatch --cpus-per-task=8 ${options[@]+"${options[@]}"} --job-name=brt-train \
    --ntasks-per-node=1 --requeue --open-mode=append --signal=B:TERM@120 \
    --dependency="afterok:${prepared%%;*}" scripts/slurm_job.sh brt.train --distributed "$@"
