"""The file, or the environment variable, that carries credentials to the Spark driver, and to nobody else.

For the job, the submitting process writes it with mode 0600 just before ``spark-submit``; the driver reads it
once and removes it at once, so that the key is on the disk only while Spark starts. A DataFrame's writer
leaves it where it is, since a stream needs it again for each micro-batch. It never appears on a command line,
in a Spark setting, or on an executor. Services that run drivers by themselves put secrets into the driver's
environment instead, or the driver gets them itself: from a file of its machine, or from a secret store.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.streaming.auth import Credentials, KeyPair, OAuthToken, ProgrammaticAccessToken
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

_SOURCE = "source"
_FILE, _FUNCTION = "file:", "python:"
CREDENTIALS_FILE_VARIABLE = "SNOWPIPE_CREDENTIALS_FILE"
CREDENTIALS_VARIABLE = "SNOWPIPE_CREDENTIALS"
_KEYS = {
    "key_pair": {"kind", "account", "user", "role", "private_key_pem", "passphrase"},
    "pat": {"kind", "token"},
    "oauth": {"kind", "token"},
}
_CLASSES: dict[str, Any] = {"key_pair": KeyPair, "pat": ProgrammaticAccessToken, "oauth": OAuthToken}
_FIELDS = {"private_key_pem": "private_key"}


def write_credentials(
    credentials: Credentials, path: str | os.PathLike[str], secrets: SourceSecrets | None = None
) -> None:
    """Write credentials to a new file that only its owner can read.

    :param credentials: a key pair, a programmatic access token or an OAuth token
    :param path: a file that does not exist yet, in a directory of the submitting user
    :raises ConfigurationError: if the file exists already, or the credentials are of another type
    """
    write_private(json.dumps(_to_mapping(credentials, secrets)).encode(), path)


def credentials_text(credentials: Credentials, secrets: SourceSecrets | None = None) -> str:
    """What :func:`read_credentials_variable` takes from a variable, in characters that no shell changes."""
    return base64.b64encode(json.dumps(_to_mapping(credentials, secrets)).encode()).decode()


def write_private(body: bytes, path: str | os.PathLike[str]) -> None:
    """Write a new file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"credentials file {os.fspath(path)!r} exists already: give a path that is new for each run"
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(body)


def read_driver_secrets(path: str | os.PathLike[str]) -> tuple[Credentials, SourceSecrets]:
    """Read the credentials file and remove it.

    A file that others can read is refused and left where it is: whoever wrote it has to know.

    :raises ConfigurationError: if it is missing, readable by others, or not such a file
    :raises AuthenticationError: if the private key in it cannot be read
    """
    body = _read_private(path, "the submitting process writes it for one run only, so submit again")
    Path(path).unlink()
    return _from_mapping(body, f"credentials file {os.fspath(path)!r}", "submit again")


def standing_credentials(path: str | os.PathLike[str] | None) -> Credentials:
    """Read credentials that stay where they are, for a process that needs them again and again.

    :param path: a file as :func:`write_credentials` writes it; None for the file that the environment
        variable ``SNOWPIPE_CREDENTIALS_FILE`` names, or for what such a file holds in
        ``SNOWPIPE_CREDENTIALS``
    :raises AuthenticationError: if the private key cannot be read
    """
    remedy = "write it with write_credentials of airflow_provider_snowpipe.spark.driver.credentials"
    found = path or os.environ.get(CREDENTIALS_FILE_VARIABLE)
    if found:
        body, name = _read_private(found, remedy), f"credentials file {os.fspath(found)!r}"
        return _from_mapping(body, name, remedy)[0]
    text = os.environ.get(CREDENTIALS_VARIABLE)
    if text:
        return _from_mapping(text.encode(), f"environment variable {CREDENTIALS_VARIABLE}", remedy)[0]
    raise ConfigurationError(
        f"there are no credentials: name a credentials file, or set {CREDENTIALS_FILE_VARIABLE} (its path) "
        f"or {CREDENTIALS_VARIABLE} (what it holds) in the driver's environment"
    )


