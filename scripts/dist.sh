#!/usr/bin/env bash
# Build sdist and wheel (the wheel from the sdist) of both distributions, and check them as the package index would.
#
#   scripts/dist.sh [FOLDER]    where they go (default: dist), emptied before
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/package-index.sh

folder=${1:-dist}
rm -rf "$folder"
for distribution in . snowpipe-local; do
    .venv/bin/uv build --quiet --build-constraints constraints.txt --out-dir "$folder" "$distribution"
done
.venv/bin/uv tool run --quiet twine check --strict "$folder"/*.whl "$folder"/*.tar.gz
