"""References to stages, as LIST takes them, and the names that LIST gives their files."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import quote_identifier

_PART = r'(?:"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_$]*)'
_REFERENCE = re.compile(rf"@?(?P<owner>(?:{_PART}\.){{0,2}})(?P<name>~|%?{_PART})(?:/(?P<path>[^\0]*)|\s*)")


@dataclass(frozen=True, slots=True)
class StageReference:
    """A stage and a path in it.

    :param owner: what the reference itself says of database and schema, such as ``DB.S.``; may be empty
    :param name: the stage: ``STAGE``, ``%TABLE`` or ``~``
    :param path: the path below the stage, without ``/`` at its ends; may be empty
    """

    owner: str
    name: str
    path: str

    @classmethod
    def parse(cls, text: str) -> StageReference:
        """Read ``@[[database.]schema.]stage[/path]``, ``@[…]%table[/path]`` or ``@~[/path]``.

        Blanks in a path are letters of it, at its end as well.

        :param text: the reference; the ``@`` may be left out
        :raises ConfigurationError: if it is no such reference
        """
        found = _REFERENCE.fullmatch(text.lstrip())
        if found is None:
            raise ConfigurationError(
                f"stage is {text[:80]!r}: give @<stage>, @<database>.<schema>.<stage>, @%<table> or @~, with "
                "or without a path after a slash"
            )
        path = (found["path"] or "").strip("/")
        return cls(found["owner"] or "", found["name"], path)

    def below(self, name: str) -> str:
        """A file's path below the stage.

        :param name: the file's path below this reference's, or a URL, which stays as it is
        """
        return f"{self.path}/{name}" if self.path and "://" not in name else name

    def location(self, prefix: str, *, database: str, schema: str) -> str:
        """What LIST takes to list the files whose path below this reference begins with a prefix.

        :param prefix: the start of the path; may be empty
        :param database: where the stage is, unless the reference says so
        :param schema: the same
        """
        owner = self.owner
        if self.name != "~" and len(re.findall(_PART, owner)) < 2:
            owner = f"{quote_identifier(database)}.{owner or quote_identifier(schema) + '.'}"
        path = f"{self.path}/{prefix}" if self.path else prefix
        return f"@{owner}{self.name}" + (f"/{path}" if path else "")

    def relative(self, listed: str) -> str:
        """A file's path below the stage; below an external stage its URL, which says more.

        :param listed: the name that LIST gives it: with the stage's, except for a table's and a user's own
        """
        if "://" in listed or self.name[0] in "%~":
            return listed
        return listed.partition("/")[2]


def staged_at(value: object) -> dt.datetime | None:
    """The time at which a file was staged, as LIST writes it: ``Sun, 22 Nov 2026 14:00:00 GMT``.

    :param value: the column ``last_modified``
    :returns: None where it says no time
    """
    if isinstance(value, dt.datetime):
        return value
    try:
        found = parsedate_to_datetime(str(value or ""))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
