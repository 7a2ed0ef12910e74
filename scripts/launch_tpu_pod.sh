#!/usr/bin/env bash
# Trains on a slice of TPUs, from nothing, and goes on after every preemption until the run is done:
#   scripts/launch_tpu_pod.sh --name=brt --zone=us-central2-b --type=v4-32 --spot -- \
#       --gin_file=configs/pg19_rec_fixed_skip.gin --workdir=gs://BUCKET/runs/rec \
#       --gin.Corpus.store='"gs://BUCKET/stores/pg19"'
# What follows `--` is for brt.train. Before it:
#   --name=NAME --zone=ZONE --type=TYPE   of the queued resource that is asked for, and its one node
#   --spot               a slice that may be taken away at any time
#   --runtime=VERSION    of the hosts' software (tpu-ubuntu2204-base)
#   --extras=NAMES       of brt to be installed (tpu,storage,data)
#   --splits=NAMES       to be prepared, once, by the first host (train,validation)
#   --tries=N            slices that are asked for at most, one after another (100)
#   --every=SECONDS      between two looks at what the slice is doing (60)
#   --no_plan            leave out what the slice's compiler says before anything is rented
#   --keep               do not delete the slice at the end
#   --dry                print every command and run none
# Hosts share no disk, so --workdir and Corpus.store belong into a bucket. The commit that is
# checked out here is what runs. Needs gcloud, with a project.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/malloc.sh

name='' zone='' type='' runtime=tpu-ubuntu2204-base extras=tpu,storage,data splits=train,validation
tries=100 every=60 plan=1 keep='' dry='' spot=()
while [ $# -gt 0 ]; do
    case $1 in
        --name=*) name=${1#*=} ;;
        --zone=*) zone=${1#*=} ;;
        --type=*) type=${1#*=} ;;
        --runtime=*) runtime=${1#*=} ;;
        --extras=*) extras=${1#*=} ;;
        --splits=*) splits=${1#*=} ;;
        --tries=*) tries=${1#*=} ;;
        --every=*) every=${1#*=} ;;
        --spot) spot=(--spot) ;;
        --no_plan) plan='' ;;
        --keep) keep=1 ;;
        --dry) dry=1 ;;
        --) shift; break ;;
        *) echo "Error: $1 is no option of $0: flags of brt.train follow after --." >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$name" ] || [ -z "$zone" ] || [ -z "$type" ]; then
    echo "Error: give --name, --zone and --type of the slice." >&2
    exit 2
fi
case " $* " in
    *" --workdir=gs://"*) ;;
    *) echo "Error: --workdir must be a gs:// folder, as hosts of a pod share no disk." >&2; exit 2 ;;
esac

# Flags that say what is trained, which brt.prepare and the flight plan read too.
described=()
for flag in "$@"; do
    case $flag in
        --gin_file=* | --gin.* | --gin_bindings=* | --gin_search_paths=*) described+=("$flag") ;;
    esac
done

run() {
    if [ -n "$dry" ]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

quoted() { printf '%q ' "$@"; }

tpu() { run gcloud compute tpus "$@" --zone="$zone"; }

# What a slice is doing: ACTIVE, or a word on the way to it or away from it; GONE if there is none.
state() {
    if [ -n "$dry" ]; then
        echo ACTIVE
        return
    fi
    local said
    until said=$(gcloud compute tpus queued-resources describe "$name" --zone="$zone" \
        --format='value(state.state)' 2>&1); do
        case $said in
            *NOT_FOUND* | *"not found"*) echo GONE; return ;;
        esac
        echo "$said" >&2 # no answer just now is no reason to delete anything
        sleep "$every"
    done
    echo "${said##*$'\n'}"
}

on_hosts() { # which hosts, then a command line
    tpu tpu-vm ssh "$name" --worker="$1" --command="$2"
}

in_brt="cd ~/brt && . scripts/malloc.sh && .venv/bin/python -m"
install="mkdir -p ~/brt && tar -xzf ~/brt.tar.gz -C ~/brt && cd ~/brt && python3 -m venv .venv \
&& .venv/bin/pip install -q -e '.[$extras]'"

if [ -n "$plan" ]; then
    run "${PYTHON:-.venv/bin/python}" -m brt.train --dry_run --topology="$type" \
        ${described[@]+"${described[@]}"}
fi
archive=$(mktemp -d)/brt.tar.gz
trap 'rm -rf "$(dirname "$archive")"' EXIT
run git archive --format=tar.gz --output="$archive" HEAD

prepared='' status=1
for ((try = 1; try <= tries; try++)); do
    if [ "$(state)" = GONE ] || [ -n "$dry" ]; then
        tpu queued-resources create "$name" --node-id="$name" --accelerator-type="$type" \
            --runtime-version="$runtime" ${spot[@]+"${spot[@]}"}
    fi
    while now=$(state) && [ "$now" != ACTIVE ]; do
        case $now in
            GONE | FAILED | SUSPENDED | SUSPENDING | DELETING) break ;;
        esac
        echo "$name is $now; it is looked at again in $every s." >&2
        sleep "$every"
    done
    if [ "$now" = ACTIVE ]; then
        status=0
        { tpu tpu-vm scp "$archive" "$name:brt.tar.gz" --worker=all &&
            on_hosts all "$install" &&
            { [ -n "$prepared" ] || on_hosts 0 "$in_brt brt.prepare --splits=$splits $(quoted ${described[@]+"${described[@]}"})"; } &&
            prepared=1 &&
            on_hosts all "$in_brt brt.train --distributed $(quoted "$@")"; } || status=$?
        [ "$status" -ne 0 ] || break
        now=$(state)
        if [ "$now" = ACTIVE ]; then
            echo "Error: the command failed with status $status, and $name is there: see above." >&2
            break
        fi
    fi
    echo "$name is $now: another slice is asked for, and the run goes on where it was saved." >&2
    tpu queued-resources delete "$name" --force --quiet || true
done
[ -n "$keep" ] || tpu queued-resources delete "$name" --force --quiet
exit "$status"
