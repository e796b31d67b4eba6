"""Locations of files: how they are named, what they reach, and which file a reader gets."""

import hashlib
import os

import pytest
from snowpipe_local.catalog import Catalog
from snowpipe_local.errors import SqlError
from snowpipe_local.faults import Faults
from snowpipe_local.sql import front
from snowpipe_local.sql.stage_references import resolve_file_format, resolve_location
from snowpipe_local.stages.definition import StageDefinition


@pytest.fixture
def local(local):
    local.sql('CREATE TABLE "My T" (a VARCHAR)')
    local.sql('CREATE STAGE "My Stage"')
    return local


def listed(local, text: str) -> list[str]:
    return [file.path for file in resolve_location(local.session, text)[0].list()]


def test_references_of_every_form_are_resolved(local):
    for text, name, prefix, rest in [
        ("@s", "@LOCAL.PUBLIC.S", "", ""),
        ("@s/a/b.csv PATTERN = 'x'", "@LOCAL.PUBLIC.S/a/b.csv", "a/b.csv", "PATTERN = 'x'"),
        ('@"My Stage"/p t', "@LOCAL.PUBLIC.My Stage/p", "p", "t"),
        ("'@s/with blank/x' (a)", "@LOCAL.PUBLIC.S/with blank/x", "with blank/x", "(a)"),
        ('\'@"LOCAL"."PUBLIC"."My Stage"\'', "@LOCAL.PUBLIC.My Stage", "", ""), ("@~/a", "@~/a", "a", ""),
        ("@~", "@~", "", ""), ('@%"My T"/a', "@LOCAL.PUBLIC.%My T/a", "a", ""),
        ('@public.%"My T"', "@LOCAL.PUBLIC.%My T", "", ""), ('@"%My T"', "@LOCAL.PUBLIC.%My T", "", ""),
        ('@"LOCAL"."PUBLIC"."%My T"/a b', "@LOCAL.PUBLIC.%My T/a", "a", "b"),
        ('@public."%My T"/', "@LOCAL.PUBLIC.%My T/", "", ""), ("@local..s", "@LOCAL.PUBLIC.S", "", ""),
        ('\'@local.."%My T"\'', "@LOCAL.PUBLIC.%My T", "", ""),
    ]:  # fmt: skip
        location, left = resolve_location(local.session, text)
        assert (location.name, location.prefix, left) == (name, prefix, rest)


def test_what_does_not_exist_or_leaves_the_stage_is_refused(local):
    for text in [
        "@none", "@%none", "@none.public.s", "s", "@", "@s/../x", "'@s/a/../../x'", "'@s/a\\0b'", "'ftp://x'",
    ]:  # fmt: skip
        with pytest.raises(SqlError):
            resolve_location(local.session, text)
    for url in ("/other", "/outside/../other", "/data", "/outside/%2e%2e/other"):
        with pytest.raises(SqlError, match="--allow-folder"):
            resolve_location(local.session, f"'file://{local.folder}{url}'")
    local.session.moves_files = True
    for text in ("LIST", "LIST @", "LIST @ s", "PUT", "PUT @s", "GET @s", "RM 's3://", "LIST @s.'"):
        assert local.refused(text).code == "001003", text
    for path in ("a//b", "a//", f"a/{'x' * 300}"):
        error = local.refused(f"PUT file:///x @s/{path}")
        assert (error.code, "path" in error.message) == ("001003", True)
    # A statement that is not Unicode is the client's error.
    assert "Unicode" in local.refused("LIST '@~/\ud800'").message
    assert front.execute(local.session, "LIST '@~/\\ud800'").rows == []


def test_a_path_is_a_prefix_and_a_pattern_matches_the_whole_path(local):
    for path in ("a/1.csv", "ab.csv", "b/a.csv", "a/1.json"):
        local.put(path, b"x")
    assert listed(local, "@s") == ["a/1.csv", "a/1.json", "ab.csv", "b/a.csv"]
    assert listed(local, "@s/a") == ["a/1.csv", "a/1.json", "ab.csv"]
    assert listed(local, "@s/a/") == ["a/1.csv", "a/1.json"]
    location, _ = resolve_location(local.session, "@s/a/")
    assert [file.path for file in location.list(r".*[.]csv")] == ["a/1.csv"]
    assert [file.path for file in location.list(r"s/a/1[.]json|nothing")] == ["a/1.json"]
    assert location.list("csv") == []
    with pytest.raises(SqlError, match="regular"):
        location.list("(")
    location.remove(location.list())
    location.remove([])
    assert listed(local, "@s") == ["ab.csv", "b/a.csv"]


