"""Ports for foreign programs that need a number."""

import socket
import subprocess
import sys

import pytest

from demo.ports import _reserve, reserved_port


def test_port_is_free_and_below_those_the_kernel_gives():
    port = reserved_port()

    with socket.socket() as server, socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        server.bind(("127.0.0.1", port))
        assert port < given.getsockname()[1]


def test_port_is_not_reserved_twice_while_its_process_lives():
    again = f"from demo.ports import _reserve; _reserve({reserved_port()})"

    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)

    assert "BlockingIOError" in done.stderr


def test_port_on_which_somebody_listens_is_not_reserved():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        with pytest.raises(OSError, match="in use"):
            _reserve(taken.getsockname()[1])
