"""Clusters that a Spark driver runs on: following and stopping its pod or YARN application, and its secret.

"Kubernetes: Pod Lifecycle" is the source of phases and reasons, "Spark: Running Spark on Kubernetes" that of
what Spark makes there. The client is the one of Airflow's Kubernetes provider, with its settings.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError
from airflow_provider_snowpipe.streaming.http import ProvenSession

POD_ID = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""``namespace:pod``, the form of Airflow's Spark provider."""
SECRET_KEY = "credentials"  # noqa: S105  a key's name
"""Under which a secret that this package makes holds the credentials."""
SECRET_LABEL = "snowpipe-secret"  # noqa: S105  a label's name
"""Of a driver's pod whose secret was made for it, and goes with it; the value is the secret's name."""
_ACTIVE_PHASES = ("Pending", "Running", "Unknown")
_TIMEOUTS = (10.0, 30.0)
"""Seconds to connect and between two bytes of an answer."""
_LOG_LINES = 200
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class DriverPod:
    """What Kubernetes reports of one driver's pod.

    :param state: the phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed``, or ``Unknown`` where its
        node does not answer; ``NotFound`` where there is no such pod (any more)
    """

    id: str
    state: str
    diagnostics: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    tracking_url: str | None = None

    @classmethod
    def of(cls, pod: Any) -> Self:
        """Read it from the client's ``V1Pod``."""
        return cls(
            id=f"{pod.metadata.namespace}:{pod.metadata.name}",
            state=pod.status.phase or "Pending",
            diagnostics=_diagnostics(pod.status),
            labels=dict(pod.metadata.labels or {}),
            container=pod.spec.containers[0].name,
        )

    @property
    def tags(self) -> frozenset[str]:
        """The names of its labels."""
        return frozenset(self.labels)

    @property
    def is_active(self) -> bool:
        """True while it may still send rows."""
        return self.state in _ACTIVE_PHASES

    @property
    def is_waiting(self) -> bool:
        """True while not all of its containers are made, so that its secrets may not have been read."""
        return self.state == "Pending"

    @property
    def has_succeeded(self) -> bool:
        """True when Kubernetes calls it a success, which is not evidence of what is committed."""
        return self.state == "Succeeded"

    def __str__(self) -> str:
        why = f": {self.diagnostics}" if self.diagnostics else ""
        return f"Kubernetes pod {self.id} ({self.state}{why})"