def _read_private(path: str | os.PathLike[str], remedy: str) -> bytes:
    name = os.fspath(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"credentials file {name!r} cannot be opened ({error.strerror}): {remedy}"
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
            raise ConfigurationError(
                f"credentials file {name!r} has mode {stat.filemode(facts.st_mode)} and owner "
                f"{facts.st_uid}: only a plain file of this user with mode 0600 is read; replace the key if "
                "others saw it"
            )
        return file.read()


def read_credentials_variable(name: str) -> tuple[Credentials, SourceSecrets]:
    """Take the credentials out of an environment variable, so that no later process inherits them.

    :param name: the variable, whose value is what :func:`write_credentials` would write, or that in base64
    :raises AuthenticationError: if the private key in it cannot be read
    """
    body = os.environ.pop(name, "")
    if not body:
        raise ConfigurationError(
            f"environment variable {name!r}, which the plan names for the credentials, is not set where the "
            "driver runs: let the platform put the secret there"
        )
    try:
        decoded = body.encode() if body.lstrip().startswith("{") else base64.b64decode(body, validate=True)
    except ValueError:
        decoded = b""  # is refused as no JSON
    return _from_mapping(decoded, f"environment variable {name!r}", "submit again")


def is_of_driver(secret: str) -> bool:
    """True for ``file:<path>`` and ``python:<module>:<function>``: :func:`driver_credentials` takes them."""
    return secret.startswith((_FILE, _FUNCTION))


def check_driver_credentials(name: str, secret: str) -> None:
    """Refuse what is neither ``file:<path>`` nor ``python:<module>:<function>``."""
    kind, _, where = secret.partition(":")
    module, _, function = where.partition(":")
    is_function = all(part.isidentifier() for part in (*module.split("."), function))
    if not (os.path.isabs(where) if kind == "file" else kind == "python" and is_function):
        raise ConfigurationError(
            f"{name} is {secret!r}: give 'file:/path' of a credentials file on the driver's machine, or "
            "'python:module:function' of a function there that returns what would be in the file"
        )


def driver_credentials(secret: str) -> tuple[Credentials, SourceSecrets]:
    """Get credentials that the driver's machine has, or that a secret store gives to it.

    :param secret: ``file:`` and the path of a file as :func:`write_credentials` writes it, which stays where
        it is; or ``python:<module>:<function>``: a function without parameters that returns as text what
        would be in the file, for example from AWS Secrets Manager or HashiCorp Vault
    :raises AuthenticationError: if the private key in it cannot be read
    """
    check_driver_credentials("credentials_from", secret)
    if secret.startswith(_FILE):
        path = secret.removeprefix(_FILE)
        remedy = "write it with write_credentials of airflow_provider_snowpipe.spark.driver.credentials"
        return _from_mapping(_read_private(path, remedy), f"credentials file {path!r}", remedy)
    module, _, function = secret.removeprefix(_FUNCTION).partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the driver has no function {function!r} of module {module!r} for its credentials ({error}): "
            "install the module where the driver runs, or submit it by py_files"
        ) from None
    remedy = "let it return the object of credentials as a text in JSON"
    try:
        text = found()
    except Exception as error:  # noqa: BLE001  whatever a secret store's client raises
        raise ConfigurationError(
            f"function {function!r} of module {module!r}, which gets the driver's credentials, raised "
            f"{type(error).__name__}, whose text is not shown, since it may hold a secret"
        ) from None
    if not isinstance(text, str):
        raise ConfigurationError(
            f"function {function!r} of module {module!r} returned {type(text).__name__}: {remedy}"
        )
    return _from_mapping(text.encode(), f"what function {function!r} of module {module!r} returned", remedy)


def _to_mapping(credentials: Credentials, secrets: SourceSecrets | None) -> dict[str, Any]:
    kind = next((name for name, one in _CLASSES.items() if isinstance(credentials, one)), None)
    if kind is None:
        raise ConfigurationError(
            f"credentials of type {type(credentials).__name__} cannot be given to a Spark driver: use "
            "KeyPair, ProgrammaticAccessToken or OAuthToken"
        )
    given = ((key, getattr(credentials, _FIELDS.get(key, key))) for key in _KEYS[kind] - {"kind"})
    texts = {key: one.decode() if isinstance(one, bytes) else one for key, one in given}
    return {"kind": kind, **texts, **({_SOURCE: dict(secrets.values)} if secrets else {})}


def _from_mapping(body: bytes, name: str, remedy: str) -> tuple[Credentials, SourceSecrets]:
    try:
        data: Any = json.loads(body)
    except ValueError:
        raise ConfigurationError(f"{name} holds no JSON: {remedy}") from None
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _KEYS:
        raise ConfigurationError(f"{name} has the kind {kind!r}: it must be one of {sorted(_KEYS)}")
    secrets = data.pop(_SOURCE, {})
    if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
        raise ConfigurationError(f"{name}: {_SOURCE!r} must give each secret a text")
    return _credentials(kind, data, name), SourceSecrets(secrets)


def _credentials(kind: Any, data: dict[str, Any], name: str) -> Credentials:
    unknown = set(data) - _KEYS[kind]
    if unknown:
        raise ConfigurationError(f"{name} has unknown keys {sorted(unknown)}")
    values: dict[str, Any] = {key: data.get(key) for key in _KEYS[kind] - {"kind"}}
    wrong = sorted(key for key, value in values.items() if value is not None and not isinstance(value, str))
    missing = sorted(key for key, value in values.items() if not value and key not in ("role", "passphrase"))
    if wrong or missing:
        raise ConfigurationError(
            f"{name} of kind {kind!r} needs texts: missing {missing}, not a text {wrong}"
        )
    made: Credentials = _CLASSES[kind](**{_FIELDS.get(key, key): one for key, one in values.items()})
    return made
