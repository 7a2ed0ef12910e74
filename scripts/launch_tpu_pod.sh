#!/usr/bin/env bash
# Trains on a slice of TPUs, from nothing, and goes on after every preemption until the run is done:
#   scripts/launch_tpu_pod.sh --name=brt --zone=us-central2-b --type=v4-32 --spot -- \
#       --gin_file=configs/pg19_rec_fixed_skip.gin --workdir=gs://BUCKET/runs/rec \
#       --gin.Corpus.store='"gs://BUCKET/stores/pg19"'
# What follows `--` is for brt.train. Before it:
#   --name=NAME --zone=ZONE --type=TYPE   of the queued resource that is asked for, and its one node
#   --slices=N           of that type, as the nodes NAME-0, NAME-1, ... of one resource (1)
#   --spot               a slice that may be taken away at any time
#   --runtime=VERSION    of the hosts' software; by the type: v2-alpha-tpuv6e of v6e, v2-alpha-tpuv5 of
#                        v5p, v2-alpha-tpuv5-lite of v5e (v5litepod), tpu-ubuntu2204-base of others
#   --python=VERSION     that is installed on the hosts, whose own is too old (3.12)
#   --extras=NAMES       of brt to be installed (tpu,storage,data)
#   --splits=NAMES       to be prepared, once, by the first host (train,validation)
#   --tries=N            slices that are asked for at most, one after another (100)
#   --every=SECONDS      between two looks at what the slice is doing (60)
#   --no_plan            do not ask the slice's compiler before anything is rented
#   --keep               do not delete the slice at the end
#   --dry                print every command and run none
# Hosts share no disk, so --workdir and Corpus.store belong into a bucket. What is sent is the commit
# that is checked out here, what has changed since, and files that git ignores where flags or settings
# name them (a vocabulary, texts); a dry run has to find all of them here before anything is rented.
# The run is a job of the hosts and goes on without this script, which replaces preempted slices and
# deletes the last one: start the same command again to follow the run.
# Hosts of several slices find one another by the TPU's metadata.
# Needs gcloud, with a project. It was tested against a stand-in of gcloud, and not on a slice.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/malloc.sh

name='' zone='' type='' slices=1 runtime='' version=3.12 extras=tpu,storage,data splits=train,validation
tries=100 every=60 plan=1 keep='' dry='' spot=()
while [ $# -gt 0 ]; do
    case $1 in
        --name=*) name=${1#*=} ;;
        --zone=*) zone=${1#*=} ;;
        --type=*) type=${1#*=} ;;
        --slices=*) slices=${1#*=} ;;
        --runtime=*) runtime=${1#*=} ;;
        --python=*) version=${1#*=} ;;
        --extras=*) extras=${1#*=} ;;
        --splits=*) splits=${1#*=} ;;
        --tries=*) tries=${1#*=} ;;
        --every=*) every=${1#*=} ;;
        --spot) spot=(--spot) ;;
        --no_plan) plan='' ;;
        --keep) keep=1 ;;
        --dry) dry=1 ;;
        --help) sed -n '2,/^set /s/^# \{0,1\}//p' "scripts/${0##*/}"; exit ;;
        --) shift; break ;;
        *) echo "Error: $1 is no option of $0: flags of brt.train follow after --." >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$name" ] || [ -z "$zone" ] || [ -z "$type" ]; then
    echo "Error: give --name, --zone and --type of the slice." >&2
    exit 2
fi
[[ $slices =~ ^[1-9][0-9]*$ ]] || { echo "Error: --slices=$slices is no number." >&2; exit 2; }
nodes=("$name") request=(--node-id="$name") planned=$type
if [ "$slices" -gt 1 ]; then
    nodes=() planned=${slices}x$type
    for ((node = 0; node < slices; node++)); do nodes+=("$name-$node"); done
    request=(--node-count="$slices" --node-prefix="$name")
fi
case $version in
    3.1[1-9] | 3.1[1-9].*) ;;
    *) echo "Error: --python=$version: brt needs Python 3.11 or newer." >&2; exit 2 ;;
esac
for extra in ${extras//,/ }; do
    grep -q "^    \"$extra\": \[" setup.py ||
        { echo "Error: --extras: setup.py has no extra $extra." >&2; exit 2; }
done
if [ -z "$runtime" ]; then
    case $type in
        v6e*) runtime=v2-alpha-tpuv6e ;;
        v5p*) runtime=v2-alpha-tpuv5 ;;
        v5*) runtime=v2-alpha-tpuv5-lite ;;
        *) runtime=tpu-ubuntu2204-base ;;
    esac
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
        --allow_imports=* | --text=*) described+=("$flag") ;;
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