class KubernetesPods:
    """The drivers' pods of a cluster.

    RetriesExhaustedError if the API does not answer, ConfigurationError if Airflow may not; without a secret.

    :param namespace: where new ones are submitted; empty for a client that asks for known ones only
    """

    elsewhere = (
        "the section [kubernetes_executor] of Airflow's configuration (in_cluster, config_file, "
        "cluster_context) may name another cluster than the master of the Spark connection"
    )

    def __init__(self, namespace: str = "") -> None:
        self.namespace = namespace
        try:
            from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
            from kubernetes.config import ConfigException

            self._client = get_kube_client()
        except ImportError:
            raise ConfigurationError(
                "the master of the Spark connection is Kubernetes, whose Airflow provider is not installed: "
                "pip install 'airflow-provider-snowpipe[kubernetes]' where tasks and triggers run"
            ) from None
        except ConfigException as error:
            raise ConfigurationError(
                f"Airflow's Kubernetes provider knows no cluster ({error}): set in_cluster or config_file in "
                "the section [kubernetes_executor] of Airflow's configuration, also for the triggerer"
            ) from None

    def application(self, application_id: str) -> DriverPod:
        """Ask for a pod."""
        namespace, name = application_id.split(":")
        pod = self._ask("get", "pods", namespace, self._client.read_namespaced_pod, name)
        return DriverPod(application_id, "NotFound") if pod is None else DriverPod.of(pod)

    def tagged(self, tag: str) -> list[DriverPod]:
        """List the pods with a label, the newest first."""
        list_pods = self._client.list_namespaced_pod
        found = self._ask("list", "pods", self.namespace, list_pods, label_selector=tag)
        pods = [] if found is None else found.items
        newest_first = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp, reverse=True)
        return [DriverPod.of(one) for one in newest_first]

    def kill(self, application_id: str) -> None:
        """Delete a pod, and the secret that was made for it; where there is none, nothing."""
        namespace, name = application_id.split(":")
        pod = self.application(application_id)
        self._ask("delete", "pods", namespace, self._client.delete_namespaced_pod, name)
        if SECRET_LABEL in pod.labels:
            self.delete_secret(pod.labels[SECRET_LABEL], namespace)

    def kill_command(self, application_id: str) -> str:
        """What stops a pod by hand."""
        return f"kubectl delete pod -n {application_id.replace(':', ' ')}"

    def log_command(self, application_id: str) -> str:
        """What shows the driver's log."""
        return f"kubectl logs -n {application_id.replace(':', ' ')}"

    def last_lines(self, application: DriverPod | YarnApplication) -> str:
        """Read the end of the driver's log, empty where it cannot be read any more."""
        if not (isinstance(application, DriverPod) and application.container):
            return ""
        namespace, name = application.id.split(":")
        read, more = self._client.read_namespaced_pod_log, {"container": application.container}
        try:
            found = self._ask("get", "pods/log", namespace, read, name, tail_lines=_LOG_LINES, **more)
        except (ConfigurationError, RetriesExhaustedError):
            return ""
        return str(found or "")

    def create_secret(self, name: str, value: str) -> None:
        """Make a secret for one driver, with :data:`SECRET_KEY` in it."""
        # Without this the client logs the answer, which repeats the secret, where the log level is DEBUG.
        unlogged = {"_preload_content": False}
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/managed-by": "airflow-provider-snowpipe"},
            },
            "type": "Opaque",
            "immutable": True,
            "data": {SECRET_KEY: base64.b64encode(value.encode()).decode()},
        }
        create = self._client.create_namespaced_secret
        self._ask("create", "secrets", self.namespace, create, manifest, **unlogged)

    def delete_secret(self, name: str, namespace: str = "") -> None:
        """Remove a secret; where there is none, nothing."""
        target = namespace or self.namespace
        self._ask("delete", "secrets", target, self._client.delete_namespaced_secret, name)

    def _ask(
        self, verb: str, kind: str, namespace: str, call: Callable[..., Any], *words: Any, **more: Any
    ) -> Any:
        """Call the API; None where the object is not there."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        # The name comes before the namespace, and the namespace before a manifest.
        arguments = (namespace, *words) if verb == "create" else (*words, namespace)
        try:
            return call(*arguments, _request_timeout=_TIMEOUTS, **more)
        except ApiException as error:
            status, text = error.status, _message(error.body)
        except HTTPError as error:
            raise RetriesExhaustedError(
                f"the API of Kubernetes does not answer ({type(error).__name__}): see that it runs, and that "
                f"{self.elsewhere}"
            ) from None
        if status == 404:
            return None
        if status in (401, 403):
            raise ConfigurationError(
                f"Airflow may not {verb} {kind} in the namespace {namespace!r} of Kubernetes ({status}: "
                f"{text}): bind a role with this right to the account that Airflow's workers and triggerer "
                "use there, or correct the namespace of the Spark connection"
            )
        # What the API answers about a secret that it refuses may repeat it.
        shown = "" if kind == "secrets" else f": {text}"
        raise RetriesExhaustedError(
            f"the API of Kubernetes answered {status} to {verb} {kind} in the namespace {namespace!r}{shown}"
        )


def _diagnostics(status: Any) -> str:
    """Why a pod waits, or how it has ended, in the words of Kubernetes."""
    found = [status.reason, status.message]
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            found += [condition.reason, condition.message]
    for container in (status.container_statuses or ())[:1]:
        waiting, terminated = container.state.waiting, container.state.terminated
        if waiting is not None and waiting.reason != "ContainerCreating":
            found += [waiting.reason, waiting.message]
        if terminated is not None:
            found += [terminated.reason, terminated.message, f"exit code {terminated.exit_code}"]
    return ", ".join(" ".join(str(one).split()) for one in found if one)


def _message(body: Any) -> str:
    """The API's own sentence of an error."""
    try:
        text = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError):
        text = body or "no text"
    return str(text)[:_SHOWN_CHARACTERS]


# -- YARN: the ResourceManager, as far as a submitted application is followed and stopped --------------

