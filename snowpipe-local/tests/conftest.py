"""Settings that all tests of the service share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# A busy machine takes its time for an example. A run that decides tries the same examples every time; a
# number of cases that is asked for (tests/fuzz/budget.py) means new ones.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="SNOWPIPE_FUZZ_CASES" not in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "mutants", settings.get_profile("tests"), phases=(Phase.explicit, Phase.generate), max_examples=50
)
settings.load_profile("tests")
