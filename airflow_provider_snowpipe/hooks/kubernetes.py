"""Kubernetes, as far as the pod of a Spark driver is followed and stopped, and its secret made and removed.

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

from airflow_provider_snowpipe.streaming.errors import ConfigurationError, RetriesExhaustedError

POD_ID = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?:[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""``namespace:pod``, the form of Airflow's Spark provider."""
SECRET_KEY = "credentials"  # noqa: S105  a key's name
"""Under which a secret that this package makes holds the credentials."""
SECRET_LABEL = "snowpipe-secret"  # noqa: S105  a label's name
"""Of a driver's pod whose secret was made for it, and goes with it; the value is the secret's name."""
_ACTIVE = ("Pending", "Running", "Unknown")
_TIMEOUTS = (10.0, 30.0)
"""Seconds to connect and between two bytes of an answer."""
_LOG_LINES = 200
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class DriverPod:
    """What Kubernetes reports of one driver's pod.

    :param id: ``namespace:pod``
    :param state: the phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed``, or ``Unknown`` where its
        node does not answer; ``NotFound`` where there is no such pod (any more)
    :param diagnostics: why it waits, or how it ended
    :param labels: the pod's
    :param container: the driver's container, the first one
    :param tracking_url: nothing, a pod has no page
    """

    id: str
    state: str
    diagnostics: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    tracking_url: str | None = None

    @classmethod
    def of(cls, pod: Any) -> Self:
        """Read it from the client's ``V1Pod``.

        :param pod: the pod
        """
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
        return self.state in _ACTIVE

    @property
    def is_waiting(self) -> bool:
        """True while not all of its containers are made, so that its secrets may not have been read."""
        return self.state == "Pending"

    @property
    def has_succeeded(self) -> bool:
        """True when Kubernetes calls it a success, which is no evidence of what is committed."""
        return self.state == "Succeeded"

    def __str__(self) -> str:
        why = f": {self.diagnostics}" if self.diagnostics else ""
        return f"Kubernetes pod {self.id} ({self.state}{why})"


class KubernetesPods:
    """The drivers' pods of a cluster.

    :param namespace: where new ones are submitted; empty for a client that asks for known ones only
    :raises ConfigurationError: if Airflow's Kubernetes provider is missing, or it has no cluster
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
        """Ask for a pod.

        :param application_id: its id
        :raises RetriesExhaustedError: if the API does not answer, or not with what it should
        :raises ConfigurationError: if Airflow may not ask
        """
        namespace, name = application_id.split(":")
        pod = self._ask("get", "pods", namespace, self._client.read_namespaced_pod, name)
        return DriverPod(application_id, "NotFound") if pod is None else DriverPod.of(pod)

    def tagged(self, tag: str) -> list[DriverPod]:
        """List the pods with a label, the newest first.

        :param tag: the label's name
        :raises RetriesExhaustedError: as :meth:`application`
        :raises ConfigurationError: likewise
        """
        list_pods = self._client.list_namespaced_pod
        found = self._ask("list", "pods", self.namespace, list_pods, label_selector=tag)
        pods = [] if found is None else found.items
        return [DriverPod.of(one) for one in sorted(pods, key=_made, reverse=True)]

    def kill(self, application_id: str) -> None:
        """Delete a pod, and the secret that was made for it; where there is none, nothing.

        :param application_id: its id
        :raises RetriesExhaustedError: if the API does not take it
        :raises ConfigurationError: if Airflow may not delete
        """
        namespace, name = application_id.split(":")
        pod = self.application(application_id)
        self._ask("delete", "pods", namespace, self._client.delete_namespaced_pod, name)
        if SECRET_LABEL in pod.labels:
            self.delete_secret(pod.labels[SECRET_LABEL], namespace)

    def kill_command(self, application_id: str) -> str:
        """What stops a pod by hand.

        :param application_id: its id
        """
        namespace, name = application_id.split(":")
        return f"kubectl delete pod -n {namespace} {name}"

    def log_command(self, application_id: str) -> str:
        """What shows the driver's log.

        :param application_id: the pod's id
        """
        namespace, name = application_id.split(":")
        return f"kubectl logs -n {namespace} {name}"

    def last_lines(self, pod: DriverPod) -> str:
        """Read the end of the driver's log, empty where it cannot be read any more.

        :param pod: an answer of :meth:`application`
        """
        if not pod.container:
            return ""
        namespace, name = pod.id.split(":")
        read = self._client.read_namespaced_pod_log
        try:
            found = self._ask(
                "get", "pods/log", namespace, read, name, container=pod.container, tail_lines=_LOG_LINES
            )
        except (ConfigurationError, RetriesExhaustedError):
            return ""
        return str(found or "")

    def create_secret(self, name: str, value: str) -> None:
        """Make a secret for one driver, with :data:`SECRET_KEY` in it.

        :param name: its name, which no other has
        :param value: what the driver reads
        :raises RetriesExhaustedError: if the API does not take it; neither text has anything of the value
        :raises ConfigurationError: if Airflow may not make it
        """
        # Without this the client logs the answer, which repeats the secret, where the log level is DEBUG.
        unlogged = {"_preload_content": False}
        create, body = self._client.create_namespaced_secret, secret_manifest(name, self.namespace, value)
        self._ask("create", "secrets", self.namespace, create, body, **unlogged)

    def delete_secret(self, name: str, namespace: str = "") -> None:
        """Remove a secret; where there is none, nothing.

        :param name: its name
        :param namespace: empty for this client's
        :raises RetriesExhaustedError: if the API does not take it
        :raises ConfigurationError: if Airflow may not remove it
        """
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


def secret_manifest(name: str, namespace: str, value: str) -> dict[str, Any]:
    """The manifest of a secret for one driver.

    :param name: its name
    :param namespace: where it is made
    :param value: what the driver reads
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "airflow-provider-snowpipe"},
        },
        "type": "Opaque",
        "immutable": True,
        "data": {SECRET_KEY: base64.b64encode(value.encode()).decode()},
    }


def _made(pod: Any) -> Any:
    return pod.metadata.creation_timestamp


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
