"""A table, and a folder of NDJSON files that is loaded into it by the load operator in this process."""

import datetime as dt
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.submit.file_units import PartitionPosition
from airflow_provider_snowpipe.streaming.auth import KeyPair
from tests.checkpoints import shown
from tests.fake_account import CrashError, FakeAccount, Pipe
from tests.source_log import states, unit_token
from tests.unit.operators.account_in_task import install, task_context

A, B = "p_s_a", "p_s_b"
STAGE = "%T"
PIPE = "LOCAL.PUBLIC.P"
PIPE_COPY = 'COPY INTO "LOCAL"."PUBLIC"."T" FROM @"LOCAL"."PUBLIC".PS'
BY_NAME = "MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
Patch = pytest.MonkeyPatch


class Load:
    """A table, and a folder with the partitions ``a`` and ``b`` of NDJSON files."""

    def __init__(
        self, folder: Path, patch: Patch, key_pair: KeyPair | None = None, path: str = "copy"
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.account = FakeAccount()
        self.channels = install(self.account, patch, key_pair)
        self.began = dt.datetime.now(dt.UTC)
        self.numbers = itertools.count(1)
        self.written: list[str] = []
        self.path, self.metadata = path, dict[str, str]()
        self.account.pipes[PIPE] = Pipe(f"{PIPE_COPY} FILE_FORMAT = (TYPE = JSON) {BY_NAME}")

    def write(self, partition: str, name: str, rows: int = 2) -> list[str]:
        """Add rows to a file; what the table is to hold of them."""
        lines = [json.dumps({"ID": next(self.numbers)}) for _ in range(rows)]
        file = self.folder / partition / name
        file.parent.mkdir(exist_ok=True, parents=True)
        self.append(f"{partition}/{name}", "".join(f"{line}\n" for line in lines))
        self.written += lines
        return lines

    def append(self, file: str, text: str) -> None:
        with (self.folder / file).open("a") as out:
            out.write(text)

    @property
    def target(self) -> str:
        hook = self.operator().bulk_hook("T")
        return hook.pipe_name().address(hook.account_url())

    def token(self, partition: str, position: str, rows: int) -> str:
        return unit_token(FileSource(path=str(self.folder)), self.target, partition, position, rows)

    def stream(self, channel: str, position: str, *lines: str) -> None:
        counted = self.channels.inserted[channel] + len(lines)
        self.channels.stream(channel, self.token(channel[-1], position, counted), *lines)

    def stands(self, channel: str, position: str | None) -> None:
        counted = self.channels.inserted[channel]
        self.account.tokens[channel] = position and self.token(channel[-1], position, counted)

    @property
    def positions(self) -> dict[str, str | None]:
        return {name: shown(token) for name, token in self.account.tokens.items()}

    @property
    def states(self) -> dict[str, str]:
        """The loader of each file that the log has, and ``taken`` where it is not known to have loaded it."""
        return states(FileSource(path=str(self.folder)), self.target)

    def operator(self, **arguments: Any) -> SnowpipeLoadOperator:
        piped = {"file_pipe": "P", "poll_interval": 0.01, "load_timeout": 5.0} if self.path == "pipe" else {}
        return SnowpipeLoadOperator(
            task_id="load",
            snowflake_conn_id="account",
            source_name="s",
            **{
                "source": {"path": str(self.folder), "metadata": self.metadata},
                "path": self.path, "table": "T", "channel_prefix": "p",
                **piped, **arguments,
            },
        )  # fmt: skip

    def run(self, run: str = "r1", try_number: int = 1, **arguments: Any) -> dict[str, Any]:
        return self.operator(**arguments).execute(task_context(run, try_number, self.began))

    def crash(self, call: str | None, when: str, nth: int = 1, **arguments: Any) -> None:
        self.account.fault(call, when, CrashError(), nth)
        with pytest.raises(CrashError):
            self.run(**arguments)

    def position(self) -> PartitionPosition:
        return self.operator(source={"path": str(self.folder)}).units().positions()[0]

    def assert_every_row_is_there_once(self) -> None:
        assert sorted(self.account.rows) == sorted(self.written)


MakeLoad = Callable[[str, str], Load]


@pytest.fixture
def key_pair(pem: str) -> KeyPair:
    return KeyPair("ACC", "U", pem.encode())


@pytest.fixture
def any_load(tmp_path: Path, monkeypatch: Patch, key_pair: KeyPair) -> MakeLoad:
    return lambda name, path: Load(tmp_path / name, monkeypatch, key_pair if path == "pipe" else None, path)


@pytest.fixture
def load(any_load: MakeLoad) -> Load:
    return any_load("copied", "copy")


@pytest.fixture
def piped(any_load: MakeLoad) -> Load:
    return any_load("piped", "pipe")


def begun(load: Load) -> Load:
    """A partition that is streamed up to its first file, two files that are left, and a new partition."""
    load.stream(A, "1.ndjson:3", *load.write("a", "1.ndjson", 3))
    for partition, name in (("a", "2.ndjson"), ("a", "3.ndjson"), ("b", "1.ndjson")):
        load.write(partition, name)
    return load
