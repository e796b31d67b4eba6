"""Files that change before the committed position, which the token cannot show: each run with its driver."""

import calendar
import gzip
import json
import os
import random
import threading
import time
from dataclasses import replace

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
def tokyo(monkeypatch):
    """A host whose own time is not UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


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

    def test_earlier_file_that_grew_is_refused_where_tokens_hold_digests(self, folder):
        folder.write("1.ndjson")
        folder.write("2.ndjson")
        folder.run(verify="digest")
        folder.write("1.ndjson")

        folder.refused("'1.ndjson'", verify="digest")

    def test_earlier_file_that_was_empty_is_refused_when_it_is_filled(self, folder):
        folder.write("1.ndjson", 0)
        folder.write("2.ndjson")
        folder.run()
        folder.write("1.ndjson")

        folder.refused("'1.ndjson'", "0 to")

    def test_empty_archive_that_is_filled_later_is_refused(self, folder):
        (folder.write("2.ndjson").parent / "1.ndjson.gz").touch()
        folder.run(pattern="*.ndjson*")
        (folder.path / "a" / "1.ndjson.gz").write_bytes(gzip.compress(folder.lines(2)))

        folder.refused("'1.ndjson.gz'", "0 to", pattern="*.ndjson*")

    def test_earlier_file_rewritten_in_the_same_size_is_refused_with_its_time(self, folder):
        file = folder.write("1.ndjson")
        os.utime(file, ns=(HOUR_NS, HOUR_NS))
        folder.write("2.ndjson")
        folder.run()
        later = (1_700_000_000_999_999_999,) * 2
        os.utime(file, ns=later)
        listed_at = json.loads(folder.listing().read_bytes())["listed_at"]

        folder.refused("'1.ndjson'", "written 2023-11-14 22:13:20 UTC", f"listed at {listed_at}:")

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

    def test_all_late_files_of_a_partition_are_counted(self, folder):
        folder.write("99.ndjson")
        folder.run()
        for number in range(10):
            folder.write(f"{number:02}.ndjson")
        folder.refused("10 file", "'00.ndjson'", "). ")
        folder.write("10.ndjson")
        folder.write("11.ndjson")

        folder.refused("12 file", "and 2 more. ")

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

    @pytest.mark.parametrize("rows", [2, 300, 3000])
    @pytest.mark.parametrize("changed", ["all", "first", "last"])
    @pytest.mark.parametrize("more", [-1, 0, 1])
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

    def test_committed_file_is_refused_when_an_older_one_was_moved_over_it(self, folder):
        file = folder.write("1.ndjson")
        folder.run()
        other = folder.write("other", 3)
        os.utime(other, ns=(HOUR_NS, HOUR_NS))
        other.replace(file)

        folder.refused("'1.ndjson' (overwritten, ", "'1.ndjson:2' is committed")

    def test_committed_file_that_was_written_again_with_the_same_rows_is_fine(self, folder):
        """A task that makes the file is cleared."""
        file = folder.write("1.ndjson", 3)
        folder.run()
        for more in range(2):
            file.write_bytes(file.read_bytes() + folder.lines(more))
            os.utime(file, ns=(time.time_ns() + HOUR_NS * (more + 1),) * 2)
            assert folder.run() == list(range(1, 4 + more))

    def test_committed_file_whose_content_the_token_shows_may_be_written_again(self, folder):
        folder.write("2.ndjson", 0)
        file = folder.path / "a" / "1.ndjson.gz"
        file.write_bytes(gzip.compress(folder.lines(2), mtime=0))
        folder.run(pattern="*.gz", verify="digest")
        os.utime(file, ns=(time.time_ns() + HOUR_NS,) * 2)

        assert folder.run(pattern="*.gz", verify="digest") == [1, 2]


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

    def test_files_written_in_any_order_before_the_first_run(self, folder):
        for name in ("3", "1", "2"):
            folder.write(f"{name}.ndjson", 1)
        assert folder.run() == [2, 3, 1]
        assert folder.run() == [2, 3, 1]

    def test_a_file_between_the_committed_one_and_one_that_is_listed(self, folder, snowpipe):
        folder.write("1.ndjson")
        folder.write("3.ndjson")
        folder.run()
        snowpipe.channels["job_src_a"].committed = "1.ndjson:2"
        folder.write("2.ndjson")
        assert folder.run()[-4:] == [5, 6, 3, 4]

    def test_files_that_are_archived_or_emptied(self, folder):
        first, second = folder.write("1.ndjson"), folder.write("2.ndjson")
        folder.write("3.ndjson")
        folder.run()
        first.unlink()
        second.write_bytes(b"")
        folder.write("4.ndjson", 1)
        assert folder.run() == [1, 2, 3, 4, 5, 6, 7]

    def test_an_older_file_time(self, folder):
        file = folder.write("1.ndjson")
        folder.write("2.ndjson")
        folder.run()
        os.utime(file, ns=(HOUR_NS, HOUR_NS))
        assert folder.run() == [1, 2, 3, 4]

    def test_another_job_over_the_same_files_that_begins_later(self, folder):
        folder.write("2.ndjson", 1)
        folder.run()
        folder.write("1.ndjson", 1)
        assert folder.run("other") == [2, 1]
        folder.refused("'1.ndjson'")

    def test_a_channel_without_a_listing_is_taken_as_it_is(self, folder, snowpipe):
        folder.write("1.ndjson")
        folder.write("2.ndjson")
        snowpipe.channel("job_src_a", committed="2.ndjson:2", rows_inserted=2)
        assert folder.run() == []
        folder.write("1.ndjson")
        folder.refused("'1.ndjson'")

    def test_a_token_that_was_reset(self, folder, snowpipe):
        folder.write("2.ndjson", 1)
        folder.run()
        folder.write("1.ndjson", 1)
        snowpipe.channels["job_src_a"].committed = None
        assert folder.run()[-2:] == [2, 1]

    def test_the_kept_listing_is_no_file_of_the_source(self, folder):
        folder.write("1.json", 1)
        for _ in range(2):
            assert folder.run(pattern="**/*", partitions="directory") == [1]
        assert (folder.path / LISTING_FOLDER).is_dir()
        assert set(folder.snowpipe.channels) == {"job_src_a"}


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

    def test_what_it_named_is_accepted_from_then_on(self, folder):
        folder.write("2.ndjson", 1)
        folder.run()
        folder.write("1.ndjson", 1)
        folder.run(on_late_files="warn")

        assert folder.run() == [1]
        folder.write("0.ndjson", 1)
        folder.refused("'0.ndjson'", "1 file")


class TestListing:
    def test_it_is_the_file_that_runs_of_other_releases_search_for(self, folder):
        file = folder.write("1.ndjson")
        folder.run()

        kept = folder.listing()
        content = json.loads(kept.read_bytes())
        # blake2b of 8 bytes over the account's address with the pipe, of 1 byte over the channel
        assert kept.name.startswith("a28f388bf361372f-6c-000000000001-")
        assert content.pop("listed_at").endswith(" UTC")
        assert content.pop("ends").keys() == {"job_src_a"}
        assert content == {
            "version": 2, "target": PIPE.address(URL),
            "channels": {"job_src_a": {"1.ndjson": [file.stat().st_size, file.stat().st_mtime_ns]}},
        }  # fmt: skip

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

    def test_a_file_that_another_run_replaces_while_it_is_read_is_searched_for_again(
        self, folder, monkeypatch
    ):
        folder.write("2.ndjson")
        folder.run()
        names = late_files.Listings._names
        gone = iter([["gone"]])
        monkeypatch.setattr(
            late_files.Listings,
            "_names",
            lambda listings: [
                *(
                    folder.listing().name.replace("-000000000001-", f"-000000000000-{one}")
                    for one in next(gone, [])
                ),
                *names(listings),
            ],
        )
        folder.write("1.ndjson")

        folder.refused("'1.ndjson'")
        assert next(gone, None) is None

    def test_a_file_that_another_run_has_removed_is_replaced_without_a_warning(
        self, folder, monkeypatch, caplog
    ):
        folder.write("1.ndjson")
        folder.run()
        earlier = folder.listing()
        monkeypatch.setattr(late_files.os, "fsync", lambda _: earlier.unlink(missing_ok=True))
        folder.write("2.ndjson")

        assert folder.run() == [1, 2, 3, 4]
        assert folder.listing() != earlier
        assert [one for one in caplog.records if one.name.startswith("airflow_provider")] == []

    def test_a_name_with_another_end_than_ours_is_read(self, folder):
        folder.write("2.ndjson")
        folder.run()
        kept = folder.listing()
        kept.rename(kept.with_name(f"{kept.stem}-of-a-later-release.json"))
        folder.write("1.ndjson")

        folder.refused("'1.ndjson'")

    def test_a_folder_that_changes_at_each_listing_is_reported(self, folder, monkeypatch):
        folder.write("2.ndjson")
        folder.run()
        name = folder.listing().name
        folder.listing().unlink()
        monkeypatch.setattr(late_files.Listings, "_names", lambda _: [name])
        with pytest.raises(ConfigurationError, match="change while they are read"):
            folder.run()

    def test_it_stays_as_it_is_while_the_files_do(self, folder):
        folder.write("1.ndjson")
        folder.run()
        folder.listing().chmod(0o400)

        folder.run()

        assert folder.listing().stat().st_mode & 0o777 == 0o400

    def test_listings_reach_the_disk_beside_each_other(self, folder, monkeypatch):
        """Where a disk takes milliseconds for each, ten thousand partitions would wait a minute."""
        both = threading.Barrier(2, timeout=30)
        monkeypatch.setattr(late_files.os, "fsync", lambda _: both.wait())
        folder.write("1.ndjson", partition="a")
        folder.write("1.ndjson", partition="b")

        assert folder.run() == [1, 2]
        assert len(list((folder.path / LISTING_FOLDER).iterdir())) == 2

    def test_times_are_reported_in_utc_wherever_the_driver_is(self, folder, tokyo):
        file = folder.write("1.ndjson")
        folder.write("2.ndjson")
        folder.run()
        at = time.strptime(json.loads(folder.listing().read_bytes())["listed_at"], "%Y-%m-%d %H:%M:%S UTC")
        assert abs(calendar.timegm(at) - time.time()) < 3600
        os.utime(file, ns=(4_000_000_000 * 10**9,) * 2)

        folder.refused("written 2096-10-02 07:06:40 UTC")

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

    def test_a_source_that_may_only_be_read_is_loaded_with_a_warning(self, folder, monkeypatch, caplog):
        folder.write("1.ndjson")

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(late_files.Path, "mkdir", refuse)

        assert folder.run() == [1, 2]
        assert "listing_path" in caplog.text

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

    def test_it_is_as_it_was_when_the_run_was_refused(self, folder):
        folder.write("2.ndjson")
        folder.run()
        (kept,) = (folder.path / LISTING_FOLDER).iterdir()
        before = kept.read_bytes()
        folder.write("1.ndjson")
        folder.refused("'1.ndjson'")
        assert kept.read_bytes() == before

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

    def test_a_linked_partition_is_refused(self, folder):
        folder.write("1.ndjson")
        (folder.path / "b").symlink_to(folder.path / "a")
        with pytest.raises(ConfigurationError, match="link"):
            folder.run()

    def test_a_hard_link_is_refused(self, folder):
        file = folder.write("1.ndjson")
        os.link(file, file.with_name("2.ndjson"))
        with pytest.raises(ConfigurationError, match="link"):
            folder.run()

    def test_links_to_other_files_are_taken(self, folder, tmp_path):
        for name in ("1", "2"):
            (tmp_path / name).write_bytes(folder.lines(1))
            (folder.path / "a").mkdir(parents=True, exist_ok=True)
            (folder.path / "a" / f"{name}.ndjson").symlink_to(tmp_path / name)
        assert folder.run() == [1, 2]

    def test_empty_files_may_be_one(self, folder):
        folder.write("1.ndjson")
        empty = folder.write("2.ndjson", 0)
        os.link(empty, empty.with_name("3.ndjson"))
        assert folder.run() == [1, 2]


@pytest.mark.parametrize("seed", range(60))
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


def test_an_empty_listing_path_is_refused(folder):
    with pytest.raises(ConfigurationError, match="listing_path"):
        replace(source_spec({"path": str(folder.path)}), listing_path="")
