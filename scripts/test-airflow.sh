#!/usr/bin/env bash
# Run the tests of the Airflow skin, and one system test, on another Airflow than that of .venv.
#
#   scripts/test-airflow.sh VERSION [PYTEST ARGUMENT…]
#
# Makes .venv-airflow-VERSION from exactly the versions of scripts/airflow-versions/VERSION.txt; needs .venv (make install).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'test-airflow: %s\n' "$*" >&2; exit 1; }
supported() { find scripts/airflow-versions -name '*.txt' -printf '%f\n' | sed 's/\.txt$//' | sort -V | paste -sd' '; }

VERSION=${1:-}
[ $# -eq 0 ] || shift
LOCK=scripts/airflow-versions/$VERSION.txt
VENV=.venv-airflow-$VERSION
[ -n "$VERSION" ] && [ -f "$LOCK" ] ||
    die "VERSION is '$VERSION': name one of $(supported), for example: make test-airflow VERSION=2.11"
if [ "$VERSION" = 2.11 ] && .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
    printf 'test-airflow: SKIPPED: Airflow 2.11 does not run on %s; make install PYTHON=… with 3.11 or 3.12 runs it\n' \
        "$(.venv/bin/python --version)"
    exit 0
fi

if [ ! "$VENV/.installed" -nt "$LOCK" ] || [ ! "$VENV/.installed" -nt pyproject.toml ] ||
    [ ! "$VENV/.installed" -nt snowpipe-local/pyproject.toml ]; then
    printf '\033[1m==>\033[0m Installing the versions of %s into %s\n' "$LOCK" "$VENV"
    source scripts/package-index.sh
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$VENV"
    printf -- '--editable .\n--editable ./snowpipe-local\n' | VIRTUAL_ENV="$PWD/$VENV" \
        .venv/bin/uv pip sync --quiet --compile-bytecode --build-constraints constraints.txt "$LOCK" -
    touch "$VENV/.installed"
fi

export PATH="$PWD/$VENV/bin:$PATH"
IN_PARALLEL=${IN_PARALLEL:--n 2 --dist loadfile --max-worker-restart 0}
if [ $# -gt 0 ]; then
    exec "$VENV/bin/python" -m pytest "$@"
fi
# Protocol and Spark job know nothing of Airflow.
"$VENV/bin/python" -m pytest tests/unit $IN_PARALLEL \
    --ignore tests/unit/streaming --ignore tests/unit/spark --ignore tests/unit/bulk --ignore tests/unit/routing \
    --ignore tests/unit/test_architecture.py --ignore tests/unit/test_run_stages.py
"$VENV/bin/python" -m pytest tests/system/test_commit_sensor.py
