"""Files that change before the committed position, which the token cannot show: each run with its driver."""

import gzip
import os
import random
import time

import pytest

from airflow_provider_snowpipe.spark.driver.plan import JobPlan
from airflow_provider_snowpipe.spark.driver.run import Run
from airflow_provider_snowpipe.spark.sources.files import late_files
from airflow_provider_snowpipe.spark.sources.files.spec import LISTING_FOLDER
from airflow_provider_snowpipe.spark.sources.registry import source_spec
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError
from tests.fake_snowpipe import PIPE, URL, KilledError
from tests.memory_source import InProcessSpark

HOUR_NS = 3_600_000_000_000


def seeds(count):
    """So many of them by night, the first few of them by day."""
    return [
        *range(12),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, count)),
    ]


class Folder:
    """A source of one partition, ``a``, and runs over it."""

    def __init__(self, path, snowpipe):
        self.path, self.snowpipe, self.written = path, snowpipe, []

    def write(self, name, rows=2, partition="a"):
        """Add rows to a file."""
        file = self.path / partition / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as out:
            out.write(self.lines(rows))
        return file

    def lines(self, rows):
        begin = len(self.written) + 1
        self.written += range(begin, begin + rows)
        return b"".join(b'{"ID": %d}\n' % number for number in self.written[begin - 1 :])

    def run(self, prefix="job", on_data_loss="fail", **options):
        """One run of the job; the rows that are in the table after it."""
        spec = source_spec({"path": str(self.path), **options})
        plan = JobPlan(
            "app", URL, PIPE, prefix, "src", spec, credentials_variable="X", on_data_loss=on_data_loss
        )
        run = Run(plan, self.snowpipe.client(), object)
        run.prepare()
        run.load(InProcessSpark())
        run.verify()
        run.finish()
        return self.rows(prefix)

    def rows(self, prefix="job", partition="a"):
        return [row["ID"] for row in self.snowpipe.channels[f"{prefix}_src_{partition}"].rows]

    def listing(self):
        """The file of its only listing."""
        (kept,) = (self.path / LISTING_FOLDER).iterdir()
        return kept

    def refused(self, *words, **options):
        """A run that stops before it opens a channel, and its error."""
        before, opened = self.rows(), len(self.snowpipe.did("open"))
        with pytest.raises(SourcePositionError) as stopped:
            self.run(**options)
        assert (self.rows(), len(self.snowpipe.did("open"))) == (before, opened)
        for word in words:
            assert word in str(stopped.value)


@pytest.fixture
def folder(tmp_path, snowpipe):
    return Folder(tmp_path / "in", snowpipe)


class TestDefault:
    def test_new_file_before_the_committed_one_is_refused_with_name_size_and_remedy(self, folder):
        folder.write("2.ndjson")
        folder.run()
        late = folder.write("1.ndjson")

        folder.refused("job_src_a", "'1.ndjson'", "new", f"{late.stat().st_size} bytes", "on_late_files")
        folder.refused("'1.ndjson'")

    def test_earlier_file_that_grew_is_refused_with_both_sizes(self, folder):
        before = folder.write("1.ndjson").stat().st_size
        folder.write("2.ndjson")
        folder.run()
        after = folder.write("1.ndjson").stat().st_size

        folder.refused("'1.ndjson'", f"{before} to {after} bytes")

    def test_late_file_is_noticed_after_a_run_that_was_cut_short(self, folder, snowpipe):
        folder.write("1.ndjson")
        folder.write("2.ndjson")
        snowpipe.fault(after="append", error=KilledError())
        with pytest.raises(KilledError):
            folder.run()
        snowpipe.commit()
        assert folder.rows()
        folder.write("0.ndjson")

        folder.refused("'0.ndjson'")

    def test_committed_file_that_cannot_grow_is_refused_when_another_has_its_name(self, folder):
        """Its first rows would pass for those of the one before."""
        folder.write("2.ndjson", 0)
        file = folder.path / "a" / "1.ndjson.gz"

        def replace_by(rows):
            file.write_bytes(gzip.compress(folder.lines(rows)))
            os.utime(file, ns=(HOUR_NS * rows,) * 2)

        replace_by(2)
        assert folder.run(pattern="*.gz") == folder.run(pattern="*.gz") == [1, 2]
        for rows in (3, 4):
            replace_by(rows)
            folder.refused("'1.ndjson.gz' (", "'1.ndjson.gz:2' is committed, and 1 file(s)", pattern="*.gz")
        assert folder.run(pattern="*.gz", on_late_files="warn") == [1, 2, 8, 9]
        assert folder.run(pattern="*.gz") == [1, 2, 8, 9]

    @pytest.mark.parametrize(
        ("rows", "changed", "more"),
        [(2, "all", -1), (2, "last", 0), (300, "first", 0), (300, "all", 1), (3000, "first", -1)],
    )
    def test_committed_file_that_was_overwritten_is_refused(self, folder, rows, changed, more):
        """It has the committed line, and its rows would pass for those of the one before."""
        file = folder.write("1.ndjson", rows)
        folder.run()
        lines = file.read_bytes().splitlines(keepends=True)
        for number in {"all": range(rows), "first": [0], "last": [rows - 1]}[changed]:
            lines[number] = (
                lines[number].replace(b" ", b"") if more < 0 else b'{"ID": 0}\n'.rjust(len(lines[number]))
            )
        file.write_bytes(b"".join(lines) + b'{"ID": 0}\n' * (more > 0))
        os.utime(file, ns=(time.time_ns() + HOUR_NS,) * 2)

        folder.refused("'1.ndjson' (overwritten, ", f"'1.ndjson:{rows}' is committed")
        folder.refused("'1.ndjson' (overwritten, ", format={"type": "ndjson", "growing": True})
        assert folder.run(on_late_files="warn")[:rows] == list(range(1, rows + 1))
        folder.run()


