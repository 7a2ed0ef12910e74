# shellcheck shell=bash
# Sourced by the other scripts: a virtual environment in .venv with brt and the extras in $1.
# Downloading is timed apart from installing.
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "brt needs Python 3.11 or newer; $python is $("$python" --version 2>&1)." >&2
    echo "Name another one: PYTHON=python3.12 bash $0" >&2
    exit 1
fi
wanted=$(cat setup.py scripts/environment.sh; echo "$1 $PWD")
wanted=$(printf %s "$wanted" | cksum)
if [ ! -f .venv/brt-installed ] || ! grep -qxF "$wanted" .venv/brt-installed; then
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    started=$SECONDS
    echo "Downloading packages ..."
    .venv/bin/pip download -q --disable-pip-version-check -d .venv/wheels ".$1" "setuptools>=70" wheel
    echo "Downloaded in $((SECONDS - started)) s."
    started=$SECONDS
    echo "Installing ..."
    .venv/bin/pip install -q --disable-pip-version-check --no-index --find-links .venv/wheels \
        "setuptools>=70" wheel
    .venv/bin/pip install -q --disable-pip-version-check --no-index --find-links .venv/wheels \
        --no-build-isolation -e ".$1"
    rm -rf .venv/wheels build
    echo "Installed in $((SECONDS - started)) s."
    echo "$wanted" >>.venv/brt-installed
fi
export PATH="$PWD/.venv/bin:$PATH"
