"""A wire to an object store on which requests are slow, refused, cut or lost."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_READ = 1 << 20
CUT_AFTER = 100_000


@dataclass
class Wire:
    """What passed, and what becomes of the next requests.

    :param store: port of the store on 127.0.0.1
    :param faults: what becomes of the next requests, one each: ``503``, ``cut``, ``lost``, ``closed``, or
        empty; without any they pass
    :param delay: seconds that each request is late
    :param method: the faults are of its requests alone; empty for all
    :param edit: changes the bytes of a request
    :param cut_after: bytes of an answer that arrive before its connection is cut
    """

    store: int
    port: int = 0
    faults: deque[str] = field(default_factory=deque)
    delay: float = 0
    method: bytes = b""
    edit: Callable[[bytes], bytes] = bytes
    cut_after: int = CUT_AFTER
    requests: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def disturb(self, fault: str, times: int, method: str = "") -> None:
        self.method = method.encode()
        self.faults = deque([fault] * times)

    def carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.store)) as store, suppress(OSError):
            answers = threading.Thread(target=self._answer, args=(store, client, cut := threading.Event()))
            answers.start()
            while request := client.recv(_READ):
                line, _, _ = request.partition(b"\r\n")
                is_begin = line.endswith(b"HTTP/1.1")
                if is_begin:
                    self.requests.append(line.decode())
                    time.sleep(self.delay)
                is_due = is_begin and self.faults and request.startswith(self.method)
                fault = self.faults.popleft() if is_due else ""
                if fault == "503":
                    client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nbusy")
                    continue
                if fault == "lost":
                    self.ended.wait()
                if fault in ("lost", "closed"):
                    break
                if fault == "cut":
                    cut.set()
                store.sendall(self.edit(request))
            for one in (client, store):
                one.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _answer(self, store: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        passed = 0
        with suppress(OSError):
            while data := store.recv(_READ):
                if cut.is_set():
                    data = data[: self.cut_after - passed]
                    passed += len(data)
                client.sendall(data)
                if passed >= self.cut_after:
                    break
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(store: int) -> Iterator[Wire]:
    wire = Wire(store)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire.port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=wire.carry, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield wire
        wire.ended.set()
        listener.shutdown(socket.SHUT_RDWR)
