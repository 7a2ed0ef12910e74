#!/usr/bin/env bash
# Runs scripts/test.sh with the newest allowed versions on every Python from 3.11 that this machine
# has, and with the oldest ones on the oldest Python. Takes hours. Options are those of test.sh.
#   bash scripts/test_versions.sh
#   PYTHONS="python3.12 /opt/python3.13/bin/python3" bash scripts/test_versions.sh tests/models
# Each environment is kept in .venv-VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

candidates=(python3 python3.{11..19} ~/.pyenv/versions/*/bin/python3
    ~/.local/share/uv/python/*/bin/python3)
read -ra chosen <<<"${PYTHONS:-}"
results=()

corner() { # the environment's name, its Python, OLDEST or nothing, options
    local result=passed
    PYTHON=$2 VENV=.venv-$1 OLDEST=$3 bash scripts/test.sh "${@:4}" || result=FAILED
    results+=("$1 $result")
}

for version in 3.{11..19}; do
    for python in "${chosen[@]:-${candidates[@]}}"; do
        path=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)' \
            2>/dev/null) || continue
        if [ "${path%% *}" = "$version" ]; then
            [ ${#results[@]} -gt 0 ] || corner "$version-oldest" "${path#* }" 1 "$@"
            corner "$version" "${path#* }" "" "$@"
            break
        fi
    done
done
printf '%s\n' "${results[@]:-No Python 3.11 or newer FAILED}"
[[ "${results[*]:-FAILED}" != *FAILED* ]]
