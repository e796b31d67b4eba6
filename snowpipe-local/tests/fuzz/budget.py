"""How many cases a fuzz test runs: a share of 100 by default, always the same ones.

Requests to the described routes are so many in all, and so are statements; other tests take smaller shares.
``SNOWPIPE_FUZZ_CASES=20000`` asks for shares of that many, with new random values (``make nightly``).
"""

import os

from hypothesis import HealthCheck, settings

_ASKED = os.environ.get("SNOWPIPE_FUZZ_CASES")
_CASES = int(_ASKED or 100)


def cases(share: float) -> settings:
    """Return the settings of a test that takes this share of the cases."""
    return settings(
        max_examples=max(1, round(_CASES * share)),
        derandomize=_ASKED is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
