"""What every store of files does: the rows, names and refusals that a directory of the same files gives."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from airflow_provider_snowpipe.spark.sources.files.formats import reader_of
from airflow_provider_snowpipe.spark.sources.files.spec import AllFiles, FileSource
from airflow_provider_snowpipe.spark.sources.files.storage import storage_of
from airflow_provider_snowpipe.spark.sources.files.storage_options import options_of
from airflow_provider_snowpipe.streaming.errors import SourcePositionError
from tests.azure_service import ACCOUNT, KEY, azure_service
from tests.disturbed_store import wire_to
from tests.fake_webhdfs import web_connection
from tests.file_formats import numbered_rows, write_file
from tests.source_log import groups_of
from tests.unit.spark.sources.files.conftest import rows_after

FORMATS = ["a.ndjson", "a.csv", "a.parquet", "a.orc", "a.avro"]
PACKED = ["a.ndjson.gz", "a.csv.bz2", "a.ndjson.xz", "a.csv.zst"]


class Store:
    def __init__(self, url, secrets=None):
        self.url, self.secrets = url, secrets
        self.storage = storage_of(url, secrets)

    def put(self, name, data):
        self.storage.delete(name)
        assert self.storage.create(name, data)

    def file(self, name, **options):
        """A file as it is listed, and its reader."""
        spec = FileSource(path=self.url, pattern="**/*", partitions=AllFiles(), **options)
        files = [one for group in groups_of(spec, self.secrets) for one in group.files]
        return next(one for one in files if one.name == name), reader_of(spec.form)


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    with azure_service(tmp_path_factory.mktemp("azurite")) as running:
        running.make("lake")
        yield running


def _as_google_is_asked(request):
    """Google's XML interface is S3's, but for the name of the condition."""
    signed = (
        b"authorization: AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, Signature=1\r\n"
    )
    request = re.sub(rb"(?i)authorization: [^\r]*\r\n", b"", request)
    request = re.sub(rb"^([A-Z]+ \S+ HTTP/1.1\r\n)", rb"\1" + signed, request)
    return request.replace(b"x-goog-if-generation-match: 0", b"if-none-match: *")


@pytest.fixture
def bucket(s3, request):
    name = f"bucket-{abs(hash(request.node.name)):x}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def google(s3, bucket):
    """The S3 server as Google's XML interface: the emulators that can be had know the JSON one alone."""
    with wire_to(s3.port) as wire:
        wire.edit = _as_google_is_asked
        key = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        extra = {"keyfile_dict": key, "endpoint_url": f"http://127.0.0.1:{wire.port}"}
        yield Store(
            f"gs://{bucket}/in", options_of(web_connection(None, None, "google_cloud_platform", **extra))
        )


@pytest.fixture(
    params=[
        "s3",
        "webhdfs",
        "gs",
        pytest.param("az://lake", marks=pytest.mark.nightly),
        pytest.param(f"abfss://lake@{ACCOUNT}.dfs.core.windows.net", marks=pytest.mark.nightly),
    ]
)
def store(request):
    def get(name):
        return request.getfixturevalue(name)

    if request.param == "s3":
        return Store(f"s3://{get('bucket')}/in", get("s3").options())
    if request.param == "webhdfs":
        return Store(f"{get('hdfs').url}/in")
    if request.param == "gs":
        return get("google")
    service = get("azurite")
    if request.param.startswith("az:"):  # by a signature, not mixed with the environment
        get("monkeypatch").setenv("AZURE_STORAGE_ACCOUNT_KEY", f"AAAA{KEY[4:]}")
    secrets = service.signed_options() if request.param.startswith("az:") else service.options()
    return Store(f"{request.param}/{abs(hash(request.node.name)):x}", secrets)


@pytest.mark.parametrize("name", [*FORMATS, *PACKED, "a.txt"])
def test_a_file_gives_the_rows_that_it_gives_on_disk_after_every_row(store, tmp_path, name):
    kind = name.split(".")[1].replace("txt", "text")
    if kind == "text":
        (tmp_path / name).write_text("".join(f"line {n}\n" for n in range(150)))
    else:
        write_file(tmp_path / name, numbered_rows("a", range(150)))
    store.put(name, (tmp_path / name).read_bytes())
    (here,) = groups_of(FileSource(path=str(tmp_path), format=kind, pattern="*", partitions=AllFiles()))

    there, reader = store.file(name, format=kind)

    assert (there.size, there.path) == (here.files[0].size, f"{store.url}/{name}")
    whole = rows_after(reader, here.files[0], 0)
    assert len(whole) == 150
    for line in (0, 1, 69, 70, 71, 149, 150):
        assert rows_after(reader, there, line) == whole[line:]


@pytest.mark.parametrize("name", [*FORMATS, *PACKED])
def test_a_file_that_changes_between_listing_and_reading_is_refused(store, tmp_path, name):
    write_file(tmp_path / name, numbered_rows("a", range(150)))
    data = (tmp_path / name).read_bytes()
    for other in (b"{" + data[1:-1] + b" ", data + data, data[:-9], None):
        store.put(name, data)
        file, reader = store.file(name, format=name.split(".")[1])
        store.storage.delete(name)
        if other is not None:
            store.put(name, other)

        if other == data + data and name in (
            "a.ndjson",
            "a.csv",
        ):  # lines were added: the listed ones are read
            assert len(rows_after(reader, file, 0)) == 150
            continue
        with pytest.raises(SourcePositionError, match=name) as refused:
            rows_after(reader, file, 0)
        assert "Leave the files in place" in str(refused.value) or "appended" in str(refused.value)


@pytest.mark.parametrize(
    "name",
    ["a b", "p%20q", "c%20d", "100%", "h#ash", "q?m=1", "pl+us", "ü", "日本", "q'\"", "a&b;c,d=e@f$(!)"],
)
def test_a_file_is_created_listed_and_read_whatever_its_name_is(store, name):
    storage, whole = store.storage, f"{name}/{name}"
    assert [storage.create(whole, data) for data in (b"0123456789", b"2")] == [True, False]

    file, _ = store.file(whole)

    assert (file.path, file.size) == (f"{store.url}/{whole}", 10)
    assert storage.stat(file.path).size == 10
    assert storage.read(whole) == storage.open(file.path).read() == b"0123456789"
    assert [one.name for one in storage.below(name).files()] == [name]
    with storage.open(file.path, file.version, file.size) as stream:
        stream.seek(7)
        assert stream.read() == b"789"

    for gone in (whole, "never there"):
        storage.delete(gone)
    with pytest.raises(FileNotFoundError):
        storage.read(whole)


def test_one_of_eight_writers_creates_a_file(store):
    for number in range(5):
        begin = Barrier(8)

        def create(writer, number=number, begin=begin):
            storage = storage_of(store.url, store.secrets)
            begin.wait()
            return storage.create(f"log/{number}", str(writer).encode() * 1000)

        with ThreadPoolExecutor(8) as writers:
            won = list(writers.map(create, range(8)))

        assert won.count(True) == 1
        assert store.storage.read(f"log/{number}") == str(won.index(True)).encode() * 1000
