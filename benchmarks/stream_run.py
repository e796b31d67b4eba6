"""One run of the stream operator in a process of its own, which has imported what a DAG file imports.

    python -m benchmarks.stream_run '{"source": {"path": "/data"}, "table": "T"}'

It prints the seconds of ``execute``, the processor seconds of this process and of those that it has started,
and the rows that were loaded.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from tests.stream_worker import TaskInstance


def main(options: dict[str, Any]) -> None:
    """Run, and print the cost."""
    operator = SnowpipeStreamOperator(
        task_id="load", source=options["source"], table=options["table"], channel_prefix="p"
    )
    context: Any = {"ti": TaskInstance()}
    cpu, began = _cpu_seconds(), time.perf_counter()
    value = operator.execute(context)
    wall = time.perf_counter() - began
    print(json.dumps({"wall": wall, "cpu": _cpu_seconds() - cpu, "rows": value["rows"]}))


def _cpu_seconds() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
