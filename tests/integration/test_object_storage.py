"""Files in an object store through the operator, a driver of its own and its executors."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from tests.airflow_connections import SetConnection
from tests.checkpoints import shown
from tests.file_pipes import task_context
from tests.local_connection import ids, make_table
from tests.local_service import LocalService
from tests.s3_service import KEY_ID, SECRET, S3Service, s3_service


@pytest.fixture
def s3(set_connection: SetConnection) -> Iterator[S3Service]:
    with s3_service() as running:
        running.client.create_bucket(Bucket="lake")
        set_connection("lake", conn_type="aws", login=KEY_ID, password=SECRET, extra=running.extra)
        yield running


class CommandLines:
    """The command lines of all processes that ran in the block."""

    def __enter__(self) -> CommandLines:
        self.seen: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            lines = (process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"]))
            self.seen.update(map(" ".join, lines))


def _put(s3: S3Service, name: str, numbers: range) -> None:
    body = "".join(f"{json.dumps({'ID': number, 'NAME': 'x'})}\n" for number in numbers)
    s3.client.put_object(Bucket="lake", Key=f"in/{name}", Body=body.encode())


@pytest.mark.spark
def test_a_bucket_is_loaded_once_and_then_from_where_it_was_left_without_showing_its_key(
    local_service: LocalService,
    conn_id: str,
    s3: S3Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    table = make_table(local_service, "FROM_S3")
    monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK", "False")
    for partition in range(3):
        for file in range(2):
            begin = (partition * 2 + file) * 500
            _put(s3, f"p{partition}/{file}.ndjson", range(begin, begin + 500))
    tasks: list[Any] = []

    def run() -> Any:
        operator = SnowpipeStreamOperator(
            task_id="load",
            source={"path": "s3://{{ params.bucket }}/in", "conn_id": "{{ params.conn_id }}"},
            table=table,
            snowflake_conn_id=conn_id,
            channel_prefix="s3",
            conf={
                "spark.ui.enabled": "false",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": tmp_path.as_uri(),
                "spark.eventLog.compress": "false",
            },
        )
        operator.render_template_fields({"params": {"bucket": "lake", "conn_id": "lake"}})
        task = task_context()
        value = operator.execute(task)
        tasks.append((operator.source, task["ti"].xcoms, value))
        return value

    with CommandLines() as lines:
        first = run()
        assert first["rows"] == 3000
        assert ids(local_service, table) == list(range(3000))
        _put(s3, "p1/2.ndjson", range(3000, 3100))
        monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK", "True")
        second = run()

    assert (second["rows"], ids(local_service, table)) == (100, list(range(3100)))
    tokens = [shown(one["to"]) for one in second["channels"].values()]
    assert tokens == ["1.ndjson:500", "2.ndjson:100", "1.ndjson:500"]
    texts = {"logs": caplog.text, "output": "".join(capfd.readouterr()), "tasks": repr(tasks)}
    texts |= {str(path): path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()}
    texts["command lines"] = "\n".join(lines.seen)
    for expected in ("SparkListenerEnvironmentUpdate", "SparkSubmit", "plan.json", "s3://lake/in"):
        assert any(expected in text for text in texts.values()), expected
    assert [name for name, text in texts.items() if SECRET in text] == []
