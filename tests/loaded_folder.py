"""A folder of files, loaded into a table of a local service without Spark, and the record of its loads."""

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators import source_record
from airflow_provider_snowpipe.operators.audit import SnowpipeAuditOperator
from airflow_provider_snowpipe.operators.source_record import LoadedSource, SeenChannel, SourceRecord
from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.source import SourceSpec
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, Ndjson
from tests.local_connection import connect, context, make_table
from tests.local_service import LocalService
from tests.memory_source import InProcessSpark

__all__ = ["Loaded", "new", "variables"]


class Loaded:
    """A folder of files with the partitions ``a`` and ``b``, loaded into a table, and the record of it."""

    def __init__(self, service: LocalService, table: str, conn_id: str, folder: Path) -> None:
        self.service, self.table, self.conn_id, self.folder = service, table, conn_id, folder
        self.ids = iter(range(1_000))
        self.rules: dict[str, Any] = {}
        self.metadata: dict[str, str] | None = None
        self.form = Ndjson()
        self.other: SourceSpec | None = None
        """What is loaded instead of the folder."""

    def write(self, name: str, *more: str, rows: int = 3) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"ID": next(self.ids)}) for _ in range(rows)]
        with path.open("a") as out:
            out.writelines(f"{line}\n" for line in (*lines, *more))

    def run(self, prefix: str = "d", rebind: Any = None, after: dt.timedelta = dt.timedelta()) -> None:
        """Load what is new, and write the record, as the operator does.

        :param after: how much later than now it is
        """
        now = dt.datetime.now(dt.UTC) + after
        source, hook = self.source(), self.hook()
        name = "src" if self.other is None else source.default_name
        pipe, url = hook.pipe_name(), hook.account_url()
        record, sent = SourceRecord.read(pipe.address(url), source), False
        with self.service.client(self.table) as client:
            while not sent:
                plan = JobPlan(
                    "app", url, pipe, prefix, name, source, ca_bundle=str(self.service.ca_file),
                    credentials_variable="NONE", rebind=rebind, last_checkpoints=record.last_checkpoints(),
                    renew=tuple(record.quiet(now)), is_recorded=True,
                    source_logs=record.copied.get("source_logs", {}), **self.rules,
                )  # fmt: skip
                run = Run(plan, client, list_channels=hook.list_channels)
                run.prepare()
                sent = run.load(InProcessSpark())
                begun = [SeenChannel(*one) for one in run.report(0).begun.items()]
                record = record.write(begun, (), now, self.how(run, f"{prefix}_{name}_"), sends=True)
            run.verify()
            run.finish()
        seen = [
            SeenChannel(one.channel, one.to_token, one.rows_before, one.rejected_earlier)
            for one in run.channels
        ]
        record.write(seen, record.quiet(now), now, self.how(run, f"{prefix}_{name}_"))

    def how(self, run: Run, channels: str) -> LoadedSource:
        source, pipe = self.source(), self.hook().pipe_name()
        rules = self.rules.get("on_error", "abort"), self.rules.get("dead_letter_path")
        names = (channels, (pipe.database, pipe.schema, pipe.pipe), self.conn_id, "d", "load", *rules)
        return LoadedSource(source.as_json(), run.reading, source.split, *names)

    def source(self) -> SourceSpec:
        return self.other or FileSource(path=str(self.folder), format=self.form, metadata=self.metadata)

    def hook(self) -> SnowpipeHook:
        return SnowpipeHook(self.conn_id, table=self.table)

    def sql(self, statement: str) -> None:
        self.hook().run_sql(statement.format(T=self.table))

    def audit(self, depth: str = "counts", **options: Any) -> list[str]:
        given = {"depth": depth, "on_difference": "report", "snowflake_conn_id": self.conn_id, **options}
        operator = SnowpipeAuditOperator(task_id="audit", **{"table": self.table, **given})
        return [text for one in operator.execute(context())["pipes"] for text in one["differences"]]

    def differs(self, words: str, depth: str = "counts") -> bool:
        found = self.audit(depth)
        assert all(words in one for one in found), found
        return bool(found)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    kept: dict[str, str] = {}
    variable = SimpleNamespace(
        get=lambda key, default=None: kept.get(key, default),
        set=lambda key, value, description=None: kept.update({key: value}),
        keys=lambda prefix: [key for key in kept if key.startswith(prefix)],
    )
    monkeypatch.setattr(source_record, "Variable", variable)
    return kept


@pytest.fixture
def new(
    local_service: LocalService, set_connection: Any, variables: dict[str, str], tmp_path: Path, request: Any
) -> Loaded:
    """Files that are not loaded yet, and a table of the test's own."""
    table = make_table(local_service, f"FOLDER_{abs(hash(request.node.nodeid))}")
    loaded = Loaded(local_service, table, connect(local_service, set_connection), tmp_path / "src")
    for name in ("a/1.ndjson", "a/2.ndjson", "b/1.ndjson"):
        loaded.write(name)
    return loaded
