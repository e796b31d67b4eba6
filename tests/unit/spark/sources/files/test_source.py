"""The source of files: its partitions, positions in them, and columns of where rows are from."""

import gzip
import json
import os

import pytest

from airflow_provider_snowpipe.spark.sources.files import spec as files_spec
from airflow_provider_snowpipe.spark.sources.files.formats import RowBlock
from airflow_provider_snowpipe.spark.sources.files.metadata import with_metadata
from airflow_provider_snowpipe.spark.sources.files.partition import (
    Resume,
    begun_unit,
    files_to_read,
    resume_after,
)
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource, SourceFile
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset
from tests.file_formats import numbered_rows, write_file
from tests.source_log import taken, unit_offset


def _make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")


def _groups(root, **options):
    return [one.group for one in taken(FileSource(str(root), **options), "account/pipe").values()]


BY_NAME = {"pattern": "*.log", "partitions": files_spec.ByName(r"(?P<partition>[a-z]+)_\d+\.log")}
BY_DAY = {"format": "parquet", "partitions": files_spec.ByKey("day")}
HIDDEN = ["a/1.ndjson", "a/_2.ndjson", "a/.1.ndjson", "a/.snapshot/1.ndjson", ".checkpoints/1.ndjson"]
OF_DAYS = [
    "region=eu/day=2024-01-01/a.parquet",
    "region=us/day=2024-01-01/a.parquet",
    "region=eu/day=2024-01-02/x/a.parquet",
    "region=eu/day=__HIVE_DEFAULT_PARTITION__/a.parquet",
    "_temporary/day=2024-01-03/a.parquet",
    "region=eu/day=2024-01-03/.a.parquet",
]


class TestPartitions:
    @pytest.mark.parametrize(
        ("names", "options", "found"),
        [
            (
                ["b/2.ndjson", "b/1.ndjson", "a/log_9.ndjson", "a/log_10.ndjson", "a/x.txt", "empty/x.txt"],
                *({}, {"a": ["log_9.ndjson", "log_10.ndjson"], "b": ["1.ndjson", "2.ndjson"]}),
            ),
            (
                ["ewr_01.log", "ewr_02.log", "jfk_01.log"],
                *(BY_NAME, {"ewr": ["ewr_01.log", "ewr_02.log"], "jfk": ["jfk_01.log"]}),
            ),
            (HIDDEN, {}, {"a": ["1.ndjson", "_2.ndjson"]}),
            (HIDDEN, {"pattern": "**/*.ndjson"}, {"a": ["1.ndjson", "_2.ndjson"]}),
            (HIDDEN, {"pattern": ".*.ndjson"}, {"a": [".1.ndjson"]}),
            (HIDDEN, {"partitions": "all", "pattern": "a/*"}, {"all": ["a/1.ndjson", "a/_2.ndjson"]}),
            (
                ["b.ndjson", "a.ndjson", "x/c.ndjson"],
                {"partitions": "all"},
                {"all": ["a.ndjson", "b.ndjson"]},
            ),
            (
                *(OF_DAYS, BY_DAY),
                {
                    "2024-01-01": OF_DAYS[:2],
                    "2024-01-02": OF_DAYS[2:3],
                    "__HIVE_DEFAULT_PARTITION__": OF_DAYS[3:4],
                },
            ),
        ],
    )
    def test_have_files_in_order_by_directory_name_or_key(self, tmp_path, names, options, found):
        _make(tmp_path, *names)
        groups = _groups(tmp_path, **options)
        assert {one.partition: [file.name for file in one.files] for one in groups} == found
        assert [one.partition for one in groups] == sorted(found)
        assert {file.values for one in groups for file in one.files} == {()}

    @pytest.mark.parametrize(
        ("names", "options", "message"),
        [
            (["ewr_01.log", "stray.log"], BY_NAME, r"'stray\.log'"),
            (["a/1.ndjson", "stray.ndjson"], {}, r"'stray\.ndjson' lie outside"),
            (["a/line\nbreak.ndjson"], {}, "cannot be part of an offset token"),
            ([os.fsdecode(b"\xff/1.ndjson")], {}, r"partition '\\udcff'.*not UTF-8 text"),
            (["day=1/a.parquet", "hour=1/a.parquet"], BY_DAY, "'hour=1/a.*in no directory day=<value>"),
        ],
    )
    def test_that_a_file_would_not_have_are_refused(self, tmp_path, names, options, message):
        _make(tmp_path, *names)
        with pytest.raises(ConfigurationError, match=message):
            _groups(tmp_path, **options)

    def test_are_none_without_a_matching_file_which_the_log_says(self, tmp_path, caplog):
        _make(tmp_path, "a/1.txt")
        assert _groups(tmp_path) == []
        assert f"{str(tmp_path)!r}" in caplog.text
        assert "'*.ndjson'" in caplog.text

    def test_have_decoded_values_for_columns(self, tmp_path):
        _make(tmp_path, "at=10%3A30/day=__HIVE_DEFAULT_PARTITION__/a.parquet")
        (group,) = _groups(tmp_path, format="parquet", partitions=files_spec.ByKey("day", as_columns=True))
        assert group.files[0].values == (("at", "10:30"), ("day", None))


