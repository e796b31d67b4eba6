"""A pipe in this process, and the operators of its channels."""

import functools
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_provider_snowpipe.hooks.snowpipe import SnowpipeHook
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.spark.driver.package_archive import write_package_archive
from airflow_provider_snowpipe.spark.submit import local_spark
from airflow_provider_snowpipe.streaming.progress import ListedChannel
from tests.fake_account import FakeAccount
from tests.fake_snowpipe import PAT, URL, snowpipe
from tests.stream_worker import FileState, TaskInstance
from tests.unit.operators.account_in_task import install
from tests.unit.operators.unit_load import any_load, key_pair, load, piped

__all__ = ["any_load", "key_pair", "load", "piped", "snowpipe"]


@pytest.fixture(autouse=True)
def spark_loads_all_rows(monkeypatch):
    """A script stands in for Spark, also on a local master; nobody answers SQL."""
    monkeypatch.setenv("AIRFLOW__SNOWPIPE__LOCAL_ROWS_WITHOUT_SPARK", "False")
    monkeypatch.setattr(SnowpipeHook, "columns_for_keys", lambda _: ())


@pytest.fixture
def account(monkeypatch, key_pair):
    """The account of every connection, which takes calls of file pipes as well."""
    made = FakeAccount()
    install(made, monkeypatch, key_pair)
    return made


asked_java_version = functools.cache(local_spark.java_version)


@pytest.fixture(scope="session")
def package_archive(tmp_path_factory):
    return write_package_archive(tmp_path_factory.mktemp("package"))


@pytest.fixture(autouse=True)
def submissions_are_quick(package_archive, monkeypatch):
    """Java tells its version once, the package is compressed once, and a driver's log is read closely."""
    monkeypatch.setattr(local_spark, "java_version", asked_java_version)
    monkeypatch.setattr(
        "airflow_provider_snowpipe.operators.spark_job.write_package_archive",
        lambda directory: Path(shutil.copyfile(package_archive, directory / package_archive.name)),
    )
    monkeypatch.setattr("airflow_provider_snowpipe.operators.client_job._FOLLOW_SECONDS", 0.01)


@pytest.fixture
def make(snowpipe, set_connection, monkeypatch):
    """Make an operator on the pipe, whose SQL side sets any token that it is asked to."""
    extra = {"account": "a", "auth": "programmatic_access_token", "database": "DB"}
    conn_id = set_connection("fake", conn_type="snowpipe", host=URL, password=PAT, schema="S", extra=extra)

    def set_token(channel, token):
        snowpipe.channels[channel].committed = token

    def listed(_):
        return [
            ListedChannel(
                name, "DB", "S", "T", "T-STREAMING", one.committed, one.session, one.next_append, None
            )
            for name, one in snowpipe.channels.items()
        ]

    monkeypatch.setattr(SnowpipeHook, "offset_tokens", lambda _: nullcontext(set_token))
    monkeypatch.setattr(SnowpipeHook, "list_channels", listed)

    def operator(kind, **options):
        return kind(**{"task_id": "t", "table": "T", "snowflake_conn_id": conn_id, **options})

    return operator


class StreamLab:
    """A load by the stream operator, whose ``spark-submit`` is a script."""

    def __init__(self, folder, make, **options):
        self.notes, self.program = folder / "notes", folder / "fake-spark-submit"
        self.notes.mkdir()
        self.make = make
        self.state: FileState | None = FileState(folder / "state.json")
        defaults = {"task_id": "load", "channel_prefix": "p", "spark_binary": str(self.program)}
        self.options = {**defaults, **options}

    def script(self, text):
        self.program.write_text(text.replace("NOTES", str(self.notes)))
        self.program.chmod(0o755)

    def operator(self, **options):
        return self.make(SnowpipeStreamOperator, **{**self.options, **options})

    def context(self):
        self.ti = TaskInstance()
        return {"ti": self.ti, "task_state_store": self.state}

    def execute(self, **options):
        return self.operator(**options).execute(self.context())

    def kept(self):
        return self.state.values()

    @property
    def starts(self):
        return len((self.notes / "runs").read_text()) if (self.notes / "runs").exists() else 0


@pytest.fixture
def temporary_files(tmp_path, monkeypatch):
    """A directory for temporary files where leftovers are seen."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def send(snowpipe, channel, *tokens):
    """Open a channel and append a row for each token; what appends one more in the same session."""
    client = snowpipe.client()
    continuation = client.open_channel(channel).continuation_token

    def append(token):
        nonlocal continuation
        body = {"content_encoding": None, "raw_length": 10, "continuation_token": continuation}
        continuation = client.append_rows(channel, b'{"ID": 1}\n', start_token=token, end_token=token, **body)

    for token in tokens:
        append(token)
    return append