# Ends the script where the zone has no such slices, or the project no quota for them.
check_quota() {
    local limits kind=(-v 'preemptible\|reserved')
    [ ${#spot[@]} = 0 ] || kind=(preemptible)
    if [ -z "$(tpu accelerator-types list --filter="type=$type" --format='value(type)')" ]; then
        echo "Error: there are no slices of type $type in $zone." >&2
        exit 1
    fi
    limits=$(gcloud beta quotas info list --service=tpu.googleapis.com --flatten=dimensionsInfos \
        --project="$(gcloud config get-value project)" \
        --format='csv[no-heading](quotaId,dimensionsInfos.details.value,dimensionsInfos.applicableLocations)' |
        grep -i "^TPUV${type:1:1}.*$zone" | grep -i "${kind[@]}") || true
    echo "Quota for $type in $zone: ${limits:-not known}" >&2
    if [[ -n $limits && ! $limits =~ ,-?[1-9] ]]; then # -1: no limit
        echo "Error: the project may not use them: ask for quota first." >&2
        exit 1
    fi
}

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

on_hosts() { # which hosts, then a command line; 0 is the first of the first slice
    local node pids=() pid result=0
    if [ "$1" = 0 ] || [ "$slices" = 1 ]; then
        tpu tpu-vm ssh "${nodes[0]}" --worker="$1" --command="$2"
        return
    fi
    for node in "${nodes[@]}"; do
        tpu tpu-vm ssh "$node" --worker="$1" --command="$2" &
        pids+=($!)
        [ -z "$dry" ] || { wait; pids=(); } # so that commands are printed in order
    done
    for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" || result=$?; done
    return "$result"
}

copy() {
    local node
    for node in "${nodes[@]}"; do
        tpu tpu-vm scp "$archive" "$node:brt.tar" --worker=all || return
    done
}

in_brt="cd ~/brt && . scripts/malloc.sh && .venv/bin/python -m"
running="kill -0 \$(cat ~/brt/job.pid)"
install="mkdir -p ~/brt && tar -xf ~/brt.tar -C ~/brt && cd ~/brt && export PATH=~/.local/bin:\$PATH \
&& { command -v uv || python3 -m pip install -q --user uv \
|| curl -LsSf https://astral.sh/uv/install.sh | sh; } \
&& uv venv -q --clear --python $version .venv && uv pip install -q --python .venv -e '.[$extras]'"

# Files of this machine that flags or settings name. A store is made where the run is.
named() {
    { printf '%s\n' "$@"; cat "$folder/settings"; } |
        grep -vE '^(--gin\.)?Corpus\.store\b|^--(workdir|store_cache|compilation_cache)=' |
        grep -oE "['\"][^'\"]+['\"]|=[^'\" ]+" | sed "s/^=//; s/['\"]//g; s/{split}/*/g" | sort -u |
        while read -r path; do compgen -G "${path/#\~/$HOME}" || true; done
}

[ -n "$dry" ] || check_quota
folder=$(mktemp -d)
archive=$folder/brt.tar
trap 'rm -rf "$folder"' EXIT
if [ -n "$plan" ]; then
    asked=("--topology=$planned" ${described[@]+"${described[@]}"})
else # of one device
    asked=(${described[@]+"${described[@]}"} "--gin.Trainer.mesh=(-1, 1)")
fi
run "${PYTHON:-.venv/bin/python}" -m brt.train --dry_run "${asked[@]}" | tee "$folder/settings"
run git archive --output="$archive" HEAD
# Unquoted, so that names of other characters are files, too.
git -c core.quotePath=off diff --name-only --relative HEAD >"$folder/sent"
git -c core.quotePath=off ls-files --others --exclude-standard >>"$folder/sent"
while read -r path; do
    path=${path#"$PWD"/}
    case $path in
        /* | ../*)
            echo "Error: $path is not in this checkout, and hosts do not have it: copy it here." >&2
            exit 1
            ;;
    esac
    [ -z "$path" ] || ! git check-ignore -q "$path" || echo "$path" >>"$folder/sent"
done < <(named "$@")
while read -r path; do
    if [ -e "$path" ]; then
        echo "Sent, and not committed: $path ($(du -sh "$path" | cut -f1))." >&2
        run tar -rf "$archive" "$path"
    fi
done <"$folder/sent"

prepared='' status=1
for ((try = 1; try <= tries; try++)); do
    if [ "$(state)" = GONE ] || [ -n "$dry" ]; then
        tpu queued-resources create "$name" "${request[@]}" --accelerator-type="$type" \
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
        [ -z "$dry" ] && on_hosts all "$running" 2>/dev/null ||
            { copy &&
                on_hosts all "$install" &&
                { [ -n "$prepared" ] || on_hosts 0 "$in_brt brt.prepare --splits=$splits $(quoted ${described[@]+"${described[@]}"})"; }; } || status=$?
        if [ "$status" = 0 ]; then
            prepared=1
            on_hosts all "bash ~/brt/scripts/tpu_job.sh brt.train --distributed $(quoted "$@")" || status=$?
        fi
        [ "$status" -ne 0 ] || break
        now=$(state)
        if [ "$now" = ACTIVE ]; then
            ! on_hosts all "$running" 2>/dev/null || continue # the connection was lost
            echo "Error: the command failed with status $status, and $name is there: see above." >&2
            break
        fi
    fi
    echo "$name is $now: another slice is asked for, and the run goes on where it was saved." >&2
    tpu queued-resources delete "$name" --force --quiet || true
done
[ -n "$keep" ] || tpu queued-resources delete "$name" --force --quiet
exit "$status"
