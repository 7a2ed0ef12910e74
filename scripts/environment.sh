# shellcheck shell=bash
# Sourced by the other scripts: a virtual environment with brt and the extras in $1, in .venv, or in the
# folder named by VENV. With PYTHON it is made of that Python, and made again if it is of another
# version. With OLDEST=1 it has the lowest versions that setup.py allows. Downloading is timed apart
# from installing.
venv=${VENV:-.venv}
python=${PYTHON:-python3}
if [ -z "${PYTHON:-}" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    python=$venv/bin/python
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "brt needs Python 3.11 or newer; $python is $("$python" --version 2>&1)." >&2
    echo "Name another one: PYTHON=python3.12 bash $0" >&2
    exit 1
fi
version=$("$python" --version)
if [ "$("$venv/bin/python" --version 2>/dev/null)" != "$version" ]; then
    [ ! -d "$venv" ] || echo "$venv is of another Python and is made again with $version."
    "$python" -m venv --clear "$venv"
fi
wanted=$(cat setup.py scripts/environment.sh; echo "$1 $PWD ${OLDEST:-}")
wanted=$(printf %s "$wanted" | cksum)
if [ ! -f "$venv/brt-installed" ] || ! grep -qxF "$wanted" "$venv/brt-installed"; then
    pip=("$venv/bin/python" -m pip -q --disable-pip-version-check)
    started=$SECONDS
    if [ -n "${OLDEST:-}" ]; then
        echo "Installing the oldest versions ..."
        "${pip[@]}" install uv
        "$venv/bin/python" -m uv pip install -q --python "$venv/bin/python" \
            --resolution lowest-direct -e ".$1"
    else
        echo "Downloading packages ..."
        "${pip[@]}" wheel -w "$venv/wheels" ".$1" "setuptools>=70" wheel
        echo "Downloaded in $((SECONDS - started)) s."
        started=$SECONDS
        echo "Installing ..."
        "${pip[@]}" install --no-index --find-links "$venv/wheels" "setuptools>=70" wheel
        "${pip[@]}" install --no-index --find-links "$venv/wheels" --no-build-isolation \
            --use-pep517 -e ".$1"
        rm -rf "$venv/wheels" build
    fi
    echo "Installed in $((SECONDS - started)) s."
    echo "$wanted" >>"$venv/brt-installed"
fi
PATH=$(cd "$venv/bin" && pwd):$PATH
export PATH
