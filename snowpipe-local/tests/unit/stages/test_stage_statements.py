"""Statements about stages and file formats: what they make, show, change and refuse."""

import json
from typing import Any

import pytest
from tests.local_catalog import LocalCatalog


def described(local: LocalCatalog, what: str) -> dict[str, Any]:
    return {row["property"]: row["property_value"] for row in local.sql(f"DESC {what}")}


def test_a_stage_is_created_shown_described_changed_and_dropped(local):
    created = local.sql(
        "CREATE STAGE s1 FILE_FORMAT = (TYPE = JSON STRIP_OUTER_ARRAY = TRUE) COMMENT = 'it''s'"
    )
    assert created == [{"status": "Stage area S1 successfully created."}]
    assert "already exists" in local.refused("CREATE STAGE s1").message
    assert "already exists" in local.sql("CREATE STAGE IF NOT EXISTS s1")[0]["status"]
    (shown,) = local.sql("SHOW STAGES LIKE 's1'")
    assert (shown["name"], shown["type"], shown["comment"], shown["url"]) == ("S1", "INTERNAL", "it's", "")
    found = described(local, "STAGE s1")
    assert (found["TYPE"], found["STRIP_OUTER_ARRAY"]) == ("JSON", "true")
    local.sql("ALTER STAGE s1 SET FILE_FORMAT = (TYPE = CSV SKIP_HEADER = 1) COMMENT = 'c'")
    assert "cannot get a URL" in local.refused("ALTER STAGE s1 SET URL = 's3://b/'").message
    local.sql("ALTER STAGE s1 RENAME TO s2")
    found = described(local, "STAGE s2")
    assert (found["TYPE"], found["SKIP_HEADER"]) == ("CSV", "1")
    assert local.sql("DROP STAGE s2") == [{"status": "S2 successfully dropped."}]
    assert "does not exist" in local.refused("DROP STAGE s2").message
    assert "already dropped" in local.sql("DROP STAGE IF EXISTS s2")[0]["status"]


def test_a_file_format_is_created_shown_described_changed_and_dropped(local):
    local.sql(r"CREATE FILE FORMAT f1 TYPE = 'CSV' FIELD_DELIMITER = '\t' NULL_IF = ('', '\\N')")
    (shown,) = local.sql("SHOW FILE FORMATS LIKE 'f1'")
    assert (shown["name"], shown["type"]) == ("F1", "CSV")
    assert json.loads(shown["format_options"])["FIELD_DELIMITER"] == "\t"
    local.sql("ALTER FILE FORMAT f1 SET SKIP_HEADER = 2 COMMENT = 'c'")
    found = described(local, "FILE FORMAT f1")
    assert (found["FIELD_DELIMITER"], found["SKIP_HEADER"]) == (r"\t", "2")
    assert "TYPE" in local.refused("ALTER FILE FORMAT f1 SET TYPE = JSON").message
    local.sql("ALTER FILE FORMAT f1 RENAME TO f2")
    local.sql("CREATE STAGE sf FILE_FORMAT = (FORMAT_NAME = f2)")
    local.sql("DROP FILE FORMAT f2")
    assert "does not exist" in local.refused("DESCRIBE FILE FORMAT f2").message
    assert "already dropped" in local.sql("DROP FILE FORMAT IF EXISTS f2")[0]["status"]


def test_what_cannot_be_is_refused_with_its_reason(local):
    local.session.moves_files = True
    for statement, reason in [
        ("CREATE STAGE bad FILE_FORMAT = (TYPE = CSV COLOUR = 1)", "invalid parameter 'COLOUR'"),
        ("CREATE STAGE bad FILE_FORMAT = (FORMAT_NAME = no_such)", "NO_SUCH"),
        ("CREATE STAGE bad URL = 'azure://a/b'", "s3://"),
        ("CREATE STAGE bad URL = 'file:///etc'", "--allow-folder"),
        ("CREATE STAGE bad URL = 's3://b/' ENDPOINT = '127.0.0.1.example.com:80'", "127.0.0.1"),
        ("CREATE STAGE bad CREDENTIALS = (AWS_KEY_ID = 'a' AWS_SECRET_KEY = 'b')", "URL"),
        ("ALTER STAGE no_such SET COMMENT = 'x'", "does not exist"), ("LIST @%no_such", "does not exist"),
        ("PUT file:///tmp/x @~/../y", "invalid path"), ("PUT /tmp/x @~", "invalid local path"),
        ("PUT file:///tmp/x @~ PARALLEL = 0", "PARALLEL"),
        ("GET @~ '/tmp'", "invalid local path"), ("LIST @~ PATTERN = '('", "regular expression"),
    ]:  # fmt: skip
        assert reason in local.refused(statement).message, statement


def test_credentials_of_a_stage_are_never_shown(local, caplog: pytest.LogCaptureFixture):
    local.sql(
        "CREATE STAGE s3s URL = 's3://b/p/' ENDPOINT = '127.0.0.1:9' "
        "CREDENTIALS = (AWS_KEY_ID = 'AKIA1' AWS_SECRET_KEY = 'topsecret1' AWS_TOKEN = 'topsecret2')"
    )
    shown = str(local.sql("SHOW STAGES LIKE 's3s'") + local.sql("DESC STAGE s3s"))
    assert "****" in shown
    shown += local.refused("LIST @s3s").message + repr(local.database.stages.stages.find("PUBLIC", "S3S"))
    for secret in ("AKIA1", "topsecret"):
        assert secret not in shown + caplog.text


def test_names_can_be_bound_as_identifiers_and_comments_are_ignored(local):
    local.sql("CREATE /* Python */ TEMPORARY STAGE /* 'x' */ identifier(?) -- end", '"Bound"')
    assert [row["name"] for row in local.sql("SHOW STAGES LIKE 'bound'")] == ["Bound"]
    local.sql("DROP STAGE IF EXISTS identifier('\"Bound\"')")
    assert local.sql("SHOW STAGES LIKE 'bound'") == []


def test_a_temporary_stage_hides_a_permanent_one_and_ends_with_its_session(local):
    def folders() -> set[str]:
        return {path.name for path in (local.folder / "data" / "staged" / "files").iterdir()}

    local.sql("CREATE STAGE both")
    before, mine = folders(), local.new_session()
    local.sql("CREATE TEMPORARY STAGE both", session=mine)
    local.sql("COPY INTO @both FROM (SELECT 1)", session=mine)
    assert len(local.sql("LIST @both", session=mine)) == 1
    assert local.sql("LIST @both") == []
    assert len(folders() - before) == 1
    mine.close()
    assert folders() <= before
