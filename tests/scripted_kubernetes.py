"""An API server of Kubernetes that answers as a test prescribes: pods, their logs, and secrets."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_provider_snowpipe.hooks.cluster import SECRET_LABEL
from tests.scripted_yarn import Submission

Step = str | dict[str, Any] | Callable[[], Any] | int
KUBE_CLIENT = "airflow.providers.cncf.kubernetes.kube_client"
CONTAINER = "spark-kubernetes-driver"
_LABEL = "spark.kubernetes.driver.label."


@dataclass
class ScriptedKubernetes:
    """Pods, and what each poll of one finds.

    A script's steps are taken one a poll: a phase, a whole ``status``, an HTTP status instead of an answer,
    or something to do before the next step. The last phase stays.
    """

    url: str = ""
    namespace: str = "loads"
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    """Pods that lost the secret that was made for them before they had started: they wait for ever."""
    requests: list[str] = field(default_factory=list)
    script: deque[Step] = field(default_factory=deque)
    log: str = ""
    forbidden: str = ""
    submit_code: int = 0
    takes: bool = True

    def play(self, *steps: Step) -> Self:
        """Prescribe what the next polls find."""
        self.script.extend(steps)
        return self

    def vanish(self) -> None:
        """Lose all pods, as with their node."""
        self.pods.clear()

    def submit(self, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Make the driver's pod, as ``spark-submit`` does."""
        taken = Submission(argv, environment, "", 0, {})
        settings = taken.settings
        file = Path(argv[-2].removeprefix("local://"))
        job = file.read_text() if file.is_file() else ""
        self.submissions.append(Submission(argv, environment, job, 0, plan_in(job)))
        if not self.takes:
            return {"line": "nothing was taken", "code": self.submit_code}
        name = settings["spark.kubernetes.driver.pod.name"]
        labels = {
            key.removeprefix(_LABEL): value for key, value in settings.items() if key.startswith(_LABEL)
        }
        self.add(name, labels, settings["spark.kubernetes.namespace"])
        line = f"INFO LoggingPodStatusWatcherImpl: Deployed Spark application x with submission ID {name}"
        return {"line": line, "code": self.submit_code}

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
        """Answer a question about one pod."""
        pod = self.pods.get(name)
        if pod is None:
            return _error(404, f'pods "{name}" not found')
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            return 200, pod
        while self.script and callable(self.script[0]):
            step = self.script.popleft()
            assert callable(step)
            step()
        pod = self.pods.get(name)
        if pod is None:
            return _error(404, f'pods "{name}" not found')
        if self.script:
            step = self.script.popleft()
            if isinstance(step, int):
                return _error(step, "scripted")
            assert not callable(step)
            pod["status"] = {"phase": step} if isinstance(step, str) else step
        return 200, pod

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Answer a request."""
        if path == "/submit":
            return 200, self.submit(**body)
        if method == "PATCH":  # what Spark makes beside the driver's pod
            return 200, body
        _, _, _, _, namespace, kind, *more = path.split("/")
        self.requests.append(f"{method} {'/'.join([kind, *more])}")
        if namespace != self.namespace or self.forbidden == f"{method} {kind}":
            return _error(403, f'{kind} is forbidden: User "airflow" cannot do that in "{namespace}"')
        if kind == "secrets":
            return self._answer_secret(method, more, body)
        if method == "POST":
            self.add(body["metadata"]["name"], body["metadata"]["labels"], namespace, body["spec"])
            return 201, self.pods[body["metadata"]["name"]]
        if not more:
            found = [one for one in self.pods.values() if query["labelSelector"] in one["metadata"]["labels"]]
            return 200, {"apiVersion": "v1", "kind": "PodList", "items": found}
        if more[1:] == ["log"]:
            return 200, self.log
        if method == "DELETE":
            found_pod = self.pods.pop(more[0], None)
            self.killed.extend([more[0]] if found_pod else [])
            return (200, found_pod) if found_pod else _error(404, "no such pod")
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
    """The plan that a job's file brings along.

    :param job: what the file holds
    """
    texts = [one.value for one in ast.walk(ast.parse(job)) if isinstance(one, ast.Constant)]
    plans = [text for text in texts if isinstance(text, str) and text.startswith("{")]
    return dict(json.loads(plans[0])) if plans else {}


def _error(status: int, message: str) -> tuple[int, Any]:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
    return status, body


@contextmanager
def scripted_kubernetes() -> Iterator[ScriptedKubernetes]:
    """An API server on a port of this machine."""
    cluster = ScriptedKubernetes()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with lock:
                status, answer = cluster.answer(self.command, parts.path, query, body)
            is_text = isinstance(answer, str)
            text = (answer if is_text else json.dumps(answer)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if is_text else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()


def use_kubernetes(cluster: ScriptedKubernetes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Airflow's Kubernetes provider ask the API server; where it is missing, as much of it as is used.

    :param cluster: the API server
    :param folder: where the file goes by which clients find it
    :param monkeypatch: for Airflow's configuration
    """
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
