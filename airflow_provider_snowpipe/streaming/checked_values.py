"""Values that authors give, and plans: dataclasses that are built from JSON objects; the policy for rows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from airflow_provider_snowpipe.streaming.arguments import (
    OnUnknown,
    is_named_like_a_secret,
    known_keys,
    without_secrets,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.table_schema import TableColumn


class TypedArgument:
    """A frozen dataclass that authors give to an operator, or write as a dictionary with the same keys.

    Texts may be Jinja templates, and any field the output of another task: the operator takes the value as
    its dictionary, which Airflow renders, and builds the value again in the task, where all of it is checked.
    A field may hold such a value in its turn, which a key ``type`` in its dictionary names.
    """

    __slots__ = ()

    _argument: ClassVar[str] = ""
    """What stands before a field's name in errors."""
    type: ClassVar[str] = ""
    """What names the class in a dictionary, where a field takes values of several."""
    _filled: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not self._check_fields():
            return
        for name in self._filled:
            if getattr(self, name) in ("", ()):
                raise ConfigurationError(f"{self._argument} {name} is empty: give it a value")
        self._check()

    def _check(self) -> None:
        """Check the fields that are not the output of another task."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build the value from its dictionary."""
        what = f"{cls._argument} {cls.type}".strip() or cls.__name__
        if isinstance(values, Mapping) and values.get("type") == cls.type:
            values = {name: one for name, one in values.items() if name != "type"}
        return cls(**known_keys(cls, values, what))

    def as_json(self) -> dict[str, Any]:
        """The value as a dictionary of JSON values: ``kind`` or ``type``, and whatever is not a default."""
        given = {
            one.name: _plain(value)
            for one, value in self._given()
            if value != _default(one) or one.name == "kind"
        }
        return {"type": self.type, **given} if self.type else given

    def __repr__(self) -> str:
        given = [f"{one.name}={_shown(value)!r}" for one, value in self._given() if value != _default(one)]
        return f"{type(self).__name__}({', '.join(given)})"

    def _given(self) -> list[tuple[Field[Any], Any]]:
        return [(one, getattr(self, one.name)) for one in fields(self)]  # type: ignore[arg-type]

    def _check_fields(self) -> bool:
        """Check each field's type, and make lists tuples.

        :returns: False where a field is the output of another task, so that fields cannot be compared yet
        """
        complete, hints = True, _hints(type(self))
        for one, value in self._given():
            hint = hints[one.name]
            if is_task_output(value):
                complete = False
                continue
            if isinstance(value, str):
                refuse_secret(f"{self._argument} {one.name}".lstrip(), value)
            what = f"{self._argument} {one.name}".lstrip()
            if kinds := _kinds(hint):
                object.__setattr__(self, one.name, _value_of(what, value, kinds))
            elif not _maps(hint) and not (is_template(value) and _takes_text(hint)):
                object.__setattr__(self, one.name, _checked(what, value, hint))
        return complete


def is_template(value: Any) -> bool:
    """True for a text that Airflow renders before the task runs."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def is_task_output(value: Any) -> bool:
    """True for the output of another task, which Airflow fetches before the task runs."""
    return hasattr(value, "resolve") and not isinstance(value, os.PathLike)


def checked_values(
    kind: type[Any], values: Any, what: str, *, skip_types: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Check an object's keys and values against a dataclass before it is built."""
    hints = _hints(kind)
    return {
        name: value if name in skip_types else _checked(f"{what} {name}", value, hints[name])
        for name, value in known_keys(kind, values, what).items()
    }


def _kinds(hint: Any) -> dict[str, type[TypedArgument]]:
    """The classes of the values that a field takes, by their names in dictionaries."""
    classes = [one for one in get_args(hint) if isinstance(one, type) and issubclass(one, TypedArgument)]
    return {one.type: one for one in classes}


def _value_of(what: str, value: Any, kinds: Mapping[str, type[TypedArgument]]) -> TypedArgument:
    """Take a value, or build it from its dictionary, or with its defaults from its ``type`` alone."""
    if isinstance(value, TypedArgument) and type(value) in kinds.values():
        return value
    values = value if isinstance(value, Mapping) else {"type": value}
    for name, kind in kinds.items():
        if name == values.get("type"):
            return kind.from_mapping(values)
    names = ", ".join(f"{kind.__name__}(…)" for kind in kinds.values())
    raise ConfigurationError(
        f"{what} is {_shown(value)!r}: it must be one of {list(kinds)}, a dictionary with one of these "
        f"as its 'type', or {names}"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, TypedArgument):
        return value.as_json()
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


_HINTS: dict[type[Any], dict[str, Any]] = {}
"""Types of fields by class: to read them is most of what a value costs."""


def _hints(kind: type[Any]) -> dict[str, Any]:
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _maps(hint: Any) -> bool:
    """True for a mapping, whose keys and values its own class checks."""
    return get_origin(hint) is Mapping or any(get_origin(choice) is Mapping for choice in get_args(hint))


def _takes_text(hint: Any) -> bool:
    """True for a field of free text, or of texts; one of a few values takes no template."""
    inner = [choice for choice in get_args(hint) if choice is str or get_origin(choice) is Sequence]
    return hint is str or any(map(_takes_text, inner))


def _shown(value: Any) -> Any:
    """A field's value without a secret: one with the output of another task in it is not checked yet."""
    if isinstance(value, Mapping):
        return {
            name: "…" if is_named_like_a_secret(str(name)) else _shown(one) for name, one in value.items()
        }
    return without_secrets(value) if isinstance(value, str) else value


