"""What CREATE STAGE and CREATE FILE FORMAT define."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_snowpipe.local.engine.rename import Rename
from airflow_provider_snowpipe.local.identifiers import quote
from airflow_provider_snowpipe.local.stages.formats import OptionValue

_JSON_FIELDS = (
    "url", "endpoint", "region", "storage_integration", "credentials", "file_format", "format_name",
    "copy_options", "comment", "directory",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageDefinition:
    """One named stage.

    :param database: exact database name.
    :param schema: exact schema name.
    :param name: exact stage name.
    :param created_on_ms: creation time, epoch milliseconds.
    :param identity: random id, the name of an internal stage's folder: a replaced stage starts empty.
    :param url: ``s3://bucket/path`` or ``file:///folder`` of an external stage; None for an internal one.
    :param endpoint: ``host:port`` that serves the bucket, or None for the service's own.
    :param region: signing region, or None.
    :param storage_integration: remembered name, or None.
    :param credentials: AWS_KEY_ID, AWS_SECRET_KEY and AWS_TOKEN as far as they were given.
    :param file_format: format options of the stage, with TYPE where it was given.
    :param format_name: dotted path of a named file format, or empty.
    :param copy_options: default options of COPY.
    :param comment: comment, or None.
    :param directory: True when DIRECTORY = (ENABLE = TRUE).
    :param temporary: True when the stage ends with its session.
    """

    database: str
    schema: str
    name: str
    created_on_ms: int
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)
    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    storage_integration: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    file_format: Mapping[str, OptionValue] = field(default_factory=dict)
    format_name: tuple[str, ...] = ()
    copy_options: Mapping[str, OptionValue] = field(default_factory=dict)
    comment: str | None = None
    directory: bool = False
    temporary: bool = False

    @property
    def is_external(self) -> bool:
        """True when the files are outside of the service."""
        return self.url is not None

    @property
    def cloud(self) -> str | None:
        """Return ``AWS`` for a bucket, ``LOCAL`` for a folder, None for an internal stage."""
        if self.url is None:
            return None
        return "AWS" if self.url.startswith("s3") else "LOCAL"

    def __str__(self) -> str:
        """Name as Snowflake's messages print it."""
        return f"{self.database}.{self.schema}.{self.name}"

    @property
    def reference(self) -> str:
        """Return ``@`` and the quoted, qualified name."""
        return "@" + ".".join(quote(part) for part in (self.database, self.schema, self.name))

    def moved(self, change: Rename) -> StageDefinition:
        """Return the stage as it is after a rename of its database or schema, or of its file format's."""
        database, schema = change.moved((self.database, self.schema))
        named = change.moved(self.format_name)
        return dataclasses.replace(self, database=database, schema=schema, format_name=named)

    def to_json(self) -> str:
        """Return the form that the hidden table keeps."""
        return json.dumps({name: _plain(getattr(self, name)) for name in _JSON_FIELDS})

    @classmethod
    def from_json(
        cls, database: str, schema: str, name: str, created_on_ms: int, identity: str, text: str
    ) -> StageDefinition:
        """Read the form that :meth:`to_json` writes."""
        stored: dict[str, Any] = json.loads(text)
        stored["file_format"] = _options(stored["file_format"])
        stored["copy_options"] = _options(stored["copy_options"])
        stored["format_name"] = tuple(stored["format_name"])
        return cls(database, schema, name, created_on_ms, identity, **stored)


@dataclass(frozen=True, slots=True)
class FileFormatDefinition:
    """One named file format.

    :param settings: TYPE and the options that were set.
    """

    database: str
    schema: str
    name: str
    created_on_ms: int
    settings: Mapping[str, OptionValue]
    comment: str | None = None
    temporary: bool = False

    def __str__(self) -> str:
        """Name as Snowflake's messages print it."""
        return f"{self.database}.{self.schema}.{self.name}"

    def moved(self, change: Rename) -> FileFormatDefinition:
        """Return the file format as it is after a rename of its database or schema."""
        database, schema = change.moved((self.database, self.schema))
        return dataclasses.replace(self, database=database, schema=schema)

    def to_json(self) -> str:
        """Return the form that the hidden table keeps."""
        return json.dumps({"settings": _plain(self.settings), "comment": self.comment})

    @classmethod
    def from_json(
        cls, database: str, schema: str, name: str, created_on_ms: int, text: str
    ) -> FileFormatDefinition:
        """Read the form that :meth:`to_json` writes."""
        stored = json.loads(text)
        return cls(database, schema, name, created_on_ms, _options(stored["settings"]), stored["comment"])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _options(stored: Mapping[str, Any]) -> dict[str, OptionValue]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
