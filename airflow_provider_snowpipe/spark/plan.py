"""The plan of a run: everything that the job needs to know, as a JSON file without a secret in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_type_hints

from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.names import PipeName, channel_name
from airflow_provider_snowpipe.streaming.offsets import FileLineOffset, offset_class

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileSourceSpec:
    """Ordered groups of newline-delimited files.

    :param path: the directory that holds them, as the Spark driver and its executors see it
    :param pattern: glob that a file must match: inside its group's directory, or inside ``path`` where
        ``group_by`` is ``name``
    :param group_by: ``directory``: each directory in ``path`` is a partition; ``name``: the files' names say
    :param name_pattern: regular expression for the whole name with a group ``(?P<partition>…)``; for
        ``group_by="name"``
    :param format: ``ndjson``: each line is a JSON object, passed on as it is; ``text``: each line becomes
        the value of ``text_column``
    :param text_column: the column that takes the lines of a text source
    :param growing: True while something appends to a group's last file: its last line waits until it is
        terminated
    :param numbering: ``checked`` refuses names like ``log_9`` and ``log_10``, whose order as names is not the
        order of their numbers; ``ignored`` takes them in the order of their names
    :param kind: always ``files``
    """

    path: str
    pattern: str = "*.ndjson"
    group_by: Literal["directory", "name"] = "directory"
    name_pattern: str | None = None
    format: Literal["ndjson", "text"] = "ndjson"
    text_column: str = "LINE"
    growing: bool = False
    numbering: Literal["checked", "ignored"] = "checked"
    kind: Literal["files"] = "files"

    def __post_init__(self) -> None:
        for key in ("path", "pattern", "text_column"):
            if not getattr(self, key):
                raise ConfigurationError(f"source {key} is empty: give it a value")
        if Path(self.pattern).is_absolute() or ".." in Path(self.pattern).parts:
            raise ConfigurationError(
                f"source pattern {self.pattern!r} leaves the source's path: give one below it"
            )
        if self.group_by == "directory" and self.name_pattern is not None:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} is only for group_by='name': drop one of the two"
            )
        if self.group_by == "name":
            self._check_name_pattern()

    def _check_name_pattern(self) -> None:
        try:
            named = re.compile(self.name_pattern or "").groupindex
        except re.error as error:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} is no regular expression ({error})"
            ) from None
        if "partition" not in named:
            raise ConfigurationError(
                f"source name_pattern {self.name_pattern!r} needs a group (?P<partition>…) with "
                "group_by='name', for example '(?P<partition>[a-z]+)_[0-9]+[.]ndjson'"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build a source from its JSON object.

        :raises ConfigurationError: for an unknown or missing key, or a value of the wrong type
        """
        return cls(**checked_values(cls, values, "source"))


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What one run of the job is to do.

    :param application: the Spark application's name
    :param account_url: the account's address, ``https://<host>[:<port>]``
    :param pipe: the pipe to load through
    :param channel_prefix: first part of each channel's name, stable over runs
    :param source_name: second part of each channel's name, stable over runs
    :param source: what to read
    :param report_path: where the run report goes
    :param credentials_path: the credentials file, removed by the driver as soon as it is read
    :param ca_bundle: PEM file of trusted roots, None for the environment's or the public ones
    :param offset_format: format of the offset tokens; a file source has ``file:line``
    :param on_error: ``abort``: the run fails if the service skips a row; ``continue``: it reports them
    :param on_data_loss: ``fail``: the run fails if the committed position is not in the source any more;
        ``skip``: it goes on with what the source still has after that position
    :param wait_for_commit: False ends the run when the service has received the rows, committed or not
    :param commit_timeout: seconds to wait for a channel's commit
    :param limits: when a batch is closed and sent
    :param rejected_before: rows skipped before an earlier try of the same run began, by channel; what that
        try skipped counts as this one's, since nobody has reported it. Other channels count from now on
    """

    application: str
    account_url: str
    pipe: PipeName
    channel_prefix: str
    source_name: str
    source: FileSourceSpec
    report_path: str
    credentials_path: str
    ca_bundle: str | None = None
    offset_format: str = FileLineOffset.format_name
    on_error: Literal["abort", "continue"] = "abort"
    on_data_loss: Literal["fail", "skip"] = "fail"
    wait_for_commit: bool = True
    commit_timeout: float = 600.0
    limits: BatchLimits = field(default_factory=BatchLimits)
    rejected_before: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("application", "account_url", "channel_prefix", "source_name"):
            if not getattr(self, key):
                raise ConfigurationError(f"plan {key} is empty: give it a value")
        for key in ("report_path", "credentials_path"):
            if not os.path.isabs(getattr(self, key)):
                raise ConfigurationError(
                    f"plan {key} is {getattr(self, key)!r}: give an absolute path, Spark's working "
                    f"directory differs"
                )
        if not self.commit_timeout > 0:
            raise ConfigurationError(f"plan commit_timeout is {self.commit_timeout}: give seconds above 0")
        for channel, count in checked_counts(self.rejected_before).items():
            if count < 0:
                raise ConfigurationError(f"plan rejected_before of {channel!r} is {count}: give 0 or more")
        if not issubclass(offset_class(self.offset_format), FileLineOffset):
            raise ConfigurationError(
                f"plan offset_format is {self.offset_format!r}: a source of kind 'files' writes "
                f"{FileLineOffset.format_name!r}"
            )

    def channel(self, partition: str) -> str:
        """Name the channel of a partition of the source."""
        return channel_name(self.channel_prefix, self.source_name, partition)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps({"plan_version": PLAN_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a plan.

        :raises ConfigurationError: naming the key and the value that are wrong
        """
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise ConfigurationError(f"the plan is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise ConfigurationError(f"the plan is a JSON {type(data).__name__}: it must be an object")
        version = data.pop("plan_version", None)
        if version != PLAN_VERSION:
            raise ConfigurationError(
                f"plan_version is {version!r}, this job reads {PLAN_VERSION}: install one version of "
                "airflow-provider-snowpipe where Airflow and where Spark run"
            )
        nested: dict[str, Any] = {"pipe": PipeName, "source": FileSourceSpec, "limits": BatchLimits}
        values = checked_values(cls, data, "plan", skip_types=frozenset(nested) | {"rejected_before"})
        for key, kind in nested.items():
            if key in values:
                values[key] = kind(**checked_values(kind, values[key], f"plan {key}"))
        return cls(**values)


def read_plan(path: str | os.PathLike[str]) -> JobPlan:
    """Read a plan's file.

    :raises ConfigurationError: if it cannot be read or is not a plan
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"plan {os.fspath(path)!r} cannot be read ({error.strerror}): give the path of a plan file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"plan {os.fspath(path)!r} is not UTF-8 text") from None
    return JobPlan.from_json(text)


def write_plan(plan: JobPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan's file."""
    Path(path).write_text(plan.to_json(), encoding="utf-8")


def checked_counts(values: Any) -> Mapping[str, int]:
    """Check the plan's numbers of rows.

    :raises ConfigurationError: if it is no mapping of channels to numbers
    """
    if not isinstance(values, Mapping) or not all(
        isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool)
        for name, count in values.items()
    ):
        raise ConfigurationError(f"plan rejected_before is {values!r}: give a number of rows by channel")
    return values


