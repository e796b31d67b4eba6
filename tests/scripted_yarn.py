"""A ResourceManager that answers as a test prescribes, and a ``spark-submit`` that submits to it."""

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.http_server import Received, Reply, serving

_SUBMIT = """#!PYTHON -SE
import json, os, socket, sys  # no client of HTTP, which takes longer to import than all of this to run
body = json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ)}).encode()
with socket.create_connection(ADDRESS) as service:
    service.sendall(b"POST /submit HTTP/1.0\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    answer = json.loads(service.makefile("rb").read().partition(b"\\r\\n\\r\\n")[2])
print(answer["line"], flush=True)
sys.exit(answer["code"])
"""


@dataclass
class Application:
    """One application as the scripted ResourceManager keeps it."""

    id: str
    tags: list[str]
    state: str = "ACCEPTED"
    final_status: str = "UNDEFINED"
    diagnostics: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": self.state,
            "finalStatus": self.final_status,
            "diagnostics": self.diagnostics,
            "trackingUrl": f"http://rm:8088/proxy/{self.id}/",
            "applicationTags": ",".join(self.tags),
        }


@dataclass(frozen=True)
class Submission:
    """One run of the scripted ``spark-submit``."""

    argv: list[str]
    environment: dict[str, str]
    job: str = ""
    mode: int = 0
    plan: dict[str, Any] = field(default_factory=dict)

    def option(self, name: str) -> str:
        return self.argv[self.argv.index(name) + 1]

    @property
    def settings(self) -> dict[str, str]:
        pairs = (self.argv[at + 1] for at, word in enumerate(self.argv) if word == "--conf")
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@dataclass
class ScriptedCluster:
    """What polls find: the steps of a script, one a poll; what the last one found stays.

    A step is what is found, an HTTP status instead of an answer, or something to do before the next step.
    """

    url: str = ""
    submissions: list[Submission] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    script: deque[Any] = field(default_factory=deque)

    def play(self, *steps: Any) -> Self:
        """Prescribe what the next polls find."""
        self.script.extend(steps)
        return self

    def next_step(self) -> Any:
        """What a poll finds, None where the script has ended."""
        while self.script:
            step = self.script.popleft()
            if not callable(step):
                return step
            step()
        return None


@dataclass
class ScriptedYarn(ScriptedCluster):
    """Applications; a poll finds a state, or a pair of state and final status."""

    applications: dict[str, Application] = field(default_factory=dict)
    polls: int = 0
    submit_code: int = 0
    takes: bool = True
    recovering: int = 0
    """So many polls find a ResourceManager that has started again and read nothing of what it knew yet."""

    def submit(self, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Take a submission, as YARN does."""
        job = Path(argv[-2])
        plan = Path(dict(pairwise(argv))["--files"].split(",")[-1])
        mode = job.stat().st_mode & 0o777
        taken = Submission(argv, environment, job.read_text(), mode, json.loads(plan.read_text()))
        self.submissions.append(taken)
        line = "nothing was taken"
        if self.takes:
            one = self.add(taken.settings["spark.yarn.tags"].lower().split(","))
            line = f"INFO YarnClientImpl: Submitted application {one.id}"
        return {"line": line, "code": self.submit_code}

    def add(self, tags: list[str], state: str = "ACCEPTED") -> Application:
        one = Application(f"application_1700000000000_{len(self.applications) + 1:04}", tags, state)
        self.applications[one.id] = one
        return one

    def poll(self, application_id: str) -> tuple[int, Any]:
        self.polls += 1
        one = None if self._recovers() else self.applications.get(application_id)
        if one is None:
            return 404, {}
        if one.state not in ("FINISHED", "FAILED", "KILLED"):
            step = self.next_step()
            if isinstance(step, int):
                return step, {"RemoteException": {"message": "scripted"}}
            if step is not None:
                one.state, one.final_status = (step, "UNDEFINED") if isinstance(step, str) else step
        return 200, {"app": one.to_json()}

    def _recovers(self) -> bool:
        self.recovering -= 1
        return self.recovering >= 0

    def answer(self, request: Received) -> tuple[int, Any]:
        name = request.path.rstrip("/").rpartition("/")[2]
        if name == "submit":
            return 200, self.submit(**json.loads(request.body))
        if request.method == "PUT":
            if self._recovers():
                return 404, {}
            one = self.applications[request.path.split("/")[-2]]
            if json.loads(request.body) == {"state": "KILLED"}:
                self.killed.append(one.id)
                one.state = one.final_status = "KILLED"
            return 202, {"state": one.state}
        if name == "info":
            state = "INITIALIZING" if self.recovering > 0 else "ACTIVE"
            return 200, {"clusterInfo": {"state": "STARTED", "haState": state}}
        if name != "apps":
            return self.poll(name)
        known = [] if self._recovers() else self.applications.values()
        found = [one.to_json() for one in known if request.query["applicationTags"] in one.tags]
        return 200, {"apps": {"app": found} if found else None}


@contextmanager
def serving_json(answer: Callable[[Received], tuple[int, Any]]) -> Iterator[str]:
    """Answer requests in JSON, or in text where the answer is one, one after the other; the URL."""
    lock = threading.Lock()

    def reply(request: Received) -> Reply:
        with lock:
            status, found = answer(request)
        if isinstance(found, str):
            return Reply(status, found, {"Content-Type": "text/plain"})
        return Reply(status, json.dumps(found), {"Content-Type": "application/json"})

    with serving(reply) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def scripted_yarn() -> Iterator[ScriptedYarn]:
    yarn = ScriptedYarn()
    with serving_json(lambda request: yarn.answer(request)) as yarn.url:
        yield yarn


def write_submit(path: Path, cluster: ScriptedCluster) -> Path:
    parts = urlsplit(cluster.url)
    address = repr((parts.hostname, parts.port))
    path.write_text(_SUBMIT.replace("PYTHON", sys.executable).replace("ADDRESS", address))
    path.chmod(0o755)
    return path
