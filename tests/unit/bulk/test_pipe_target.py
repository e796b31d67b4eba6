"""From where a file pipe loads into which table, read from the statements that people write."""

from __future__ import annotations

import pytest

from airflow_provider_snowpipe.bulk.copy import CopyInto
from airflow_provider_snowpipe.bulk.file_pipe_admin import ListedPipe, PipeTarget
from airflow_provider_snowpipe.bulk.staged_files import StageReference
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.local_service import LocalService

PIPE = PipeName("DB", "S", "P")


@pytest.mark.parametrize(
    ("statement", "table", "stage"),
    [
        ("copy into t from @st", ("DB", "S", "T"), '@"DB"."S".st'),
        (
            "COPY INTO x.t\n  FROM @st/in/ny/ FILE_FORMAT = (TYPE = CSV)",
            ("DB", "X", "T"),
            '@"DB"."S".st/in/ny',
        ),
        ('COPY INTO "d"."s"."t" FROM @"d"."s"."st"', ("d", "s", "t"), '@"d"."s"."st"'),
        ("COPY INTO t (a, \"b\") FROM '@%t/it''s here'", ("DB", "S", "T"), '@"DB"."S".%t/it\'s here'),
        (
            "COPY INTO o.s.t FROM (SELECT $1:a::INT, 'from @x' FROM @o.s.st/p (FILE_FORMAT => 'f') r)",
            ("O", "S", "T"),
            "@o.s.st/p",
        ),
        (CopyInto(("DB", "S", "t"), '@"DB"."S".st/a b').statement(), ("DB", "S", "t"), '@"DB"."S".st/a b'),
    ],
    ids=["plain", "path", "quoted", "columns", "transformed", "ours"],
)
def test_table_and_location_are_read(statement: str, table: tuple[str, str, str], stage: str) -> None:
    target = PipeTarget.of(PIPE, statement)

    assert target.table == table
    assert str(target.stage) == stage


@pytest.mark.parametrize("statement", ["", "COPY INTO t", "SELECT 1", "COPY INTO t FROM (SELECT 1)"])
def test_an_unreadable_statement_is_refused_with_the_remedy(statement: str) -> None:
    with pytest.raises(ConfigurationError, match=r"pipe DB\.S\.P: .*give the role MONITOR"):
        PipeTarget.of(PIPE, statement)


@pytest.mark.parametrize(
    ("location", "given", "below"),
    [
        ("@st", "@st", ""),
        ("@st", "@st/in/ny", "in/ny/"),
        ("@st/in", "@DB.S.ST/in/ny", "ny/"),
        ("@st/in", '@"ST"/in', ""),
        ("@%t", "@%T/x", "x/"),
    ],
)
def test_a_path_below_the_location_is_a_prefix(location: str, given: str, below: str) -> None:
    target = PipeTarget.of(PIPE, f"COPY INTO t FROM {location}")

    assert target.below(StageReference.parse(given), PIPE) == below


@pytest.mark.parametrize("given", ["@st", "@st/inner", "@other/in", "@x.st/in", '@"st"/in', "@%st/in"])
def test_a_location_that_the_pipe_does_not_load_from_is_refused(given: str) -> None:
    target = PipeTarget.of(PIPE, "COPY INTO t FROM @st/in")

    with pytest.raises(ConfigurationError, match=r'loads from @"DB"\."S"\.st/in, and the files are at'):
        target.below(StageReference.parse(given), PIPE)


def test_the_pipes_that_show_pipes_lists_are_read(local_service: LocalService, conn_id: str) -> None:
    local_service.sql("CREATE TABLE t (a VARCHAR)")
    local_service.sql("CREATE STAGE s")
    local_service.sql("CREATE SCHEMA other")
    copy = CopyInto(("LOCAL", "PUBLIC", "T"), '@"LOCAL"."PUBLIC".S/a--b/').statement()
    local_service.sql(f"CREATE PIPE other.p AS {copy} PATTERN = '.*[.]csv'")
    shown = SnowpipeBulkHook(conn_id, table="T").run_sql('SHOW PIPES IN DATABASE "LOCAL"')
    found = [ListedPipe.read(row) for row in shown]

    (pipe,) = found
    assert pipe is not None
    assert pipe.name == PipeName("LOCAL", "OTHER", "P")
    assert pipe.target.table == ("LOCAL", "PUBLIC", "T")
    assert pipe.created is not None
    stage = StageReference.parse('@"LOCAL"."PUBLIC".S')
    assert pipe.takes("a--b/1.csv", stage)
    assert not pipe.takes("a/1.csv", stage)
    assert not pipe.takes("a--b/1.json", stage)


def test_a_pipe_for_streaming_has_no_files() -> None:
    assert ListedPipe.read({"kind": "STREAMING", "name": "T-STREAMING", "definition": "COPY INTO T"}) is None
