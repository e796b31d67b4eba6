"""File pipes: their SQL, what is refused before it is sent, their state, and what they load into what."""

import datetime as dt
import json

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyInto, CopyOptions
from airflow_provider_snowpipe.bulk.file_pipe_admin import (
    PIPE_STATUS,
    FilePipeAdmin,
    ListedPipe,
    PipeChange,
    PipeDefinition,
    PipeStatus,
    PipeTarget,
)
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SqlError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.refusals import refused

PIPE = PipeName("DB", "S", 'a "pipe"')
QUOTED = '"DB"."S"."a ""pipe"""'
DAY = dt.timedelta(days=1)


def copy(location="@S/in", **options):
    return CopyInto(("DB", "S", "T"), location, CopyOptions(**options))


class TestDefinition:
    def test_is_its_options_and_its_copy(self):
        names = {"integration": "it's", "aws_sns_topic": "arn:topic", "error_integration": "ERRORS"}
        definition = PipeDefinition(copy(on_error="SKIP_FILE"), auto_ingest=True, comment="c", **names)

        assert definition.create(PIPE) == (
            f"CREATE PIPE {QUOTED} AUTO_INGEST = TRUE ERROR_INTEGRATION = ERRORS AWS_SNS_TOPIC = 'arn:topic' "
            "INTEGRATION = 'it''s' COMMENT = 'c' AS COPY INTO \"DB\".\"S\".\"T\" FROM '@S/in' "
            "ON_ERROR = SKIP_FILE"
        )
        assert definition.create(PIPE, replace=True).startswith("CREATE OR REPLACE PIPE ")

    def test_that_no_pipe_can_have_is_refused_by_name(self):
        options = {"on_error": "ABORT_STATEMENT", "size_limit": 1, "purge": True, "force": True}
        for option, value in options.items():
            with pytest.raises(ConfigurationError, match=f"options has {option}="):
                PipeDefinition(copy(**{option: value}))
        refused(ConfigurationError, PipeDefinition, [copy("@~/in")], "'@~'")
        with pytest.raises(ConfigurationError, match="auto_ingest"):
            PipeDefinition(copy(), integration="EVENTS")


class TestChanges:
    def admin(self, state="RUNNING"):
        def run(statement, values):
            if statement == PIPE_STATUS:
                return [{"status": json.dumps({"executionState": state})}]
            assert statement.startswith("DESCRIBE PIPE")
            return [{"definition": "COPY INTO T FROM @S", "notification_channel": None}]

        return FilePipeAdmin(run, PIPE, is_rehearsal=True)

    def test_name_the_pipe_and_are_one_statement_each(self):
        paused = f"ALTER PIPE {QUOTED} SET PIPE_EXECUTION_PAUSED ="
        assert self.admin().pause() == PipeChange(True, (f"{paused} TRUE",))
        assert self.admin("PAUSED").resume() == PipeChange(True, (f"{paused} FALSE",))
        assert self.admin().drop() == PipeChange(True, (f"DROP PIPE IF EXISTS {QUOTED}",))
        assert self.admin().alter(comment="", error_integration="my errors").statements == (
            f"ALTER PIPE {QUOTED} UNSET COMMENT",
            f'ALTER PIPE {QUOTED} SET ERROR_INTEGRATION = "my errors"',
        )

    def test_a_refresh_is_narrowed_by_prefix_and_timestamp_and_reaches_back_seven_days(self):
        def refreshed(since, prefix=None):
            change = self.admin().refresh(prefix=prefix, modified_after=since, on_nothing="fail")
            (statement,) = change.statements
            return statement

        now = dt.datetime.now(dt.UTC)
        since = (now - DAY).replace(microsecond=7_000)
        assert refreshed(since, "it's/") == (
            f"ALTER PIPE {QUOTED} REFRESH PREFIX = 'it''s/' "
            f"MODIFIED_AFTER = '{since:%Y-%m-%dT%H:%M:%S}.007+00:00'"
        )
        assert "MODIFIED_AFTER" in refreshed(now - 6.99 * DAY)
        refused(ConfigurationError, refreshed, [now - 7.01 * DAY], "7 days ago", "COPY INTO")


