"""Environment variables that point clients at a running local service."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import requests

from airflow_provider_snowpipe.local.accounts import sign_key_pair_jwt
from airflow_provider_snowpipe.local.datadir import DataDirectory
from airflow_provider_snowpipe.local.errors import DataDirectoryError

STATUS_PATH = ("local", "status")
"""Path of the call that answers the status, for the service's own user."""
_SPARK_HERE = json.dumps({"conn_type": "spark", "host": "local[*]"})
_TIMEOUT = (2.0, 5.0)


def service_url(home: DataDirectory) -> str:
    """Return the URL of the service on a data directory.

    :raises DataDirectoryError: when none was ever started there.
    """
    home.read_account()
    port = home.remembered_port()
    if port is None:
        raise DataDirectoryError(f"no local service was ever started on {home.root}")
    return f"https://127.0.0.1:{port}"


def client_session(home: DataDirectory) -> requests.Session:
    """Return an HTTP session that trusts this service only, whatever the environment says."""
    session = requests.Session()
    # REQUESTS_CA_BUNDLE and proxies of the machine must not apply to a loopback service.
    session.trust_env = False
    session.verify = str(home.authority_file)
    return session


def ask(
    home: DataDirectory, method: str, path: str, timeout: tuple[float, float], body: Any = None
) -> tuple[int, Any]:
    """Send one call to the running service as its own user; return status and JSON of the answer.

    :param timeout: seconds to connect, and to wait for the answer.
    :raises DataDirectoryError: when the service does not answer.
    """
    url = service_url(home)
    headers = {
        "Authorization": f"Bearer {sign_key_pair_jwt(home)}",
        "X-Snowflake-Authorization-Token-Type": "KEYPAIR_JWT",
    }
    try:
        with client_session(home) as session:
            answer = session.request(method, f"{url}{path}", json=body, headers=headers, timeout=timeout)
            return answer.status_code, answer.json()
    except (requests.RequestException, ValueError, OSError) as error:
        raise DataDirectoryError(f"the local service at {url} does not answer: {error}") from error


def check_ready(home: DataDirectory) -> None:
    """Ask the service whether it answers.

    :raises DataDirectoryError: when it does not, or another data directory's service has the port.
    """
    url = service_url(home)
    try:
        with client_session(home) as session:
            answer = session.get(f"{url}/health", timeout=_TIMEOUT).json()
    except (requests.RequestException, ValueError, OSError) as error:
        raise DataDirectoryError(f"the local service at {url} does not answer yet: {error}") from error
    if answer.get("instance") != home.read_account()["instance"]:
        raise DataDirectoryError(f"{url} is answered by a service on another data directory")


def variables(home: DataDirectory) -> dict[str, str]:
    """Return the variables; none of them holds a secret, only the paths of the files that do."""
    stored, url = home.read_account(), service_url(home)
    connection = {
        "conn_type": "snowflake",
        "login": stored["user"],
        "schema": "PUBLIC",
        "extra": {
            "account": stored["account"],
            "database": "LOCAL",
            "warehouse": "LOCAL",
            "role": "ACCOUNTADMIN",
            "host": "127.0.0.1",
            "port": home.remembered_port(),
            "private_key_file": str(home.key_file),
        },
    }
    return {
        "SNOWPIPE_LOCAL_URL": url,
        "SNOWPIPE_LOCAL_ACCOUNT": stored["account"],
        "SNOWPIPE_LOCAL_USER": stored["user"],
        "SNOWPIPE_LOCAL_PRIVATE_KEY_FILE": str(home.key_file),
        "SNOWPIPE_LOCAL_PROXY": f"http://127.0.0.1:{home.remembered_proxy_port()}",
        "SNOWPIPE_LOCAL_PASSWORD_FILE": str(home.password_file),
        "SSL_CERT_FILE": str(home.bundle_file),
        "REQUESTS_CA_BUNDLE": str(home.bundle_file),
        "AIRFLOW_CONN_SNOWFLAKE_DEFAULT": json.dumps(connection),
        # A Spark of the user's own stays: without any, Airflow would look for YARN.
        "AIRFLOW_CONN_SPARK_DEFAULT": os.environ.get("AIRFLOW_CONN_SPARK_DEFAULT", _SPARK_HERE),
    }


def export_lines(home: DataDirectory) -> list[str]:
    """Return the variables as lines for a POSIX shell.

    :raises DataDirectoryError: until the service answers.
    """
    check_ready(home)
    return [f"export {name}={shlex.quote(value)}" for name, value in variables(home).items()]
