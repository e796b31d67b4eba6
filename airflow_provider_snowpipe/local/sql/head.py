"""The start of CREATE, ALTER and DROP: kind of object, OR REPLACE, TEMPORARY, IF [NOT] EXISTS, name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_snowpipe.local.errors import compilation_error
from airflow_provider_snowpipe.local.identifiers import read_path

_HEAD = re.compile(
    r"\w+\s+(?P<replace>OR\s+REPLACE\s+)?(?:(?:LOCAL|GLOBAL|SCOPED)\s+)?"
    r"(?P<temporary>TEMP\s+|TEMPORARY\s+|VOLATILE\s+)?(?:TRANSIENT\s+)?(?P<kind>FILE\s+FORMAT|\w+)\s+"
    r"(?P<exists>IF\s+(?:NOT\s+)?EXISTS\s+)?(?P<name>.*)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Head:
    """What a DDL statement says before its options.

    :param is_replacing: OR REPLACE.
    :param is_temporary: TEMPORARY, TEMP or VOLATILE.
    :param is_tolerant: IF EXISTS or IF NOT EXISTS.
    :param path: the object's name, under Snowflake's case rules.
    :param rest: the text after the name.
    """

    is_replacing: bool
    is_temporary: bool
    is_tolerant: bool
    path: tuple[str, ...]
    rest: str


def read_head(text: str) -> Head:
    """Read the start of a CREATE, ALTER, DROP or DESCRIBE statement.

    :raises SqlError: when it has no name.
    """
    match = _HEAD.match(text)
    if match is None:
        raise compilation_error(f"syntax error: '{' '.join(text.split()[:4])}' needs a name.")
    path, rest = read_path(match["name"])
    return Head(bool(match["replace"]), bool(match["temporary"]), bool(match["exists"]), path, rest)
