#!/usr/bin/env bash
# Install the project and everything its demo and tests need into .venv, from exactly the versions of requirements.lock.
#
# Needs only python3 (3.11 or newer). A Debian python3 comes without ensurepip: then python3-venv is installed with
# apt-get, the one thing this script ever does outside of the project's folder.
#
#   PYTHON        the interpreter to build .venv with   (default: python3)
#   UV_VERSION    the version of uv put into .venv      (default: the one below)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
UV_VERSION=${UV_VERSION:-0.13.8}
VENV=.venv

log() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() { printf 'install: %s\n' "$*" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || die "no '$PYTHON' on this machine: install Python 3.11 or newer, or name one: make install PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$PYTHON" --version 2>&1) is too old: Python 3.11 or newer is needed. Name one: make install PYTHON=/path/to/python3.11"

install_venv_module() {
    local packages become=()
    packages=$("$PYTHON" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv python3-venv")')
    command -v apt-get >/dev/null ||
        die "$PYTHON has no ensurepip/venv module and this machine has no apt-get: install the venv module of your Python, then run make install again"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            die "$PYTHON has no ensurepip/venv module. As root, run: apt-get install -y ${packages%% *}   then run make install again"
        become=(sudo)
    fi
    log "$PYTHON has no ensurepip/venv module: installing ${packages%% *} with apt-get"
    local package
    "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    for package in $packages; do
        if "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; then
            return 0
        fi
    done
    die "apt-get could install neither of: $packages"
}

if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || install_venv_module
    log "Creating $VENV with $("$PYTHON" --version)"
    "$PYTHON" -m venv --clear "$VENV"
fi

if [ "$("$VENV/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    log "Installing uv $UV_VERSION into $VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
fi

source scripts/package-index.sh
export VIRTUAL_ENV="$PWD/$VENV"

log "Installing the versions of requirements.lock, and both distributions of this folder (editable)"
# One transaction: syncing the lock alone would take both away from whatever is running, until they are back.
printf -- '--editable .\n--editable ./snowpipe-local\n' |
    "$VENV/bin/uv" pip sync --quiet --compile-bytecode --build-constraints constraints.txt requirements.lock -
# uv leaves out what is editable.
"$VENV/bin/python" -m compileall -q airflow_provider_snowpipe snowpipe-local/snowpipe_local demo
touch "$VENV/.installed"
log "Ready: $VENV"
