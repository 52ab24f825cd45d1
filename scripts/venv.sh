#!/bin/sh
# Makes the Python environment that the wheel is built and tested in: venv.sh PYTHON DIRECTORY
set -eu
python=$1
venv=$2

scripts/tools.sh python "$python"
[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
maturin=$(sed -n 's/^requires = \["\(maturin==[0-9.]*\)"\]$/\1/p' python/pyproject.toml)
"$venv/bin/pip" install --quiet --disable-pip-version-check "${maturin:?pyproject.toml names no maturin}" \
    -r python/requirements-test.txt
