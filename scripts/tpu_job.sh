#!/usr/bin/env bash
# What scripts/launch_tpu_pod.sh has each host run: a command of brt as a job that outlives the
# connection, whose output it prints. If the job is running, it only prints.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/malloc.sh
if ! kill -0 "$(cat job.pid 2>/dev/null)" 2>/dev/null; then
    rm -f job.status
    : >job.log # exists when tail opens it, however late the job starts
    # shellcheck disable=SC2016 # the job's shell expands them
    setsid bash -c '"$@"; echo $? >job.status' job .venv/bin/python -m "$@" \
        >job.log 2>&1 </dev/null &
    echo $! >job.pid
fi
tail -n +1 -f --pid="$(cat job.pid)" job.log
exit "$(cat job.status || echo 1)"
