"""YARN's ResourceManager, as far as a submitted application is followed and stopped.

"Hadoop: YARN ResourceManager REST APIs" is the source of addresses, states and fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import requests
from requests.auth import AuthBase

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError

ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""Field of a Spark connection's extra, that of Airflow's Spark provider."""
APPLICATION_ID = re.compile(r"\bapplication_\d+_\d+\b")
_ACTIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_TIMEOUTS = (10.0, 30.0)
"""Seconds to connect and between two bytes of an answer."""
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True)
class YarnApplication:
    """What the ResourceManager reports of one application.

    :param id: ``application_<start of the ResourceManager>_<number>``
    :param state: for example ``ACCEPTED``, ``RUNNING``, ``FINISHED``, ``KILLED``; ``UNKNOWN`` where the
        ResourceManager knows none of this id, as after a restart without recovery
    :param final_status: ``SUCCEEDED``, ``FAILED`` or ``KILLED`` once it has ended, ``UNDEFINED`` before
    :param diagnostics: YARN's text about its end
    :param tracking_url: its page: Spark's own while it runs, the history server's or YARN's afterwards
    :param tags: ``spark.yarn.tags``, in lower case
    """

    id: str
    state: str
    final_status: str = "UNDEFINED"
    diagnostics: str = ""
    tracking_url: str | None = None
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Read it from the JSON object ``app``.

        :param values: the object
        """
        return cls(
            id=str(values["id"]),
            state=str(values["state"]),
            final_status=str(values["finalStatus"]),
            diagnostics=" ".join(str(values.get("diagnostics") or "").split()),
            tracking_url=values.get("trackingUrl") or None,
            tags=frozenset(filter(None, str(values.get("applicationTags") or "").split(","))),
        )

    @property
    def is_active(self) -> bool:
        """True while it may still send rows."""
        return self.state in _ACTIVE

    @property
    def has_succeeded(self) -> bool:
        """True when YARN calls it a success, which is no evidence of what is committed."""
        return self.state == "FINISHED" and self.final_status == "SUCCEEDED"

    def __str__(self) -> str:
        status = "" if self.final_status in ("UNDEFINED", self.state) else f", {self.final_status}"
        why = f": {self.diagnostics}" if self.diagnostics else ""
        return f"YARN application {self.id} ({self.state}{status}{why})"


class ResourceManager:
    """A client of the ResourceManager's REST interface.

    :param url: its address, ``http://host:8088``
    :param auth: for a secured cluster
    """

    elsewhere = (
        f"{ADDRESS_EXTRA!r} of the Spark connection may be of another cluster than HADOOP_CONF_DIR names"
    )

    def __init__(self, url: str, auth: AuthBase | None = None) -> None:
        self.url = url.rstrip("/")
        self._auth = auth

    @classmethod
    def of_extra(cls, conn_id: str, extra: Mapping[str, Any], auth: AuthBase | None = None) -> Self:
        """Find it as Airflow's Spark provider does.

        :param conn_id: the Spark connection
        :param extra: of that connection; it has ``yarn_resourcemanager_webapp_address``
        :param auth: None for Kerberos where the extra has ``keytab`` and ``principal``, else for none
        :raises ConfigurationError: if there is no address in it, or what Kerberos needs is not installed
        """
        address = str(extra.get(ADDRESS_EXTRA) or "").strip()
        if not address:
            raise ConfigurationError(
                f"the Spark connection {conn_id!r} has no {ADDRESS_EXTRA!r} in its extra, by which a driver "
                "on YARN is followed, found again and stopped: add the ResourceManager's web address, such "
                "as 'http://rm.example.com:8088' (yarn.resourcemanager.webapp.address of yarn-site.xml). "
                "Nothing was submitted"
            )
        if auth is None and extra.get("keytab") and extra.get("principal"):
            auth = _kerberos(conn_id)
        return cls(address if "://" in address else f"http://{address}", auth)

    def application(self, application_id: str) -> YarnApplication:
        """Ask for an application.

        :param application_id: its id
        :raises RetriesExhaustedError: if the ResourceManager does not answer, or not with what it should
        """
        answer = self._ask("GET", f"apps/{application_id}")
        if answer.status_code == requests.codes.not_found:
            return YarnApplication(application_id, "UNKNOWN")
        found: YarnApplication = self._read(answer, lambda body: YarnApplication.of(body["app"]))
        return found

    def tagged(self, tag: str) -> list[YarnApplication]:
        """List the applications with a tag, the newest first.

        :param tag: one of ``spark.yarn.tags``, in lower case
        :raises RetriesExhaustedError: as :meth:`application`
        """
        self._require_ready()
        answer = self._send("GET", "apps", params={"applicationTags": tag})

        def read(body: Any) -> list[YarnApplication]:
            found = [YarnApplication.of(one) for one in (body["apps"] or {}).get("app", [])]
            return sorted((one for one in found if tag in one.tags), key=lambda one: one.id, reverse=True)

        tagged: list[YarnApplication] = self._read(answer, read)
        return tagged

    def kill(self, application_id: str) -> None:
        """Ask YARN to kill an application; one that has ended stays as it is.

        :param application_id: its id
        :raises RetriesExhaustedError: if the ResourceManager does not take it
        """
        answer = self._ask("PUT", f"apps/{application_id}/state", json={"state": "KILLED"})
        if not answer.ok and answer.status_code != requests.codes.not_found:
            raise self._unusable(answer)

    def kill_command(self, application_id: str) -> str:
        """What stops an application by hand.

        :param application_id: its id
        """
        return f"yarn application -kill {application_id}"

    def log_command(self, application_id: str) -> str:
        """What shows the driver's log.

        :param application_id: the application's id
        """
        return f"yarn logs -applicationId {application_id}"

    def last_lines(self, application: YarnApplication) -> str:
        """Nothing: YARN's REST interface has no logs, and the end of the driver's is in the diagnostics.

        :param application: an answer of :meth:`application`
        """
        return ""

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response:
        answer = self._send(method, path, **more)
        if answer.status_code == requests.codes.not_found:
            self._require_ready()
            answer = self._send(method, path, **more)
        return answer

    def _require_ready(self) -> None:
        """Refuse what is no answer: one that has started again answers before it has read what it knew.

        Observed with Hadoop 3.5: its applications are not found for seconds, and then go on.
        """
        info = self._read(self._send("GET", "info"), lambda body: body["clusterInfo"])
        if info.get("haState") == "INITIALIZING":
            raise RetriesExhaustedError(
                f"YARN's ResourceManager at {self.url} is INITIALIZING, and does not know its applications "
                "yet: wait until it has started"
            )

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        url = f"{self.url}/ws/v1/cluster/{path}"
        headers = {"Accept": "application/json"}
        try:
            return requests.request(method, url, auth=self._auth, headers=headers, timeout=_TIMEOUTS, **more)
        except requests.RequestException as error:
            raise RetriesExhaustedError(
                f"YARN's ResourceManager at {self.url} does not answer ({type(error).__name__}): see that it "
                f"runs and that {ADDRESS_EXTRA!r} of the Spark connection is its web address"
            ) from error

    def _read(self, answer: requests.Response, read: Any) -> Any:
        if answer.status_code != requests.codes.ok:
            raise self._unusable(answer)
        try:
            return read(answer.json())
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._unusable(answer) from None

    def _unusable(self, answer: requests.Response) -> RetriesExhaustedError:
        return RetriesExhaustedError(
            f"YARN's ResourceManager at {self.url} answered {answer.status_code} to {answer.request.method} "
            f"{answer.request.path_url}: {answer.text[:_SHOWN_BYTES]!r}"
        )


def _kerberos(conn_id: str) -> AuthBase:
    try:
        from requests_kerberos import HTTPKerberosAuth  # type: ignore[import-not-found]
    except ImportError:
        raise ConfigurationError(
            f"the Spark connection {conn_id!r} has a keytab and a principal, and YARN's ResourceManager is "
            "asked with Kerberos: install requests-kerberos, or give yarn_rm_auth=…"
        ) from None
    found: AuthBase = HTTPKerberosAuth()
    return found
