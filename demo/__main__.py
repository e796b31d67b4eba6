"""Command line of the demo: ``python -m demo`` runs it, ``python -m demo stop`` ends what it left running."""

import os
import signal
import sys
from pathlib import Path

from demo.processes import stop_left_behind
from demo.run import Demo, DemoError, exclusive

FOLDER = Path(".demo")


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    # A plain kill must stop the children as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Each process would compile the package again: a second or two of the service's start alone.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        with exclusive(FOLDER):
            if arguments == ["stop"]:
                for state_file in FOLDER.rglob("*processes.json"):
                    stop_left_behind(state_file)
                return 0
            return Demo(FOLDER, keep=os.environ.get("KEEP", "") not in ("", "0")).run()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


sys.exit(main(sys.argv[1:]))
