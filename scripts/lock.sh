#!/usr/bin/env bash
# Resolve both pyproject.toml together: requirements.lock for .venv, scripts/airflow-versions/*.txt for `make test-airflow`.
# snowpipe-local is that of this folder: its requirements are locked, it is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/package-index.sh

resolve() {
    printf -- '--editable ./snowpipe-local\n' |
        .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links --no-emit-package snowpipe-local --constraints constraints.txt "$@" -
}

resolve --extra dev --generate-hashes --output-file requirements.lock pyproject.toml
for requirements in scripts/airflow-versions/*.in; do
    resolve --extra local --extra spark --extra test --output-file "${requirements%.in}.txt" pyproject.toml "$requirements"
done
