"""How many cases a fuzz test runs: about 1,000 in all by default, always the same ones.

``SNOWPIPE_FUZZ_CASES=20000`` asks for that many, with new random values each time (``make nightly``).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ASKED = os.environ.get("SNOWPIPE_FUZZ_CASES")
_CASES = int(_ASKED or 1000)


def cases(share: float) -> settings:
    """Return the settings of a test that takes this share of all cases."""
    return settings(
        max_examples=max(1, round(_CASES * share)),
        derandomize=_ASKED is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