def checked_values(
    kind: type[Any], values: Any, what: str, *, skip_types: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check an object's keys and values against a dataclass before it is built.

    :param kind: the dataclass
    :param values: what JSON held
    :param what: the object in words, for errors
    :param skip_types: keys whose value is checked elsewhere
    :raises ConfigurationError: for an unknown or missing key, or a value of the wrong type
    """
    if not isinstance(values, Mapping):
        raise ConfigurationError(f"{what} is {values!r}: it must be an object with keys")
    known = {f.name: f for f in fields(kind) if f.init}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigurationError(
            f"{what} has the unknown key {unknown[0]!r} (value {values[unknown[0]]!r}): use {sorted(known)}"
        )
    for name, one in known.items():
        if name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise ConfigurationError(f"{what} lacks the key {name!r}: add it")
    hints = get_type_hints(kind)
    return {
        name: value if name in skip_types else _checked(f"{what} {name}", value, hints[name])
        for name, value in values.items()
    }


def _checked(what: str, value: Any, hint: Any) -> Any:
    choices = get_args(hint)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if choices and type(None) in choices:
        if value is None:
            return None
        return _checked(what, value, next(choice for choice in choices if choice is not type(None)))
    if choices and value in choices:
        return value
    expected = f"one of {list(choices)}" if choices else getattr(hint, "__name__", str(hint))
    raise ConfigurationError(f"{what} is {value!r}: it must be {expected}")
