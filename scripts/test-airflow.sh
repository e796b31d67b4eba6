#!/usr/bin/env bash
# Run the tests of the Airflow skin, and one system test, on another Airflow than that of .venv.
#
#   scripts/test-airflow.sh VERSION [--differences | PYTEST ARGUMENT…]
#
# --differences: the unit tests of what differs between versions, and the system test: what make test runs every day.
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
if [ "${1:-}" = --differences ]; then
    # Metadata, DAG files, and every class that takes another way on an older Airflow.
    FILES=(
        test_dags.py test_provider_info.py assets/test_uri.py hooks/test_connection.py hooks/test_connection_form.py
        links/test_channel_page.py notifications/test_lag.py operators/test_branch.py operators/test_mapping.py
        operators/test_serialization.py plugins/test_snowpipe.py policies/test_before_airflow_3_3.py
        queues/test_snowpipe.py sensors/test_commit.py triggers/test_files_loaded.py triggers/test_upgrade.py
    )
    # One process: a second one would import this Airflow once more, and other stages run beside it.
    exec "$VENV/bin/python" -m pytest -m "not nightly" tests/system/test_commit_sensor.py "${FILES[@]/#/tests/unit/}"
elif [ $# -gt 0 ]; then
    exec "$VENV/bin/python" -m pytest "$@"
fi
# Protocol and Spark job know nothing of Airflow.
"$VENV/bin/python" -m pytest tests/unit $IN_PARALLEL \
    --ignore tests/unit/streaming --ignore tests/unit/spark --ignore tests/unit/bulk --ignore tests/unit/routing \
    --ignore tests/unit/test_architecture.py --ignore tests/unit/test_run_stages.py
"$VENV/bin/python" -m pytest tests/system/test_commit_sensor.py