class TestNormalUse:
    """What a source does every day is no reason to stop."""

    def test_later_files_and_growth_of_the_committed_one(self, folder):
        folder.write("1.ndjson")
        folder.run(format={"type": "ndjson", "growing": True})
        folder.write("1.ndjson")
        folder.write("2.ndjson")
        assert folder.run(format={"type": "ndjson", "growing": True}) == [1, 2, 3, 4, 5, 6]
        folder.write("3.ndjson", 1)
        assert folder.run(format={"type": "ndjson", "growing": True}) == [1, 2, 3, 4, 5, 6, 7]

    def test_files_that_are_archived_or_emptied(self, folder):
        first, second = folder.write("1.ndjson"), folder.write("2.ndjson")
        folder.write("3.ndjson")
        folder.run()
        first.unlink()
        second.write_bytes(b"")
        folder.write("4.ndjson", 1)
        assert folder.run() == [1, 2, 3, 4, 5, 6, 7]

    def test_another_job_over_the_same_files_that_begins_later(self, folder):
        folder.write("2.ndjson", 1)
        folder.run()
        folder.write("1.ndjson", 1)
        assert folder.run("other") == [2, 1]
        folder.refused("'1.ndjson'")


class TestWarn:
    def test_it_names_the_file_once_and_goes_on(self, folder, caplog):
        folder.write("2.ndjson", 1)
        folder.run()
        folder.write("1.ndjson", 1)
        folder.write("3.ndjson", 1)

        assert folder.run(on_late_files="warn") == [1, 3]
        assert "'1.ndjson'" in caplog.text
        caplog.clear()
        assert folder.run(on_late_files="warn") == [1, 3]
        assert [one for one in caplog.records if one.name.startswith("airflow_provider")] == []


