"""An API server of Kubernetes that answers as a test prescribes: pods, their logs, and secrets."""

import ast
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_provider_snowpipe.hooks.cluster import SECRET_LABEL
from tests.http_server import Received
from tests.scripted_yarn import ScriptedCluster, Submission, serving_json

KUBE_CLIENT = "airflow.providers.cncf.kubernetes.kube_client"
CONTAINER = "spark-kubernetes-driver"
CONF = {
    "spark.kubernetes.container.image": "registry/spark:4.2.0",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "snowpipe-driver",
}
"""What a driver on Kubernetes needs."""
_LABEL = "spark.kubernetes.driver.label."
_SUBMITTED = "INFO LoggingPodStatusWatcherImpl: Deployed Spark application x with submission ID "


@dataclass
class ScriptedKubernetes(ScriptedCluster):
    """Pods; a poll finds a phase, or a whole ``status``."""

    namespace: str = "loads"
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    """Pods that lost the secret that was made for them before they had started: they wait for ever."""
    log: str = ""
    forbidden: str = ""

    def vanish(self) -> None:
        """Lose all pods, as with their node."""
        self.pods.clear()

    def submit(self, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Make the driver's pod, as ``spark-submit`` does."""
        file = Path(argv[-2].removeprefix("local://"))
        job = file.read_text() if file.is_file() else ""
        taken = Submission(argv, environment, job, plan=plan_in(job))
        self.submissions.append(taken)
        settings = taken.settings
        name = settings["spark.kubernetes.driver.pod.name"]
        labels = {key.removeprefix(_LABEL): settings[key] for key in settings if key.startswith(_LABEL)}
        self.add(name, labels, settings["spark.kubernetes.namespace"])
        return {"line": f"{_SUBMITTED}{name}", "code": 0}

    def add(
        self, name: str, labels: dict[str, str], namespace: str = "loads", spec: dict[str, Any] | None = None
    ) -> None:
        """A pod that waits for its node."""
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "uid": f"uid-{len(self.pods)}",
                "creationTimestamp": f"2026-01-01T00:00:{len(self.pods):02}Z",
            },
            "spec": spec or {"containers": [{"name": CONTAINER}]},
            "status": {"phase": "Pending"},
        }

    def poll(self, name: str) -> tuple[int, Any]:
        phase = self.pods[name]["status"]["phase"] if name in self.pods else ""
        step = None if phase in ("", "Succeeded", "Failed") else self.next_step()
        if name not in self.pods:  # a step may have taken it away
            return _error(404, f'pods "{name}" not found')
        if isinstance(step, int):
            return _error(step, "scripted")
        if step is not None:
            self.pods[name]["status"] = {"phase": step} if isinstance(step, str) else step
        return 200, self.pods[name]

    def answer(self, request: Received) -> tuple[int, Any]:
        method, body = request.method, json.loads(request.body) if request.body else None
        if request.path == "/submit":
            return 200, self.submit(**body)
        if method == "PATCH":  # what Spark makes beside the driver's pod
            return 200, body
        _, _, _, _, namespace, kind, *more = request.path.split("/")
        if namespace != self.namespace or self.forbidden == f"{method} {kind}":
            return _error(403, f'{kind} is forbidden: User "airflow" cannot do that in "{namespace}"')
        if kind == "secrets":
            return self._answer_secret(method, more, body)
        if method == "POST":
            self.add(body["metadata"]["name"], body["metadata"]["labels"], namespace, body["spec"])
            return 201, self.pods[body["metadata"]["name"]]
        if not more:
            label = request.query["labelSelector"]
            found = [one for one in self.pods.values() if label in one["metadata"]["labels"]]
            return 200, {"apiVersion": "v1", "kind": "PodList", "items": found}
        if more[1:] == ["log"]:
            return 200, self.log
        if method == "DELETE":
            pod = self.pods.pop(more[0], None)
            self.killed += [more[0]] if pod else []
            return (200, pod) if pod else _error(404, "no such pod")
        return self.poll(more[0])

    def _answer_secret(self, method: str, more: list[str], body: Any) -> tuple[int, Any]:
        if method == "POST":
            self.made.append(body)
            self.secrets[body["metadata"]["name"]] = body
            return 201, body
        if self.secrets.pop(more[0], None) is None:
            return _error(404, "no such secret")
        self.stranded += [
            name
            for name, pod in self.pods.items()
            if pod["metadata"]["labels"].get(SECRET_LABEL) == more[0] and pod["status"]["phase"] == "Pending"
        ]
        return 200, {"apiVersion": "v1", "kind": "Status", "status": "Success"}


def plan_in(job: str) -> dict[str, Any]:
    texts = [one.value for one in ast.walk(ast.parse(job)) if isinstance(one, ast.Constant)]
    plans = [text for text in texts if isinstance(text, str) and text.startswith("{")]
    return dict(json.loads(plans[0])) if plans else {}


def _error(status: int, message: str) -> tuple[int, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
    return status, body


@contextmanager
def scripted_kubernetes() -> Iterator[ScriptedKubernetes]:
    cluster = ScriptedKubernetes()
    with serving_json(lambda request: cluster.answer(request)) as cluster.url:
        yield cluster


def use_kubernetes(cluster: ScriptedKubernetes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Airflow's Kubernetes provider, or as much of it as is used, ask the API server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
    monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(file))
    if getattr(spark_submit, "kube_client", None) is None:
        missing = ModuleType(KUBE_CLIENT)
        missing.get_kube_client = _get_kube_client  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, KUBE_CLIENT, missing)
        monkeypatch.setattr(spark_submit, "kube_client", missing, raising=False)


def _get_kube_client() -> Any:
    from kubernetes import client, config

    found = client.Configuration()
    file = os.environ["AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE"]
    config.load_kube_config(config_file=file, client_configuration=found)
    return client.CoreV1Api(client.ApiClient(configuration=found))
