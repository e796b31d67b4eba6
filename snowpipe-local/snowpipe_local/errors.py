"""Errors of the local service, each with the shape its front sends to the client."""

from __future__ import annotations

import re


class ServiceError(Exception):
    """Base of every error that the local service raises on purpose."""


class DataDirectoryError(ServiceError):
    """The data directory cannot be used: in use by another service, unreadable, or never served."""


class ConfigurationError(ServiceError):
    """A command-line value is wrong; nothing was started."""


class Refusal(ServiceError):  # noqa: N818 - it is an answer, not a failure
    """A REST request is refused; answered as JSON ``{"code", "message"}`` with an HTTP status.

    :param status: HTTP status, 4xx or 503; 500 for a failure inside the service, and for a fault that a test
        asked for.
    :param code: stable code; a 404 without one would be retried by clients as a server error.
    :param message: what was refused and what to do about it.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class NotAllowed(Refusal):
    """A request has a method that its resource does not take; the answer lists the others in Allow."""

    def __init__(self, what: str, *methods: str) -> None:
        super().__init__(405, "METHOD_NOT_ALLOWED", f"{what} takes {', '.join(methods)}")
        self.methods = methods


class SqlError(ServiceError):
    """A SQL statement failed; answered with Snowflake's error number and SQLSTATE.

    :param code: Snowflake error number as six digits, for example ``"002003"``.
    :param message: text as Snowflake words it where the wording is known.
    """

    def __init__(self, code: str, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.sqlstate = sqlstate
        self.message = message


def unsupported(feature: str) -> SqlError:
    """Return the error for a statement or option that the local service does not implement."""
    return SqlError("000002", "0A000", f"Unsupported feature '{feature}' in the local Snowpipe service.")


def compilation_error(message: str, code: str = "001003", sqlstate: str = "42000") -> SqlError:
    """Return a SQL compilation error, 001003 or another one."""
    return SqlError(code, sqlstate, f"SQL compilation error:\n{message}")


def invalid_identifier(name: str) -> SqlError:
    """Return the error for a column that does not exist (000904), with quotes where its name needs them."""
    needs_quotes = re.fullmatch(r'[^."]+', name) and not re.fullmatch(r"[A-Z_][A-Z0-9_$]*", name)
    written = f'"{name}"' if needs_quotes else name
    return compilation_error(f"invalid identifier '{written}'", "000904")


def access_error(message: str) -> SqlError:
    """Return an error of access control (003001)."""
    return SqlError("003001", "42501", f"SQL access control error:\n{message}")


def object_missing(kind: str, name: str) -> SqlError:
    """Return the error for an object that does not exist (002003)."""
    sqlstate = "42S02" if kind in {"Object", "Table", "View"} else "02000"
    return SqlError(
        "002003", sqlstate, f"SQL compilation error:\n{kind} '{name}' does not exist or not authorized."
    )


def object_exists(name: str) -> SqlError:
    """Return the error for an object that exists already (002002)."""
    return SqlError("002002", "42710", f"SQL compilation error:\nObject '{name}' already exists.")


def exists_as(kind: str, name: str) -> SqlError:
    """Return the error for a table or view whose name is taken by an object of the other kind."""
    return SqlError("001998", "42710", f"SQL compilation error:\nObject '{name}' already exists as {kind}")


def another_kind(found: str, kind: str) -> SqlError:
    """Return the error for DROP of a kind that the object is not; IF EXISTS does not help (002203)."""
    why = f"SQL compilation error:\nObject found is of type '{found}', not specified type '{kind}'."
    return SqlError("002203", "42601", why)


def missing_account_object() -> SqlError:
    """Return the error for a role, user or warehouse that does not exist or stays hidden (002043).

    USE and the IN of SHOW answer so for a database or schema, too.
    """
    return SqlError(
        "002043", "02000", "SQL compilation error:\nObject does not exist, or operation cannot be performed."
    )
