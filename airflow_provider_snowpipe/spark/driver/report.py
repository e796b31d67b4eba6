"""What one run of the job did, channel by channel, as a file that the submitting process reads."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from airflow_provider_snowpipe.streaming.arguments import SentRows, UnloadedRow, add_counts
from airflow_provider_snowpipe.streaming.checkpoint import is_begun, position_of
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.lag import FileBacklog, FileBehind

if TYPE_CHECKING:
    from pyspark import SparkContext

    from airflow_provider_snowpipe.streaming.progress import ChannelStatus


REPORT_VERSION = 10
START_FILE = "start.json"
"""Beside the report, there when the run has listed its partitions: what it found on each channel."""


class UnreadableReportError(ConfigurationError):
    """What a driver has left is not a report of this release."""


def versioned_object(
    text: str, what: str, key: str, version: int, error: type[ConfigurationError] = ConfigurationError
) -> dict[str, Any]:
    """Read the JSON object that submitting side and driver exchange, without the key of its version."""
    try:
        data: Any = json.loads(text)
    except ValueError as reason:
        raise error(f"{what} is not JSON ({reason})") from None
    if not isinstance(data, dict):
        raise error(f"{what} is a JSON {type(data).__name__}: it must be an object")
    found = data.pop(key, None)
    if found != version:
        raise error(
            f"{key} is {found!r} in {what}, and {version} is read here: install one version of "
            "airflow-provider-snowpipe where Airflow and where Spark run"
        )
    return data


@dataclass(frozen=True, slots=True)
class ChannelReport(SentRows):
    """What a run did on one channel; of tries that could not report any more only dead letters' files show.

    :param from_token: the committed offset token that the run found, None for NULL
    :param to_token: the committed offset token that the run left behind (read after the last task; the last
        one sent where ``wait_for_commit`` is off)
    :param target_token: the offset token that proves this run complete, None if the partition has no row
    :param rejected: rows that the service skipped during the run, part of ``rows``, and during earlier tries
        of it that could not report any more
    :param committed: True when the committed token was seen at or past the target
    :param latency_ms: the service's own average time from append to commit, milliseconds, when the run was
        settled; None where it reported none
    :param last_error: the last rejected row, in the service's words; None where it rejected none
    :param inserted_before: rows that the service had inserted when the run began
    :param errors_before: rows that it had skipped then
    :param rejected_before: rejected rows that were reported before
    :param unreported: rows that were rejected before the run began, and that nobody has reported
    :param unreported_run: the run that wrote the token which this run found, None for none
    :param rows_before: rows of the source up to ``from_token`` that an earlier channel inserted, whose
        position was taken over; negative for rows of this channel that a restart sends again
    :param rejected_earlier: those that the service skipped on that channel
    :param files_found: files that were not committed when the run began, None for a source of another kind
    :param bytes_found: their bytes
    :param oldest_found_ms: when the oldest of them was written last, milliseconds since 1970
    """

    channel: str
    partition: str
    from_token: str | None = None
    to_token: str | None = None
    target_token: str | None = None
    rejected: int = 0
    committed: bool = False
    latency_ms: int | None = None
    last_error: str | None = None
    inserted_before: int = 0
    errors_before: int = 0
    rejected_before: int = 0
    unreported: int = 0
    unreported_run: str | None = None
    rows_before: int = 0
    rejected_earlier: int = 0
    files_found: int | None = None
    bytes_found: int = 0
    oldest_found_ms: int | None = None

    @property
    def backlog(self) -> FileBacklog | None:
        """The files that were not committed when the run began."""
        if self.files_found is None:
            return None
        return FileBacklog(self.files_found, self.bytes_found, self.oldest_found_ms)

    @property
    def owes_nothing(self) -> bool:
        """True when all that the run owes is committed, so that its counts are final."""
        return self.committed or self.target_token is None

    @property
    def rejected_words(self) -> str:
        """The rejected rows for people: before the commit nobody knows how many."""
        return f"{self.rejected:,}" if self.owes_nothing or self.rejected else "not awaited"


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did.

    :param channels: one report for each channel, in the order of the partitions' names
    :param error: None for a successful run, else the text of the error that ended it
    :param reading: how the source's rows are numbered, in words
    :param columns: the table's columns that keys of the rows have matched
    :param unloaded: the first rows that were put aside or skipped
    """

    application: str
    channels: tuple[ChannelReport, ...]
    seconds: float
    error: str | None = None
    error_type: str | None = None
    reading: str = ""
    columns: tuple[str, ...] = ()
    unloaded: tuple[UnloadedRow, ...] = ()

    @property
    def begun(self) -> dict[str, str]:
        """What is to be recorded of channels without a token; the run has sent nothing if there are any."""
        return {one.channel: one.to_token for one in self.channels if one.to_token and is_begun(one.to_token)}

    @property
    def rows(self) -> int:
        """Rows over all channels."""
        return sum(channel.rows for channel in self.channels)

    @property
    def dead_lettered(self) -> int:
        """Rows put aside over all channels."""
        return sum(channel.dead_lettered for channel in self.channels)

    @property
    def undecoded(self) -> int:
        """Records skipped over all channels because they cannot be decoded."""
        return sum(channel.undecoded for channel in self.channels)

    @property
    def backlog(self) -> FileBacklog | None:
        """The files over all channels that were not committed when the run began."""
        return FileBacklog.total(channel.backlog for channel in self.channels)

    @property
    def unknown_columns(self) -> dict[str, int]:
        """Rows over all channels with a key that matches no column of the table, by key."""
        found: dict[str, int] = {}
        for channel in self.channels:
            found = add_counts(found, channel.unknown_columns)
        return found

    @property
    def bytes(self) -> int:
        """Bytes of NDJSON over all channels."""
        return sum(channel.bytes for channel in self.channels)

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps({"report_version": REPORT_VERSION, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a report."""
        data = versioned_object(
            text, "the run report", "report_version", REPORT_VERSION, UnreadableReportError
        )
        required = {one.name for one in fields(ChannelReport)}
        try:
            channels = tuple(
                ChannelReport(**{name: channel[name] for name in required}) for channel in data["channels"]
            )
            return cls(
                application=data["application"],
                channels=channels,
                seconds=float(data["seconds"]),
                error=data["error"],
                error_type=data["error_type"],
                reading=str(data["reading"]),
                columns=tuple(map(str, data.get("columns", ()))),
                unloaded=tuple(UnloadedRow(**one) for one in data.get("unloaded", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableReportError(f"the run report is incomplete ({error!r})") from None


def _write_whole(text: str, target: Path) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# -- What a run found on its channels before it sent a row -----------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelStart:
    """What a run found on one channel.

    :param inserted_before: rows that the service had inserted
    :param errors_before: rows that it had skipped
    :param rows_behind: rows of the source that were not committed, or offsets that may be rows; None where
        the source does not know
    :param began_ms: when the run began to send, milliseconds since 1970 by the driver's clock
    :param files_behind: units of the source log that were not committed; None for a source of another kind
    """

    inserted_before: int
    errors_before: int
    began_ms: int
    rows_behind: int | None = None
    files_behind: tuple[FileBehind, ...] | None = None

    def backlog(self, committed: str | None) -> FileBacklog | None:
        """The files that are not committed, at most: the unit of a position counts."""
        if self.files_behind is None:
            return None
        unit = 0 if committed is None else getattr(position_of(committed), "unit", 0)
        return FileBacklog.of(self.files_behind, unit)

    def status(self, now: ChannelStatus) -> ChannelStatus:
        """The status of a channel with the counters of then."""
        return replace(now, rows_inserted=self.inserted_before, rows_error_count=self.errors_before)


def fewer_files(files: Sequence[FileBehind], most: int) -> tuple[FileBehind, ...]:
    """Combine files that follow each other, where there are too many.

    What is not committed of them is too much then, by at most the bytes of one of these.
    """
    step = -(-len(files) // most) or 1
    parts = [files[start : start + step] for start in range(0, len(files), step)]
    sums = ((part[-1].unit, FileBacklog.of(part)) for part in parts)
    return tuple(FileBehind(unit, one.bytes, one.oldest_ms or 0, one.files) for unit, one in sums)


def start_text(channels: Mapping[str, ChannelStart]) -> str:
    """The text of :data:`START_FILE`."""
    return json.dumps({name: asdict(one) for name, one in channels.items()})


def read_start(text: str) -> dict[str, ChannelStart]:
    """Read :data:`START_FILE`."""
    data: Any = None
    try:
        data = json.loads(text)
        return {name: _channel_start(one) for name, one in data.items()}
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ConfigurationError(
            f"{START_FILE} is {data!r}: it has to hold what a run found on each of its channels"
        ) from None


def _channel_start(values: Any) -> ChannelStart:
    files = values.pop("files_behind", None)
    if files is not None:
        files = tuple(FileBehind(*one) for one in files)
    counts = [one for name, one in values.items() if (name, one) != ("rows_behind", None)]
    if any(type(one) is not int for one in (*counts, *(one for pair in files or () for one in pair))):
        raise TypeError
    return ChannelStart(**values, files_behind=files)


# -- Where people find a running application's page, and where they find it afterwards -------------------

UI_FILE = "ui.json"
"""Beside the report: the addresses, there when Spark has started."""
_HISTORY_SETTINGS = ("spark.yarn.historyServer.address", "spark.master.ui.historyServerUrl")


@dataclass(frozen=True, slots=True)
class UiAddresses:
    """The pages of one Spark application.

    :param running: its own, None where ``spark.ui.enabled`` is false
    :param ended: the history server's, None where none is configured or no event log is written
    """

    running: str | None
    ended: str | None

    @classmethod
    def of_context(cls, spark: SparkContext) -> Self:
        """Ask a running application."""
        settings = spark.getConf()
        return cls.of_settings(spark.uiWebUrl, spark.applicationId, lambda name: settings.get(name))

    @classmethod
    def of_settings(cls, own: str | None, application_id: str, setting: Callable[[str], str | None]) -> Self:
        """Find the addresses in Spark's settings ("Spark Configuration", "Spark Standalone Mode")."""
        running = own
        proxy = setting("spark.ui.reverseProxyUrl")
        if own and proxy and _is_on(setting("spark.ui.reverseProxy")):
            running = f"{proxy.rstrip('/')}/proxy/{application_id}/"
        history = next((found for name in _HISTORY_SETTINGS if (found := setting(name))), None)
        if history is None or not _is_on(setting("spark.eventLog.enabled")):
            return cls(_shown(running), None)
        if "://" not in history:
            history = f"http://{history}"
        return cls(_shown(running), _shown(f"{history.rstrip('/')}/history/{application_id}/"))

    def to_json(self) -> str:
        """The addresses as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the driver's file; None while there is none."""
        if not path.is_file():
            return None
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return cls(running=values["running"], ended=values["ended"])


def _is_on(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"


def _shown(address: str | None) -> str | None:
    """Only what a browser opens; a template like ``${hadoopconf-…}`` is none."""
    return address if address and address.startswith(("http://", "https://")) and "$" not in address else None


# -- The folder in which a driver leaves its report: on its own machine, or where Hadoop reaches it -------


def is_url(path: str) -> bool:
    """True for what Hadoop reads and writes, ``hdfs://…`` or ``s3a://…``; False for a path."""
    return "://" in path


def report_folder(report_path: str) -> _LocalFolder | _HadoopFolder:
    """The folder of a report, whose files a reader sees as a whole or not at all."""
    if is_url(report_path):
        return _HadoopFolder(report_path.rpartition("/")[0])
    return _LocalFolder(Path(report_path).parent)


class _LocalFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> None:
        _write_whole(text, self._folder / name)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def check(self) -> None:
        if not self._folder.is_dir() or not os.access(self._folder, os.W_OK):
            raise ConfigurationError(
                f"the plan's report goes into {str(self._folder)!r}: this directory does not exist where the "
                "driver runs, or cannot be written there"
            )


class _HadoopFolder:
    """A folder at a URL, made when something is written; the JVM beside the driver reads and writes it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> None:
        partial, target = (self._path(one) for one in (f".{name}.{uuid4().hex}", name))
        files = self._files(target)
        stream = files.create(partial, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        # No file system renames onto a file that exists; of two attempts of a driver the last report counts.
        files.delete(target, False)
        if not files.rename(partial, target):
            files.delete(partial, False)
            raise ConfigurationError(f"{self._folder}/{name} cannot be written: a rename there was refused")

    def remove(self, name: str) -> None:
        path = self._path(name)
        self._files(path).delete(path, False)

    def check(self) -> None:
        from py4j.protocol import Py4JJavaError

        probe = f".probe.{uuid4().hex}"
        try:
            self.write(probe, "")
            self.remove(probe)
        except Py4JJavaError as error:
            raise self._refusal(error) from None

    def _path(self, name: str) -> Any:
        return _jvm().org.apache.hadoop.fs.Path(f"{self._folder}/{name}")

    def _files(self, path: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        jvm = _jvm()
        settings = jvm.org.apache.hadoop.conf.Configuration(
            jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf()
        )
        # Spark's own were made before jars of the application had a loader (observed with Spark 4.2 on YARN).
        settings.setClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        try:
            return path.getFileSystem(settings)
        except Py4JJavaError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Any) -> ConfigurationError:
        reason = cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        # Clients of object stores wrap the reason, such as a refused sign-in, into "Error getting …".
        shown = dict.fromkeys(str(one)[:300] for one in (reason, cause))
        return ConfigurationError(
            f"the plan's report goes to {self._folder}, which the driver cannot write "
            f"({'; '.join(shown)}): name a work_path that the cluster reaches, with what "
            "its Hadoop needs for this kind of address"
        )


def _jvm() -> Any:
    """The JVM of the driver, which is there before Spark starts and after it has stopped."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    return SparkContext._jvm
