"""Files of a run: their sizes, what they are by their names, whether to combine them, and their manifest."""

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_snowpipe.bulk.run_files import (
    TARGET_FILE_BYTES,
    CompactForm,
    CompactOptions,
    RunManifest,
    WrittenFile,
    block_bytes,
    check_target,
    content_key,
    file_count,
    is_well_cut,
    packed_bytes,
    run_folder,
)
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.refusals import refused

MB = 1_000_000


class TestSizes:
    @settings(max_examples=30)
    @given(total=st.integers(100 * MB, 10**15))
    def test_with_the_default_target_files_have_100_to_250_megabytes(self, total):
        assert 100 * MB <= total / file_count(total, TARGET_FILE_BYTES) <= 250 * MB

    def test_files_are_written_again_where_they_are_too_large_or_too_many(self):
        for sizes, well in [
            ([5], True),
            ([251 * MB], False),
            ([99 * MB] * 40, False),
            ([1 * MB] * 2, False),
            ([160 * MB, 160 * MB, 10 * MB], True),
            ([160 * MB, 160 * MB, 400 * MB], False),
        ]:
            assert (sizes, is_well_cut(sizes, TARGET_FILE_BYTES)) == (sizes, well)

    @settings(max_examples=30)
    @given(total=st.integers(1, 10**13), target=st.integers(1_000, 10**9))
    def test_a_pack_has_room_for_an_even_share_and_a_row_group_is_a_small_part_of_it(self, total, target):
        assert packed_bytes(total, target) >= total / file_count(total, target)
        assert (64 << 10) <= block_bytes(target) <= (128 << 20)

    def test_a_target_that_no_file_can_have_is_refused(self):
        refused(ConfigurationError, check_target, [0, 999, -1, 1e9, True, "160MB"], "target_file_bytes is")


class TestCompaction:
    def test_files_have_the_format_of_their_endings(self):
        for names, options, form in [
            (["a.ndjson", "b/c.jsonl.gz"], {}, CompactForm("ndjson", ".ndjson", False, True)),
            (["a.csv", "b.csv.zst"], {"header": True}, CompactForm("csv", ".csv", True, False)),
            (
                ["a.csv"],
                {"header": False, "newlines_in_values": False},
                CompactForm("csv", ".csv", False, True),
            ),
            (["a.snappy.parquet"], {}, CompactForm("parquet", ".parquet", False, False)),
            (["part-0", "part-1"], {"kind": "ndjson"}, CompactForm("ndjson", ".ndjson", False, True)),
        ]:
            assert CompactOptions(**options).form_of(names) == form
        for names, word in [
            (["a.ndjson", "part-0"], "file 'part-0'"),
            (["a.ndjson", "b.parquet"], "'a.ndjson' is ndjson and 'b.parquet' is parquet"),
            (["a.csv"], "compact={'header': True}"),
        ]:
            refused(ConfigurationError, CompactOptions().form_of, [names], word)

    def test_compaction_is_true_or_parameters(self):
        refused(ConfigurationError, CompactOptions.of, ["yes", {"size": 5}, {"kind": "xml"}])
        assert (CompactOptions.of(True), CompactOptions.of(False)) == (CompactOptions(), None)

    def test_the_name_goes_by_the_content_and_by_how_it_is_combined(self):
        files = [("a", 1, "x"), ("b", 2, "y")]
        key = content_key(files, CompactOptions())

        assert content_key(files[::-1], CompactOptions()) == key
        assert content_key([("a", 1, "x"), ("b", 2, "z")], CompactOptions()) != key
        assert content_key(files, CompactOptions(target_file_bytes=MB)) != key


class TestManifest:
    FILES = (WrittenFile("a1/one.parquet", 10, 3), WrittenFile("a1/two.parquet", 20, 4))
    MANIFEST = RunManifest("a1", FILES, ("ID", "V"), ("V",))

    def test_comes_back_as_it_was_written(self):
        text = self.MANIFEST.to_json()
        assert RunManifest.from_json(text, "m") == self.MANIFEST
        assert (self.MANIFEST.rows, self.MANIFEST.bytes) == (7, 30)
        wrong = ["", "[]", "{}", text.replace('"manifest_version": 1', '"manifest_version": 2')]
        refused(ConfigurationError, lambda one: RunManifest.from_json(one, "@S/x"), wrong, "@S/x", "run_key")

    def test_a_folder_is_the_same_for_every_attempt_and_of_one_piece_of_work(self):
        names = ("d", "manual__2026-01-01T00:00:00+00:00", "t", "-1")
        assert run_folder(names, "T") != run_folder(names, "U")
        assert run_folder(("a", "b.c")) != run_folder(("a.b", "c"))
        assert run_folder(names) == "d.manual__2026-01-01T00-00-00-00-00.t.-1-a6a329279e2055d3"
        assert run_folder((".Xa", "b-.")).startswith("Xa.b-")
