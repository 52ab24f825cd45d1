#!/bin/sh
# Makes the Python environment that the wheel is built and tested in: venv.sh PYTHON DIRECTORY
set -eu
python=$1
venv=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: $python is not Python 3.11 or later; PYTHON=... names another one" >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    # Debian keeps these in a package of their own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$python has no venv: installing python3-venv" >&2
        apt-get update -qq >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv >&2
    else
        echo "error: $python cannot make environments; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi

[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
maturin=$(sed -n 's/^requires = \["\(maturin==[0-9.]*\)"\]$/\1/p' python/pyproject.toml)
"$venv/bin/pip" install --quiet --disable-pip-version-check "${maturin:?pyproject.toml names no maturin}" \
    -r python/requirements-test.txt
