import subprocess
import sys

FIND_ROWS = """
import sys
import airflow_provider_snowpipe.spark.driver.run
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

source = open_source(FileSource(sys.argv[1]), "fail").for_target("account/pipe", run="r")
(partition,) = source.partitions()
position = UnitOffset(1, "1.ndjson", 2)
done, claimed = partition.is_done(position), source.claim({"c": partition}, {"c": position})
source.mark_complete({partition.name: position}, {})
print(done, claimed, sorted({"jwt", "numpy", "pandas", "pyarrow"} & set(sys.modules)))
assert sum(part.rows for part in partition.read(partition.resume(None), BatchLimits())) == 2
print(sorted({"jwt", "numpy", "pandas", "pyarrow"} & set(sys.modules)))
"""


def test_finding_no_new_rows_in_files_imports_no_library_for_rows(tmp_path, monkeypatch):
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "1.ndjson").write_text('{"A": 1}\n{"A": 2}\n')
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path)])
    exec(FIND_ROWS, {})  # noqa: S102  loads the rows, which the next run finds to be complete
    command = [sys.executable, "-c", FIND_ROWS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert done.splitlines() == ["True True []", "['numpy', 'pyarrow']"]
