"""A proxy in front of a local service that counts the status requests of whoever goes through it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.local_service import LocalService
from tests.scripted_service import Received, Reply, ScriptedService, error

_HOP_BY_HOP = frozenset({"host", "connection", "content-length", "accept-encoding"})


@dataclass(frozen=True)
class StatusRequest:
    """When a status request arrived, what it asked for, and HTTP's status of the answer."""

    at: float
    channels: tuple[str, ...]
    status: int


@dataclass
class CountingProxy:
    """What passed, and how to connect through it."""

    service: LocalService
    front: ScriptedService
    requests: list[StatusRequest] = field(default_factory=list)

    def connection(self) -> dict[str, Any]:
        """Return an Airflow connection that leads through the proxy."""
        fields: dict[str, Any] = json.loads(self.service.env["AIRFLOW_CONN_SNOWFLAKE_DEFAULT"])
        port = int(self.front.url.rpartition(":")[2])
        fields["extra"] = {**fields["extra"], "port": port, "ca_bundle": self.front.ca_bundle}
        return fields

    def since(self, timestamp: float) -> list[StatusRequest]:
        """Return the requests that have arrived since then."""
        return [request for request in list(self.requests) if request.at >= timestamp]

    def _forward(self, request: Received) -> Reply:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            answer = requests.request(
                request.method,
                self.service.url + request.path,
                params=request.query,
                data=request.body,
                headers=headers,
                verify=str(self.service.ca_file),
                timeout=(5.0, 60.0),
            )
        except requests.ConnectionError:
            return error(503, "ERR_NO_SERVICE", "the service behind the proxy is not there")
        return Reply(answer.status_code, answer.text)

    def _count(self, request: Received) -> Reply:
        at = time.time()
        reply = self._forward(request)
        channels = tuple(json.loads(request.body)["channel_names"])
        self.requests.append(StatusRequest(at, channels, reply.status))
        return reply


@contextmanager
def counting_proxy(service: LocalService, directory: Path) -> Iterator[CountingProxy]:
    """Run a proxy until the block ends."""
    directory.mkdir(parents=True, exist_ok=True)
    front = ScriptedService(directory)
    proxy = CountingProxy(service, front)
    front.on("token", proxy._forward)
    front.on("bulk-channel-status", proxy._count)
    with front:
        yield proxy
