from __future__ import annotations

import hashlib
import os

import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.stage_references import resolve_file_format, resolve_location
from snowpipe_local.stages.definition import StageDefinition
from snowpipe_local.stages.storage import Outside, Storage, user_identity
from snowpipe_local.tables import TEXT, Column, Table


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.fixture
def catalog(tmp_path, outside):
    folder = tmp_path / "data" / "databases"
    folder.mkdir(parents=True)
    storage = Storage(tmp_path / "data" / "staged", tmp_path / "data", Outside((outside,)))
    catalog = Catalog(folder, Faults(), storage=storage)
    yield catalog
    catalog.close()


@pytest.fixture
def session(catalog):
    database = catalog.database("LOCAL")
    table = Table("LOCAL", "PUBLIC", "My T", (Column("A", TEXT),), 0)
    database.tables.create(table, [f"CREATE TABLE {table.path} (A VARCHAR)"], replace=False)
    for name in ("S", "My Stage"):
        database.stages.put(StageDefinition("LOCAL", "PUBLIC", name, 0), replace=False)
    return Session(catalog, "DEMO", "LOCAL", "PUBLIC")


def _fill(session: Session, identity: str, *paths: str) -> None:
    for path in paths:
        file = session.catalog.storage.internal(identity).path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)


def _stage(session: Session, name: str) -> StageDefinition:
    stage = session.catalog.database("LOCAL").stages.stages.find("PUBLIC", name)
    assert stage is not None
    return stage


def _folder(session: Session, table: str) -> str:
    known = session.catalog.database("LOCAL").tables.find("PUBLIC", table)
    assert known is not None
    return known.folder


def test_references_of_every_form_are_resolved(session):
    for text, name, prefix, rest in [
        ("@s", "@LOCAL.PUBLIC.S", "", ""),
        ("@s/a/b.csv PATTERN = 'x'", "@LOCAL.PUBLIC.S/a/b.csv", "a/b.csv", "PATTERN = 'x'"),
        ("@local.public.s/a)", "@LOCAL.PUBLIC.S/a", "a", ")"),
        ('@"My Stage"/p t', "@LOCAL.PUBLIC.My Stage/p", "p", "t"),
        ("'@s/with blank/x' (a)", "@LOCAL.PUBLIC.S/with blank/x", "with blank/x", "(a)"),
        ('\'@"LOCAL"."PUBLIC"."My Stage"\'', "@LOCAL.PUBLIC.My Stage", "", ""), ("@~/a", "@~/a", "a", ""),
        ("@~", "@~", "", ""), ('@%"My T"/a', "@LOCAL.PUBLIC.%My T/a", "a", ""),
        ('@public.%"My T"', "@LOCAL.PUBLIC.%My T", "", ""), ('@"%My T"', "@LOCAL.PUBLIC.%My T", "", ""),
        ('@"LOCAL"."PUBLIC"."%My T"/a b', "@LOCAL.PUBLIC.%My T/a", "a", "b"),
        ('@public."%My T"/', "@LOCAL.PUBLIC.%My T/", "", ""), ("@local..s", "@LOCAL.PUBLIC.S", "", ""),
        ('\'@local.."%My T"\'', "@LOCAL.PUBLIC.%My T", "", ""),
    ]:  # fmt: skip
        location, left = resolve_location(session, text)
        assert (location.name, location.prefix, left) == (name, prefix, rest)


def test_what_does_not_exist_or_leaves_the_stage_is_refused(session):
    for text in [
        "@none", "@%none", "@none.public.s", "s", "@", "@s/../x", "'@s/a/../../x'", "'@s/a\\0b'", "'ftp://x'",
    ]:  # fmt: skip
        with pytest.raises(SqlError):
            resolve_location(session, text)


def test_a_path_is_a_prefix_and_not_only_a_folder(session):
    _fill(session, _stage(session, "S").identity, "a/1.csv", "ab.csv", "b/a.csv")
    listed = {
        path: [f.path for f in resolve_location(session, path)[0].list()] for path in ("@s", "@s/a", "@s/a/")
    }
    assert listed == {
        "@s": ["a/1.csv", "ab.csv", "b/a.csv"], "@s/a": ["a/1.csv", "ab.csv"], "@s/a/": ["a/1.csv"],
    }  # fmt: skip