def _partition(path, **options):
    return taken(FileSource(str(path), partitions="all", **options), "account/pipe")["all"]


class TestPositions:
    def test_of_an_unfinished_line_come_later_in_a_last_file_that_can_grow_alone(self, tmp_path):
        def ends(**options):
            partition = _partition(tmp_path, format={"type": "ndjson", "growing": True}, **options)
            return [str(part.end) for part in partition.read(partition.resume(None), BatchLimits())]

        for name in ("1.ndjson", "2.ndjson"):
            (tmp_path / name).write_bytes(b"{}\n{}")
        assert ends() == ["1/1.ndjson:1", "1/1.ndjson:2", "2/2.ndjson:1"]

        with (tmp_path / "2.ndjson").open("a") as file:
            file.write("\n{}\n{")
        assert ends()[-1] == "3/2.ndjson:3"
        (tmp_path / "3.ndjson.gz").write_bytes(gzip.compress(b"{}\n{}"))
        assert ends(pattern="*.gz")[-1].endswith("3.ndjson.gz:2")

    def test_of_the_last_rows_leave_nothing_to_load(self, tmp_path):
        def is_done(position, **options):
            partition = _partition(tmp_path, **options)
            return partition.is_done(unit_offset(partition, position))

        (tmp_path / "1.ndjson").write_bytes(b"{}\n{}\n \n\n")
        (tmp_path / "2.csv").write_bytes(b"A\n1\n\r\n")
        (tmp_path / "3.txt").write_bytes(b"a\nunfinished")

        assert is_done("1.ndjson:2")
        assert not is_done("1.ndjson:1")
        assert is_done("2.csv:1", format="csv")
        assert is_done("3.txt:1", format={"type": "text", "growing": True})

    def test_have_the_files_behind_whose_bytes_are_those_behind(self, tmp_path):
        for number in range(1, 6):
            (tmp_path / f"{number}.log").write_bytes(b"{}\n" * 10**number)
        partition = _partition(tmp_path, pattern="*.log")
        for start, units in ((None, 5), (UnitOffset(2, "2.log", 7), 4)):
            files = partition.files_behind(start)
            assert (len(files), sum(one.bytes for one in files)) == (units, partition.behind(start).bytes)


@pytest.fixture
def group(tmp_path):
    """Units 2 and 4 are files, 6 is what the first of them has got: two more lines."""
    for name in ("b.log", "a.log"):
        (tmp_path / name).write_bytes(b"a\nbb\nccc\nd\ne\n")
    files = [
        SourceFile("b.log", str(tmp_path / "b.log"), 9, unit=2),
        SourceFile("a.log", str(tmp_path / "a.log"), 9, unit=4),
        SourceFile("b.log", str(tmp_path / "b.log"), 13, unit=6, start=9, after_line=3),
    ]
    return files_spec.FileGroup("web", tuple(files), gone=frozenset(), committed={4: 3})