def refuse_secret(what: str, text: str) -> None:
    """Refuse an address with a password in it: plans, logs, rendered templates and lineage show addresses."""
    shown = without_secrets(text)
    if shown != text:
        raise ConfigurationError(
            f"{what} {shown!r} holds a password: leave it out, and let the source's connection, Spark's own "
            "configuration or the executors' environment give it"
        )


def _checked(what: str, value: Any, hint: Any) -> Any:
    choices = get_args(hint)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if get_origin(hint) in (tuple, Sequence):
        if isinstance(value, list | tuple) and all(type(one) is choices[0] for one in value):
            return tuple(value)
        kind = "texts" if choices[0] is str else "whole numbers"
        raise ConfigurationError(f"{what} is {value!r}: it must be a list of {kind}")
    if choices and type(None) in choices:
        if value is None:
            return None
        return _checked(what, value, next(choice for choice in choices if choice is not type(None)))
    if choices and value in choices:
        return value
    expected = f"one of {list(choices)}" if choices else getattr(hint, "__name__", str(hint))
    raise ConfigurationError(f"{what} is {value!r}: it must be {expected}")


# -- What becomes of rows that do not fit the table: the policy of the author, and the rules of a run ----

_TOPIC_PREFIX = "kafka:"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
OnError = Literal["abort", "continue", "dead_letter"]


@dataclass(frozen=True, slots=True, repr=False)
class RowPolicy(TypedArgument):
    """What a load does with rows that do not fit its table, and with it, as ``RowPolicyOperator`` has it."""

    on_error: OnError = "abort"
    check_rows: bool = False
    dead_letter_path: str | None = None
    create_table: Literal["if_missing"] | None = None
    evolve_columns: bool | None = None
    unknown_columns: OnUnknown = "fail"

    def _check(self) -> None:
        if self.on_error == "dead_letter":
            if not is_template(self.dead_letter_path):
                check_dead_letter_path(self.dead_letter_path)
        elif self.dead_letter_path and not is_template(self.dead_letter_path):
            raise ConfigurationError(
                f"dead_letter_path is {self.dead_letter_path!r}, but on_error is {self.on_error!r}: set "
                "on_error='dead_letter', or drop the path"
            )
        if self.on_error == "continue" and self.check_rows:
            raise ConfigurationError(
                "check_rows is True, but on_error is 'continue': choose 'abort' or 'dead_letter'"
            )

    @property
    def checks_rows(self) -> bool:
        """True if rows are compared with the table's columns before they are sent."""
        return self.check_rows or self.on_error == "dead_letter"


@dataclass(frozen=True, slots=True)
class RowRules:
    """The check of a run's rows; travels to the executors and holds no credential.

    :param dead_letter_path: where rows go that do not fit, None if the first one ends the run
    :param pipe: full name of the pipe, which tells its channels from those of the same names of another one
    :param only_exact: True where only values are at fault that the columns would round or cut
    """

    columns: tuple[TableColumn, ...]
    dead_letter_path: str | None
    application: str
    pipe: str = ""
    only_exact: bool = False

    @classmethod
    def of(
        cls,
        on_error: OnError,
        check_rows: bool,
        dead_letter_path: str | None,
        columns: tuple[TableColumn, ...],
        application: str,
        pipe: str,
    ) -> Self | None:
        """Make the rules of a plan; None if rows are not checked before they are sent."""
        policy = RowPolicy(on_error, check_rows, dead_letter_path)
        if not policy.checks_rows:
            names = Counter(one.name.upper() for one in columns)
            exact = tuple(one for one in columns if one.exact and names[one.name.upper()] == 1)
            return cls(exact, None, application, pipe, only_exact=True) if exact else None
        if not columns:
            raise ConfigurationError(
                "rows are to be checked before they are sent, but the plan has no columns: give the table's "
                "columns as DESCRIBE TABLE lists them"
            )
        return cls(columns, dead_letter_path, application, pipe)


def check_dead_letter_path(path: str | None) -> None:
    """Refuse a path that executors could not reach, or that gives a secret away.

    :param path: an absolute directory, a URL such as ``s3://bucket/rejected``, or ``kafka:<topic>``
    """
    if not path:
        raise ConfigurationError(
            "on_error is 'dead_letter', but dead_letter_path is not given: name one that all executors reach"
        )
    topic = dead_letter_topic(path)
    if topic is not None:
        if _TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            raise ConfigurationError(
                f"dead_letter_path is {path!r}: what follows {_TOPIC_PREFIX!r} must be a topic's name, "
                "letters, digits, '.', '_' and '-'; its brokers are the source's"
            )
        return
    if "://" not in path:
        if not os.path.isabs(path):
            raise ConfigurationError(
                f"dead_letter_path is {path!r}: give an absolute path, executors run elsewhere"
            )
        return
    address = urlsplit(path)
    if address.username or address.password:
        raise ConfigurationError(
            f"dead_letter_path {address.scheme}://…@{address.hostname} holds credentials: leave them out, "
            "the executors have them in their environment"
        )
    refuse_secret("dead_letter_path", path)


def dead_letter_topic(path: str | None) -> str | None:
    """The Kafka topic that a dead-letter path names, None if it is another path."""
    if path is None or not path.startswith(_TOPIC_PREFIX):
        return None
    return path.removeprefix(_TOPIC_PREFIX)