def test_files_have_size_digest_and_names_for_list_and_metadata(session):
    _fill(session, _stage(session, "S").identity, "a/1.csv")
    location, _ = resolve_location(session, "@s/a/")
    (file,) = location.list()
    assert (file.size, file.etag) == (7, hashlib.md5(b"a/1.csv", usedforsecurity=False).hexdigest())
    assert location.listed_name(file) == "s/a/1.csv"
    assert location.metadata_name(file) == "a/1.csv"
    with location.local_copy(file) as path:
        assert path.read_text() == "a/1.csv"
    assert location.path_of("1.csv") == "a/1.csv"


def test_a_pattern_must_match_the_whole_path(session):
    _fill(session, _stage(session, "S").identity, "a/1.csv", "a/1.json")
    location, _ = resolve_location(session, "@s")
    assert [f.path for f in location.list(r".*[.]csv")] == ["a/1.csv"]
    assert [f.path for f in location.list(r"s/a/1[.]json|nothing")] == ["a/1.json"]
    assert location.list("csv") == []
    with pytest.raises(SqlError, match="regular"):
        location.list("(")


def test_removing_files_leaves_the_others(session):
    _fill(session, user_identity("DEMO"), "a/b/1", "a/2")
    location, _ = resolve_location(session, "@~/a/b")
    location.remove(location.list())
    location.remove([])
    assert [f.path for f in resolve_location(session, "@~")[0].list()] == ["a/2"]


def test_a_folder_that_was_not_allowed_cannot_be_reached(session, tmp_path):
    (tmp_path / "other").mkdir()
    for url in ("/other", "/outside/../other", "/data", "/outside/%2e%2e/other"):
        with pytest.raises(SqlError, match="--allow-folder"):
            resolve_location(session, f"'file://{tmp_path}{url}'")


def test_links_out_of_an_allowed_folder_do_not_show(session, outside, tmp_path):
    (tmp_path / "secret").write_text("x")
    (outside / "in.csv").write_text("y")
    (outside / "link.csv").symlink_to(tmp_path / "secret")
    (outside / "inner.csv").symlink_to(outside / "in.csv")
    (outside / "folder").symlink_to(tmp_path)
    assert resolve_location(session, f"'file://{outside}/'")[0].area.list("folder/") == []
    location, _ = resolve_location(session, f"'file://{outside}/'")
    listed = location.list()
    assert [f.path for f in listed] == ["in.csv", "inner.csv"]
    os.replace(outside / "link.csv", outside / "in.csv")
    with pytest.raises(SqlError, match="outside"), location.local_copy(listed[0]):
        pass


def test_one_file_can_be_named_by_its_url(session, outside):
    (outside / "a.csv").write_text("1")
    (outside / "b.csv").write_text("1")
    location, _ = resolve_location(session, f"'file://{outside}/a.csv'")
    assert [location.listed_name(f) for f in location.list()] == [f"file://{outside}/a.csv"]


def test_a_named_stage_survives_a_restart_and_its_orphans_do_not(tmp_path):
    folder = tmp_path / "databases"
    folder.mkdir()
    catalog = Catalog(folder, Faults())
    stage = StageDefinition(
        "LOCAL", "PUBLIC", "S", 5, file_format={"TYPE": "CSV", "NULL_IF": ("a",)}, format_name=("F",),
        comment="c",
    )  # fmt: skip
    catalog.database("LOCAL").stages.put(stage, replace=False)
    session = Session(catalog, "DEMO", "LOCAL", "PUBLIC")
    _fill(session, stage.identity, "kept.csv")
    _fill(session, "orphan", "lost.csv")
    _fill(session, "table-of-nothing", "lost.csv")
    catalog.close()
    catalog = Catalog(folder, Faults())
    assert catalog.database("LOCAL").stages.stages.find("PUBLIC", "S") == stage
    assert [f.path for f in catalog.storage.internal(stage.identity).list("")] == ["kept.csv"]
    assert catalog.storage.internal("orphan").list("") == []
    catalog.close()