def test_a_file_has_names_for_list_and_metadata_and_stays_what_was_listed_while_it_is_read(local):
    stored = local.put("a/1.csv.gz", b"a/1.csv")
    location, _ = resolve_location(local.session, "@s/a/")
    (old,) = location.list()
    assert (old.size, old.etag) == (7, hashlib.md5(b"a/1.csv", usedforsecurity=False).hexdigest())
    assert (location.listed_name(old), location.metadata_name(old)) == ("s/a/1.csv.gz", "a/1.csv.gz")
    assert location.path_of("1.csv.gz") == "a/1.csv.gz"
    with location.local_copy(old) as path:
        other = stored.with_name("other")
        other.write_text("replaced")
        os.replace(other, stored)
        assert (path.read_text(), path.name.endswith(".csv.gz")) == ("a/1.csv", True)
    assert not path.exists()
    with pytest.raises(SqlError, match="replaced"), location.local_copy(old):
        pass
    location.remove([old])
    (new,) = location.list()
    location.remove([new])
    assert location.list() == []
    with pytest.raises(SqlError, match="removed"), location.local_copy(new):
        pass


def test_links_out_of_an_allowed_folder_do_not_show_and_one_file_can_be_named_by_its_url(local):
    outside = local.outside
    (local.folder / "secret").write_text("x")
    (outside / "in.csv").write_text("y")
    (outside / "other.csv").write_text("y")
    (outside / "link.csv").symlink_to(local.folder / "secret")
    (outside / "inner.csv").symlink_to(outside / "in.csv")
    (outside / "folder").symlink_to(local.folder, target_is_directory=True)
    location, _ = resolve_location(local.session, f"'file://{outside}/'")
    assert location.area.list("folder/") == []
    found = location.list()
    assert [file.path for file in found] == ["in.csv", "inner.csv", "other.csv"]
    one, _ = resolve_location(local.session, f"'file://{outside}/in.csv'")
    assert [one.listed_name(file) for file in one.list()] == [f"file://{outside}/in.csv"]
    os.replace(outside / "link.csv", outside / "in.csv")
    with pytest.raises(SqlError, match="outside"), location.local_copy(found[0]):
        pass


def test_a_named_stage_survives_a_restart_and_its_orphans_do_not(tmp_path):
    catalog = Catalog(tmp_path, Faults())
    stage = StageDefinition(
        "LOCAL", "PUBLIC", "S", 5, file_format={"TYPE": "CSV", "NULL_IF": ("a",)}, format_name=("F",),
        comment="c", credentials={"AWS_SECRET_KEY": "hidden"}, endpoint="127.0.0.1:9",
    )  # fmt: skip
    catalog.database("LOCAL").stages.put(stage, replace=False)
    for identity in (stage.identity, "orphan", "table-of-nothing"):
        file = catalog.storage.internal(identity).path("kept.csv")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    catalog.close()
    catalog = Catalog(tmp_path, Faults())
    assert catalog.database("LOCAL").stages.stages.find("PUBLIC", "S") == stage
    assert [file.path for file in catalog.storage.internal(stage.identity).list("")] == ["kept.csv"]
    assert catalog.storage.internal("orphan").list("") == []
    catalog.close()


def test_staged_files_follow_the_names_of_tables_and_go_with_them(local):
    local.sql("CREATE TABLE other (a INT)")
    first, second = local.put_table("My T", "a", b"x"), local.put_table("OTHER", "b", b"x")
    local.sql('ALTER TABLE "My T" SWAP WITH other')
    local.sql("ALTER TABLE other RENAME TO t2")
    local.sql("CREATE TABLE other (a INT)")
    assert [listed(local, f"@%{table}") for table in ("t2", '"My T"', "other")] == [["a"], ["b"], []]
    local.sql("DROP TABLE t2")
    assert (first.exists(), second.exists()) == (False, True)
    staged = local.put("a", b"x")
    local.sql("DROP SCHEMA public")
    assert (second.exists(), staged.exists()) == (False, False)
    assert list(local.database.stages.stages) == []


def test_a_format_name_is_completed_by_the_stage(local):
    with pytest.raises(SqlError, match=r"LOCAL\.PUBLIC\.NONE"):
        resolve_file_format(local.session, {"FORMAT_NAME": "none"})
    merged = resolve_file_format(local.session, {"SKIP_HEADER": 1}, {"TYPE": "CSV", "FIELD_DELIMITER": ";"})
    assert (merged["SKIP_HEADER"], merged["FIELD_DELIMITER"]) == (1, ";")
