#!/usr/bin/env bash
# Build both distributions, and check what a release of either needs.
#
#   scripts/release-check.sh [TAG]    TAG: v<version> of the provider, or snowpipe-local-v<version>; none for no release yet
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'release-check: %s\n' "$*" >&2; exit 1; }
step() { printf '\033[1m==>\033[0m %s\n' "$*"; }

if [ -n "${1:-}" ]; then
    folder=. name=airflow-provider-snowpipe
    [[ $1 != snowpipe-local-* ]] || folder=snowpipe-local name=snowpipe-local
    version=$(.venv/bin/python -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$name")
    step "$1 against version $version of $name"
    [ "${1#snowpipe-local-}" = "v$version" ] || die "the tag is $1 and $name has version $version: change one of them"
    heading=$(grep -m1 -F "## [$version]" "$folder/CHANGELOG.md") || die "$folder/CHANGELOG.md has no heading [$version]"
    [[ $heading != *unreleased* ]] || die "$folder/CHANGELOG.md says '$heading': write the date"
    [ -z "$(git status --porcelain)" ] || die "the checkout has changes that are not committed: commit or remove them"
fi

step "sdists and wheels, as an index checks them"
scripts/dist.sh
step "the provider's metadata, by Airflow's own schema"
.venv/bin/python -m pytest -q tests/unit/test_provider_info.py
step "these wheels in empty environments, and the quickstart as it is printed"
SNOWPIPE_FRESH_INSTALL=1 SNOWPIPE_WHEELS="$PWD/dist" \
    .venv/bin/python -m pytest -q -rs --timeout 3600 tests/integration/test_fresh_install.py
