"""A ResourceManager that answers as a test prescribes, and a ``spark-submit`` that submits to it."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Step = str | tuple[str, str] | Callable[[], Any] | int
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
    job: str
    mode: int
    plan: dict[str, Any]

    def option(self, name: str) -> str:
        return self.argv[self.argv.index(name) + 1]

    @property
    def settings(self) -> dict[str, str]:
        pairs = (self.argv[at + 1] for at, word in enumerate(self.argv) if word == "--conf")
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@dataclass
class ScriptedYarn:
    """Applications, and what each poll of one finds.

    A script's steps are taken one a poll: a state, a pair of state and final status, an HTTP status instead
    of an answer, or something to do before the next step. The last state stays.
    """

    url: str = ""
    applications: dict[str, Application] = field(default_factory=dict)
    submissions: list[Submission] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    polls: int = 0
    script: deque[Step] = field(default_factory=deque)
    on_submit: Callable[[], Any] = lambda: None
    submit_code: int = 0
    takes: bool = True
    recovering: int = 0
    """So many polls find a ResourceManager that has started again and read nothing of what it knew yet."""
    submitted_line: str = "INFO YarnClientImpl: Submitted application {id}"

    def play(self, *steps: Step) -> Self:
        """Prescribe what the next polls find."""
        self.script.extend(steps)
        return self

    def submit(self, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
        """Take a submission, as YARN does."""
        settings = Submission(argv, environment, "", 0, {}).settings
        job = Path(argv[-2])
        plan = Path(dict(pairwise(argv))["--files"].split(",")[-1])
        self.submissions.append(
            Submission(
                argv,
                environment,
                job.read_text(),
                job.stat().st_mode & 0o777,
                json.loads(plan.read_text()),
            )
        )
        line = "nothing was taken"
        if self.takes:
            one = self.add(settings["spark.yarn.tags"].lower().split(","))
            line = self.submitted_line.format(id=one.id)
        self.on_submit()
        return {"line": line, "code": self.submit_code}

    def add(self, tags: list[str], state: str = "ACCEPTED") -> Application:
        """An application that runs."""
        one = Application(f"application_1700000000000_{len(self.applications) + 1:04}", tags, state)
        self.applications[one.id] = one
        return one

    def poll(self, application_id: str) -> tuple[int, Any]:
        """Answer a question about one application."""
        self.polls += 1
        one = None if self._recovers() else self.applications.get(application_id)
        if one is None:
            return 404, {}
        if one.state in ("FINISHED", "FAILED", "KILLED"):
            return 200, {"app": one.to_json()}
        while self.script and callable(self.script[0]):
            step = self.script.popleft()
            assert callable(step)
            step()
        if self.script:
            step = self.script.popleft()
            if isinstance(step, int):
                return step, {"RemoteException": {"message": "scripted"}}
            assert not callable(step)
            one.state, one.final_status = (step, "UNDEFINED") if isinstance(step, str) else step
        return 200, {"app": one.to_json()}

    def _recovers(self) -> bool:
        self.recovering -= 1
        return self.recovering >= 0

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Answer a request."""
        name = path.rstrip("/").rpartition("/")[2]
        if name == "submit":
            return 200, self.submit(**body)
        if method == "PUT":
            if self._recovers():
                return 404, {}
            one = self.applications[path.split("/")[-2]]
            self.killed.append(one.id)
            one.state = one.final_status = "KILLED"
            return 202, {"state": "KILLED"}
        if name == "info":
            state = "INITIALIZING" if self.recovering > 0 else "ACTIVE"
            return 200, {"clusterInfo": {"state": "STARTED", "haState": state}}
        if name != "apps":
            return self.poll(name)
        known = [] if self._recovers() else self.applications.values()
        found = [one.to_json() for one in known if query["applicationTags"] in one.tags]
        return 200, {"apps": {"app": found} if found else None}


@contextmanager
def scripted_yarn() -> Iterator[ScriptedYarn]:
    """A ResourceManager on a port of this machine."""
    yarn = ScriptedYarn()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with lock:
                status, answer = yarn.answer(self.command, parts.path, query, body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _answer

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    yarn.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
    try:
        yield yarn
    finally:
        server.shutdown()
        server.server_close()


def write_submit(path: Path, yarn: ScriptedYarn) -> Path:
    """Write a ``spark-submit`` that submits to the scripted ResourceManager.

    :param path: where it goes
    :param yarn: the ResourceManager
    """
    parts = urlsplit(yarn.url)
    address = repr((parts.hostname, parts.port))
    path.write_text(_SUBMIT.replace("PYTHON", sys.executable).replace("ADDRESS", address))
    path.chmod(0o755)
    return path
