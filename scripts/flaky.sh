#!/usr/bin/env bash
# Run the unit tests that wait for something many times, beside two busy loops: what is not sure of itself fails.
#
#   ROUNDS=50 scripts/flaky.sh [FILE…]
#
# Without files: those that know threads, processes, an event loop or a condition to wait for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(grep -rlE --include='test_*.py' \
        'import (asyncio|threading|subprocess|multiprocessing)|from concurrent|MockCluster|jumping_loop|wait_until|\buntil\(|time\.sleep' tests/unit | sort)
fi
loops=()
trap 'kill "${loops[@]}"' EXIT
for _ in 1 2; do
    (while :; do :; done) &
    loops+=($!)
done
.venv/bin/python -m pytest -p tests.rounds_plugin --rounds "${ROUNDS:-20}" "${files[@]}" \
    -q -n 2 --dist loadfile --max-worker-restart 0 -m "not spark and not nightly" --timeout 300