def test_dropping_a_table_or_schema_deletes_its_staged_files(session):
    database = session.catalog.database("LOCAL")
    identity = _folder(session, "My T")
    _fill(session, identity, "a")
    _fill(session, _stage(session, "S").identity, "a")
    folder = session.catalog.storage.internal(_stage(session, "S").identity).root
    database.tables.drop("PUBLIC", "My T")
    assert not session.catalog.storage.internal(identity).root.exists()
    database.drop_schema("PUBLIC")
    assert not folder.exists()
    assert list(database.stages.stages) == []


def test_credentials_do_not_show_in_a_stage():
    stage = StageDefinition("D", "S", "N", 0, url="s3://b/", credentials={"AWS_SECRET_KEY": "hidden"})
    assert "hidden" not in repr(stage)


def test_a_format_name_is_completed_by_the_stage(session):
    with pytest.raises(SqlError, match=r"LOCAL\.PUBLIC\.NONE"):
        resolve_file_format(session, {"FORMAT_NAME": "none"})
    merged = resolve_file_format(session, {"SKIP_HEADER": 1}, {"TYPE": "CSV", "FIELD_DELIMITER": ";"})
    assert (merged["SKIP_HEADER"], merged["FIELD_DELIMITER"]) == (1, ";")


def test_a_statement_that_is_not_unicode_is_the_clients_error(session):
    with pytest.raises(SqlError, match="Unicode"):
        front.execute(session, "LIST '@~/\ud800'")
    assert front.execute(session, "LIST '@~/\\ud800'").rows == []


def test_a_broken_file_statement_is_a_syntax_error(session):
    for text in ["LIST", "LIST @", "LIST @ s", "PUT", "PUT @s", "GET @s", "RM 's3://", "LIST @s.'"]:
        session.moves_files = True
        with pytest.raises(SqlError) as error:
            front.execute(session, text)
        assert error.value.code == "001003"


def test_a_path_that_no_file_can_have_is_refused_by_put_and_not_by_the_upload(session):
    for path in ["a//b", "a//", f"a/{'x' * 300}"]:
        session.moves_files = True
        with pytest.raises(SqlError, match="path") as error:
            front.execute(session, f"PUT file:///x @s/{path}")
        assert error.value.code == "001003"


def test_files_follow_the_names_of_tables(session):
    storage = session.catalog.storage
    front.execute(session, "CREATE TABLE other (a INT)")
    _fill(session, _folder(session, "My T"), "a")
    _fill(session, _folder(session, "OTHER"), "b")
    front.execute(session, 'ALTER TABLE "My T" SWAP WITH other')
    front.execute(session, "ALTER TABLE other RENAME TO t2")
    front.execute(session, "CREATE TABLE other (a INT)")
    for table, files in (("T2", ["a"]), ("My T", ["b"]), ("OTHER", [])):
        assert [f.path for f in storage.internal(_folder(session, table)).list("")] == files


def test_a_file_that_is_replaced_while_it_is_read_stays_what_was_listed(session):
    identity = _stage(session, "S").identity
    _fill(session, identity, "a.csv.gz")
    location, _ = resolve_location(session, "@s")
    (old,) = location.list()
    stored = session.catalog.storage.internal(identity).path("a.csv.gz")
    with location.local_copy(old) as path:
        other = stored.with_name("other")
        other.write_text("replaced")
        os.replace(other, stored)
        assert path.read_text() == "a.csv.gz"
        assert path.name.endswith(".csv.gz")
    assert not path.exists()
    with pytest.raises(SqlError, match="replaced"), location.local_copy(old):
        pass
    location.remove([old])
    (new,) = location.list()
    location.remove([new])
    assert location.list() == []
    with pytest.raises(SqlError, match="removed"), location.local_copy(new):
        pass