def test_reading_goes_on_behind_the_committed_line_of_a_unit(group):
    for token, expected in {
        None: Resume(0, 0, 0),
        "2/b.log:0": Resume(0, 0, 0),
        "2/b.log:1": Resume(0, 1, 2),
        "2/b.log:3": Resume(0, 3, 9, done=True),
        "3/x.log:9": Resume(1, 0, 0),
        "4/a.log:2": Resume(1, 2, 5),
        "4/a.log:3": Resume(1, 3, 9, done=True),
        "6/b.log:3": Resume(2, 3, 9),
        "6/b.log:4": Resume(2, 4, 11),
        "7/c.log:1": Resume(3, 0, 0),
    }.items():
        found = resume_after(group, files_spec.Ndjson(), token and UnitOffset.parse(token))
        assert found == expected, token
        left = group.files[found.file_index + found.done :]
        assert [file.unit for file, _ in files_to_read(group, found)] == [file.unit for file in left]
    assert [begun_unit(one) for one in (None, UnitOffset(3, "x", 0), UnitOffset(3, "x", 1))] == [0, 2, 3]
    with pytest.raises(SourcePositionError, match="line 4"):
        resume_after(group, files_spec.Ndjson(), UnitOffset(2, "b.log", 4))


class TestMetadata:
    def rows(self, path, **options):
        columns = {"SRC": "filename", "ROW": "file_row_number", "AT": "file_last_modified", "U": "unit"}
        (partition,) = taken(FileSource(str(path), metadata=columns, **options), "account/pipe").values()
        for part in partition.read(partition.resume(None), BatchLimits(rows=3)):
            yield from (json.loads(line) for line in bytes(part.body).splitlines() if line.strip())

    @pytest.mark.parametrize("ending", ["ndjson", "csv", "parquet", "orc", "avro"])
    def test_is_of_each_row_its_file_and_its_number(self, tmp_path, ending):
        write_file(tmp_path / "eu" / f"a.{ending}", numbered_rows("x", range(10)))
        found = list(self.rows(tmp_path, format=ending, pattern=f"*.{ending}"))
        expected = [(f"eu/a.{ending}", row, 1) for row in range(1, 11)]
        assert [(one["SRC"], one["ROW"], one["U"]) for one in found] == expected
        assert [int(one["ID"]) for one in found] == list(range(10))
        assert found[0]["AT"].startswith("20")

    @pytest.mark.parametrize(
        ("kind", "text", "rows"),
        [("text", "a\n\nb\n", [1, 3]), ("ndjson", '{"ID": 1}\n \n\t{"ID": 2}\n\n{ }\n[1]\n', [1, 3, 5])],
    )
    def test_counts_blank_lines_and_adds_nothing_to_them(self, tmp_path, kind, text, rows):
        (tmp_path / "p").mkdir()
        (tmp_path / "p" / "a.x").write_text(text)
        found = self.rows(tmp_path, format=kind, pattern="*.x")
        assert [one["ROW"] for one in found if isinstance(one, dict)] == rows

    def test_stands_in_front_of_the_keys_of_objects(self):
        for body, expected in [
            (b'{"a": 1}\n', b'{"S": "x","N": 7,"a": 1}\n'),
            (b"{}", b'{"S": "x","N": 7 }'),
            (b'  { "a": 1}\nbad\n', b'  {"S": "x","N": 6, "a": 1}\nbad\n'),
            (b'{"a":1}\n \n{   }\n', b'{"S": "x","N": 6,"a":1}\n \n{"S": "x","N": 7    }\n'),
            (b"", b""),
        ]:
            rows = sum(map(bool, map(bytes.strip, body.splitlines())))
            assert bytes(with_metadata(RowBlock(body, 1, 7, rows), {"S": "x"}, "N")) == expected

    def test_has_all_digits_of_its_numbers(self):
        found = with_metadata(RowBlock(b"{}\n" * 1100, 1, 10_050, 1100), {}, "N")
        assert [json.loads(one)["N"] for one in bytes(found).splitlines()] == list(range(8_951, 10_051))
        assert bytes(with_metadata(RowBlock(b'{"a":1}\n', 1, 1, 1), {}, None)) == b'{"a":1}\n'
