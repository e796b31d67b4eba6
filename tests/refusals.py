"""Many values that one call refuses, checked in one test."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def refused(
    kind: type[Exception], call: Callable[[Any], object], values: Iterable[Any], *words: str
) -> list[Any]:
    """Check that a call refuses each value with an error of a kind; return the errors."""
    errors = []
    for value in values:
        try:
            call(value)
        except kind as error:
            errors.append((value, error))
        else:
            pytest.fail(f"{value!r} is not refused")
    for value, error in errors:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{value!r}: {missing} are not in {error}"
    return [error for _, error in errors]