class TestStatus:
    def status(self, **fields):
        return PipeStatus.read(json.dumps({"executionState": "RUNNING", "pendingFileCount": 0, **fields}))

    def test_of_a_pipe_that_has_work_to_do_reports_what_waits(self):
        found = self.status(
            pendingFileCount=3, oldestPendingFilePath="in/a.csv", oldestFileTimestamp="2026-03-15T11:00:00Z"
        )

        assert (found.is_running, found.pending_files, found.oldest_pending_path) == (True, 3, "in/a.csv")
        assert str(found) == "RUNNING, 3 files wait, the oldest since 2026-03-15T11:00:00+00:00"
        last = json.loads(json.dumps(self.status(lastIngestedTimestamp="2026-03-15T10:00:00Z").result()))
        assert last["last_ingested_at"] == "2026-03-15T10:00:00+00:00"
        assert self.status(lastIngestedTimestamp="yesterday").last_ingested_at is None

    def test_is_running_paused_or_neither_and_shows_an_error_or_a_fault_in_one_line(self):
        states = {"RUNNING": (1, 0), "PAUSED": (0, 1), "READ_ONLY": (0, 0), "STOPPED_MISSING_TABLE": (0, 0)}
        for state, expected in states.items():
            found = self.status(executionState=state)
            assert (found.is_running, found.is_paused) == expected
        assert str(self.status(error="no\n table")).endswith("error: no table")
        assert self.status(fault="broken").error == "broken"

    def test_that_is_none_is_refused(self):
        refused(SqlError, PipeStatus.read, ["", "[]", "{}", None, "no JSON"], "no state of a pipe")


class TestTarget:
    PIPE = PipeName("DB", "S", "P")

    def test_table_and_location_are_read_from_the_statements_that_people_write(self):
        transformed = "(SELECT $1:a::INT, 'from @x' FROM @o.s.st/p (FILE_FORMAT => 'f') r)"
        for statement, table, stage in [
            ("copy into t from @st", ("DB", "S", "T"), '@"DB"."S".st'),
            ("COPY INTO x.t\n  FROM @st/in/ny/ FORCE = TRUE", ("DB", "X", "T"), '@"DB"."S".st/in/ny'),
            ('COPY INTO "d"."s"."t" FROM @"d"."s"."st"', ("d", "s", "t"), '@"d"."s"."st"'),
            ("COPY INTO t (a, \"b\") FROM '@%t/it''s here'", ("DB", "S", "T"), '@"DB"."S".%t/it\'s here'),
            (f"COPY INTO o.s.t FROM {transformed}", ("O", "S", "T"), "@o.s.st/p"),
        ]:
            target = PipeTarget.of(self.PIPE, statement)
            assert (target.table, str(target.stage)) == (table, stage)
        unreadable = ["", "COPY INTO t", "SELECT 1", "COPY INTO t FROM (SELECT 1)"]
        refused(
            ConfigurationError, lambda one: PipeTarget.of(self.PIPE, one), unreadable, "DB.S.P", "MONITOR"
        )

    def test_a_path_below_the_location_is_a_prefix_and_another_location_is_refused(self):
        def below(given, location="@st/in"):
            target = PipeTarget.of(self.PIPE, f"COPY INTO t FROM {location}")
            return target.below(StageReference.parse(given), self.PIPE)

        assert below("@st", "@st") == below('@"ST"/in') == ""
        assert (below("@st/in/ny", "@st"), below("@DB.S.ST/in/ny")) == ("in/ny/", "ny/")
        assert below("@%T/x", "@%t") == "x/"
        elsewhere = ["@st", "@st/inner", "@other/in", "@x.st/in", '@"st"/in', "@%st/in"]
        refused(ConfigurationError, below, elsewhere, 'loads from @"DB"."S".st/in, and the files are at')

    def test_the_pipes_that_show_pipes_lists_are_read(self, local_service, conn_id):
        for statement in ("TABLE t (a VARCHAR)", "STAGE s", "SCHEMA other"):
            local_service.sql(f"CREATE {statement}")
        copy = CopyInto(("LOCAL", "PUBLIC", "T"), '@"LOCAL"."PUBLIC".S/a--b/').statement()
        local_service.sql(f"CREATE PIPE other.p AS {copy} PATTERN = '.*[.]csv'")
        shown = SnowpipeBulkHook(conn_id, table="T").run_sql('SHOW PIPES IN DATABASE "LOCAL"')
        (pipe,) = [ListedPipe.read(row) for row in shown]

        assert pipe.name == PipeName("LOCAL", "OTHER", "P")
        assert pipe.target.table == ("LOCAL", "PUBLIC", "T")
        assert pipe.created is not None
        stage = StageReference.parse('@"LOCAL"."PUBLIC".S')
        assert [pipe.takes(path, stage) for path in ("a--b/1.csv", "a/1.csv", "a--b/1.json")] == [1, 0, 0]
        streaming = {"kind": "STREAMING", "name": "T-STREAMING", "definition": "COPY INTO T"}
        assert ListedPipe.read(streaming) is None