class TestListing:
    def test_channels_share_files_and_a_file_goes_when_later_ones_have_all_of_its_channels(
        self, folder, monkeypatch
    ):
        monkeypatch.setattr(late_files, "_group_of", lambda _: "00")
        kept = folder.path / LISTING_FOLDER
        folder.write("2.ndjson", partition="a")
        folder.write("2.ndjson", partition="b")
        folder.run()
        assert len(list(kept.iterdir())) == 1
        folder.write("3.ndjson", partition="a")
        folder.run()
        assert len(list(kept.iterdir())) == 2
        folder.write("1.ndjson", partition="b")
        folder.refused("job_src_b", "'1.ndjson'")
        folder.run(on_late_files="warn")
        assert [one.name[-29:-14] for one in sorted(kept.iterdir())] == ["00-000000000002", "00-000000000003"]
        folder.write("0.ndjson", partition="a")
        folder.refused("job_src_a", "'0.ndjson'", "1 file")

    def test_a_folder_that_changes_at_each_listing_is_reported(self, folder, monkeypatch):
        folder.write("2.ndjson")
        folder.run()
        name = folder.listing().name
        folder.listing().unlink()
        monkeypatch.setattr(late_files.Listings, "_names", lambda _: [name])
        with pytest.raises(ConfigurationError, match="change while they are read"):
            folder.run()

    def test_it_can_be_kept_elsewhere(self, folder, tmp_path):
        folder.write("2.ndjson")
        elsewhere = str(tmp_path / "kept" / "listings")
        folder.run(listing_path=elsewhere)
        folder.write("1.ndjson")

        folder.refused("'1.ndjson'", listing_path=elsewhere)
        assert not (folder.path / LISTING_FOLDER).exists()

    def test_a_directory_that_cannot_be_written_is_refused(self, folder, tmp_path, snowpipe):
        folder.write("1.ndjson")
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="listing_path"):
            folder.run(listing_path=str(tmp_path / "file"))
        assert snowpipe.did("open") == []

    def test_a_directory_that_cannot_be_written_is_a_warning_where_late_files_are(
        self, folder, tmp_path, caplog
    ):
        folder.write("1.ndjson")
        (tmp_path / "file").touch()
        assert folder.run(listing_path=str(tmp_path / "file"), on_late_files="warn") == [1, 2]
        assert "listing_path" in caplog.text

    @pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 1}', b'{"version": 9, "files": {}}'])
    def test_one_that_cannot_be_read_is_refused_by_its_path(self, folder, content):
        folder.write("1.ndjson")
        folder.run()
        (kept,) = (folder.path / LISTING_FOLDER).iterdir()
        kept.write_bytes(content)
        with pytest.raises(ConfigurationError, match=kept.name):
            folder.run()

    def test_a_folder_that_may_not_be_read_is_refused_by_its_path(self, folder, monkeypatch):
        folder.write("1.ndjson")
        folder.run()

        listdir = os.listdir

        def refuse(path):
            if str(path).endswith(LISTING_FOLDER):
                raise PermissionError(13, "Permission denied")
            return listdir(path)

        monkeypatch.setattr(late_files.os, "listdir", refuse)
        with pytest.raises(ConfigurationError, match=rf"{LISTING_FOLDER}.*Permission denied"):
            folder.run()

    def test_a_partition_that_is_refused_leaves_the_listings_of_the_others(self, folder):
        for partition in ("a", "b"):
            folder.write("2.ndjson", partition=partition)
        folder.run()
        kept = {file: file.read_bytes() for file in (folder.path / LISTING_FOLDER).iterdir()}
        folder.write("1.ndjson", partition="b")
        folder.write("3.ndjson", partition="a")
        folder.refused("job_src_b")
        assert {file: file.read_bytes() for file in (folder.path / LISTING_FOLDER).iterdir()} == kept


class TestNumbering:
    """``log_10`` after ``log_9`` was archived sorts before the token's own file."""

    @pytest.fixture(autouse=True)
    def archived(self, folder):
        file = folder.write("log_9.ndjson")
        folder.run()
        file.unlink()
        folder.write("log_10.ndjson")

    @pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
    def test_a_number_that_goes_on_and_sorts_before_the_token_is_refused(self, folder, on_data_loss):
        with pytest.raises(ConfigurationError, match=r"log_9.*log_10.*numbering"):
            folder.run(on_data_loss=on_data_loss)
        assert folder.rows() == [1, 2]

    def test_where_numbers_mean_nothing_it_is_a_late_file(self, folder):
        folder.refused("log_10", on_data_loss="skip", numbering="ignored")


class TestLinks:
    """A file that the source reaches by two paths would be loaded twice."""

    @pytest.mark.parametrize("link", ["a/2.ndjson", "b/1.ndjson"])
    def test_a_file_and_a_link_to_it_are_refused(self, folder, link, snowpipe):
        file = folder.write("1.ndjson")
        (folder.path / link).parent.mkdir(exist_ok=True)
        (folder.path / link).symlink_to(file)
        with pytest.raises(ConfigurationError, match="link"):
            folder.run()
        assert snowpipe.did("open") == []


@pytest.mark.parametrize("seed", seeds(60))
def test_any_series_of_changes_is_loaded_exactly_or_refused_by_name(folder, seed):
    draw, committed = random.Random(seed), ""
    folder.write("3.ndjson", 1)
    for _ in range(10):
        early = set()
        for _ in range(draw.randint(0, 3)):
            lowest = 0 if draw.random() < 0.1 else int(committed[:1] or 0)
            name, rows = f"{draw.randint(lowest, 9)}.ndjson", draw.choice([0, 1, 2])
            folder.write(name, rows)
            early |= {repr(name)} if rows and name < committed else set()
        if early:
            folder.refused(*early, format={"type": "ndjson", "growing": True})
            folder.refused(*early, format={"type": "ndjson", "growing": True})
            return
        assert sorted(folder.run(format={"type": "ndjson", "growing": True})) == folder.written
        committed = str(folder.snowpipe.channels["job_src_a"].committed).partition(":")[0]