ADDRESS_EXTRA = "yarn_resourcemanager_webapp_address"
"""Field of a Spark connection's extra, that of Airflow's Spark provider."""
APPLICATION_ID = re.compile(r"\bapplication_\d+_\d+\b")
_ACTIVE_STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True)
class YarnApplication:
    """What the ResourceManager reports of one application.

    :param state: for example ``ACCEPTED``, ``RUNNING``, ``FINISHED``, ``KILLED``; ``UNKNOWN`` where the
        ResourceManager knows none of this id, as after a restart without recovery
    :param final_status: ``SUCCEEDED``, ``FAILED`` or ``KILLED`` once it has ended, ``UNDEFINED`` before
    :param tracking_url: its page: Spark's own while it runs, the history server's or YARN's afterwards
    """

    id: str
    state: str
    final_status: str = "UNDEFINED"
    diagnostics: str = ""
    tracking_url: str | None = None
    tags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Read it from the JSON object ``app``."""
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
        return self.state in _ACTIVE_STATES

    @property
    def has_succeeded(self) -> bool:
        """True when YARN calls it a success, which is not evidence of what is committed."""
        return self.state == "FINISHED" and self.final_status == "SUCCEEDED"

    def __str__(self) -> str:
        status = "" if self.final_status in ("UNDEFINED", self.state) else f", {self.final_status}"
        why = f": {self.diagnostics}" if self.diagnostics else ""
        return f"YARN application {self.id} ({self.state}{status}{why})"


class ResourceManager:
    """A client of the ResourceManager's REST interface; RetriesExhaustedError if that does not answer.

    :param url: its address, ``http://host:8088``; user and password are taken out, so that no text has them
    """

    elsewhere = (
        f"{ADDRESS_EXTRA!r} of the Spark connection may be of another cluster than HADOOP_CONF_DIR names"
    )

    def __init__(self, url: str, auth: AuthBase | None = None) -> None:
        parts = urlsplit(url)
        given, _, host = parts.netloc.rpartition("@")
        user, _, password = given.partition(":")
        self.url = urlunsplit(parts._replace(netloc=host)).rstrip("/")
        self._auth = auth or (HTTPBasicAuth(unquote(user), unquote(password)) if given else None)

    @classmethod
    def of_extra(cls, conn_id: str, extra: Mapping[str, Any], auth: AuthBase | None = None) -> Self:
        """Find it as Airflow's Spark provider does.

        :param auth: None for Kerberos where the extra has ``keytab`` and ``principal``, else for none
        """
        address = str(extra.get(ADDRESS_EXTRA) or "").strip()
        if not address:
            raise ConfigurationError(
                f"the Spark connection {conn_id!r} has no {ADDRESS_EXTRA!r} in its extra, by which a driver "
                "on YARN is followed and stopped: add the ResourceManager's web address of yarn-site.xml, "
                "such as 'http://rm.example.com:8088'. Nothing was submitted"
            )
        if auth is None and extra.get("keytab") and extra.get("principal"):
            auth = _kerberos(conn_id)
        url = address if "://" in address else f"http://{address}"
        if not _is_web_address(url):
            shown = address.rpartition("@")[2]  # without a password
            raise ConfigurationError(
                f"{ADDRESS_EXTRA!r} of the Spark connection {conn_id!r} is {shown!r}: give one web address, "
                "such as 'http://rm.example.com:8088'. Nothing was submitted"
            )
        return cls(url, auth)

    def application(self, application_id: str) -> YarnApplication:
        """Ask for an application."""
        answer = self._ask("GET", f"apps/{application_id}")
        if answer.status_code == requests.codes.not_found:
            return YarnApplication(application_id, "UNKNOWN")
        found: YarnApplication = self._read(answer, lambda body: YarnApplication.of(body["app"]))
        return found

    def tagged(self, tag: str) -> list[YarnApplication]:
        """List the applications with a tag, the newest first."""
        self._require_ready()
        answer = self._send("GET", "apps", params={"applicationTags": tag})

        def read(body: Any) -> list[YarnApplication]:
            found = [YarnApplication.of(one) for one in (body["apps"] or {}).get("app", [])]
            return sorted((one for one in found if tag in one.tags), key=lambda one: one.id, reverse=True)

        tagged: list[YarnApplication] = self._read(answer, read)
        return tagged

    def kill(self, application_id: str) -> None:
        """Ask YARN to kill an application; one that has ended stays as it is."""
        answer = self._ask("PUT", f"apps/{application_id}/state", json={"state": "KILLED"})
        if not answer.ok and answer.status_code != requests.codes.not_found:
            raise self._unusable(answer)

    def kill_command(self, application_id: str) -> str:
        """What stops an application by hand."""
        return f"yarn application -kill {application_id}"

    def log_command(self, application_id: str) -> str:
        """What shows the driver's log."""
        return f"yarn logs -applicationId {application_id}"

    def last_lines(self, application: DriverPod | YarnApplication) -> str:
        """Nothing: YARN's REST interface has no logs, and the end of the driver's is in the diagnostics."""
        return ""

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response:
        answer = self._send(method, path, **more)
        if answer.status_code == requests.codes.not_found:
            self._require_ready()
            answer = self._send(method, path, **more)
        return answer

    def _require_ready(self) -> None:
        """Refuse what is not an answer: one that has started again answers before it has read what it knew.

        Observed with Hadoop 3.5: its applications are not found for seconds, and then go on.
        """
        info = self._read(self._send("GET", "info"), lambda body: body["clusterInfo"])
        if info.get("haState") == "INITIALIZING":
            raise RetriesExhaustedError(
                f"YARN's ResourceManager at {self.url} is INITIALIZING: wait until it has started"
            )

    def _send(self, method: str, path: str, **more: Any) -> requests.Response:
        url = f"{self.url}/ws/v1/cluster/{path}"
        headers = {"Accept": "application/json"}
        try:
            with ProvenSession() as session:
                return session.request(
                    method, url, auth=self._auth, headers=headers, timeout=_TIMEOUTS, **more
                )
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


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of port or brackets
        return False


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
