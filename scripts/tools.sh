#!/bin/sh
# Says which tool a command of the Makefile lacks, and how to get it: tools.sh rust | python PYTHON
set -eu

missing() {
    printf 'error: %s\n  help: %s\n' "$1" "$2" >&2
    exit 1
}

# Whether version $1 is at least version $2.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

rust() {
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    get="https://rustup.rs installs it, or update yours: rustup update stable"
    command -v "${cargo%% *}" >/dev/null || missing "${cargo%% *} is not installed; sluicenet is built with Rust $needed or later" "$get"
    # Words, as in `cargo +stable`.
    # shellcheck disable=SC2086
    found=$($cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p')
    [ -n "$found" ] || missing "\`$cargo --version\` fails; sluicenet is built with Rust $needed or later" "$get"
    at_least "$found" "$needed" || missing "$cargo is version $found; sluicenet is built with Rust $needed or later" "$get"
    command -v cc >/dev/null || missing "cc is not installed; Rust links programs with cc" "on Debian: apt-get install gcc libc6-dev"
}

python() {
    command -v "$1" >/dev/null || missing "$1 is not installed; the Python package and the tests use Python 3.11 or later" \
        "on Debian 12: apt-get install python3 python3-venv; PYTHON=... names another interpreter"
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        missing "$1 is not Python 3.11 or later" "PYTHON=... names another interpreter, as in: make test PYTHON=python3.12"
    "$1" -c 'import venv, ensurepip' 2>/dev/null ||
        missing "$1 has no venv, which holds the packages that the tests use" "on Debian: apt-get install python3-venv"
}

cargo=${CARGO:-cargo}
case ${1:-} in
rust) rust ;;
python) python "${2:-python3}" ;;
*) missing "tools.sh knows rust and python" "tools.sh rust; tools.sh python python3" ;;
esac
